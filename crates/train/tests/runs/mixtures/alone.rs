//! A mixture whose every token goes to one and the same expert, against the dense model with that expert's weights.

use super::*;

/// Experts of the folder.
const EXPERTS: usize = 4;

/// The folder with one expert for each token, whose weight is then 1, and neither capacity nor losses of routers.
fn single() -> Folder {
    let mut folder = Folder::open("mixtral", BalanceGroup::Sequence);
    let Architecture::Llama(model) = &mut folder.architecture else { panic!("a mixture is a Llama") };
    let mixture = model.mixture.as_mut().unwrap();
    (mixture.chosen, mixture.capacity, mixture.losses.balance) = (1, None, 0.0);
    assert!(mixture.normalised);
    folder
}

/// The part of a group that is expert 0, and the parts of all others.
fn first_of(group: &[f32]) -> (&[f32], &[f32]) {
    group.split_at(group.len() / EXPERTS)
}

/// The group of experts that holds a weight of the dense model.
fn group_of(dense: &str) -> Option<String> {
    let (layer, own) = dense.split_once(".mlp.")?;
    let own = match own {
        "gate_proj.weight" => "w1",
        "up_proj.weight" => "w3",
        "down_proj.weight" => "w2",
        other => panic!("{other} is no weight of a network"),
    };
    Some(format!("{layer}.block_sparse_moe.experts.{own}"))
}

/// The dense model whose networks are the first experts of `sparse`.
fn dense(folder: &Folder, sparse: &Run, options: &Options) -> Run {
    let Architecture::Llama(mut model) = folder.architecture.clone() else { panic!("a mixture is a Llama") };
    model.ffn = model.mixture.take().unwrap().ffn;
    let mut run = Run::new(|rows: usize| model.training(rows, GOLDEN_SEQ), options).unwrap();
    for name in parameters(&run) {
        let weight = match group_of(&name) {
            Some(group) => first_of(&sparse.state(&group).unwrap()).0.to_vec(),
            None => sparse.state(&name).unwrap(),
        };
        run.set_state(&name, &weight).unwrap();
    }
    run
}

#[test]
fn all_tokens_on_one_expert_take_the_planned_bytes_and_are_the_dense_product() {
    let folder = single();
    for (strategy, rows) in STRATEGIES.into_iter().flat_map(|strategy| [(strategy, 1), (strategy, 4)]) {
        let options = options(folder.batch.rows(), rows, strategy, 2);
        let mut sparse = folder.run(strategy, rows, 2);
        // Ties send every token to the first expert.
        tie(&mut sparse);
        let mut dense = dense(&folder, &sparse, &options);
        let [loss, expected] =
            [&mut sparse, &mut dense].map(|run| run.step(0.0, &divided(&folder.batch, rows)).unwrap().loss);
        let tokens = folder.batch.tokens.len() as f32;
        assert!(sent(&sparse).iter().all(|layer| layer == &[tokens, 0.0, 0.0, 0.0]), "{:?}", sent(&sparse));
        assert_eq!(sparse.engine().measured_peak(), sparse.plan().arena_bytes, "{strategy}");
        assert_eq!(loss.to_bits(), expected.to_bits(), "{strategy}: {loss} {expected}");
        for name in parameters(&dense) {
            let expected = dense.gradient(&name).unwrap();
            let Some(group) = group_of(&name) else {
                assert_eq!(sparse.gradient(&name).unwrap(), expected, "{strategy}: {name}");
                continue;
            };
            let gradient = sparse.gradient(&group).unwrap();
            let (first, idle) = first_of(&gradient);
            assert_eq!(first, expected, "{strategy}: {name}");
            assert!(idle.iter().all(|number| *number == 0.0), "{strategy}: {group} of idle experts");
        }
    }
}
