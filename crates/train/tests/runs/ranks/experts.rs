//! Mixtures of experts trained by several ranks: the load, the balance and the biases are those of all tokens.

use plimsoll_graph::StateKind;
use plimsoll_train::RawConfig;
use plimsoll_train::trainer::ExpertRecord;

use super::stages::stage;
use super::{Trained, apart, folder, numbers, settings, train};

fn load(trained: &Trained) -> ExpertRecord {
    trained.session.trainer().experts().unwrap().unwrap()
}

#[test]
fn ranks_train_experts_as_one_does_and_count_the_load_of_all() {
    let folder = folder();
    let of = |ranks| {
        train(&RawConfig {
            config: None,
            model: Some("s-moe".into()),
            layers: Some(1),
            max_steps: Some(2),
            ..settings(folder.path(), ranks)
        })
    };
    let (one, two) = (of(1), of(2));
    for (loss, expected) in two.losses.iter().zip(&one.losses) {
        assert!((loss - expected).abs() <= 2e-6 * expected, "{loss} {expected}");
    }
    assert_eq!(load(&two), load(&one));
    assert_eq!((two.balances.len(), one.balances.len()), (2, 2));
    for (balance, expected) in two.balances.iter().zip(&one.balances) {
        assert!((balance - expected).abs() <= 1e-5 * expected, "balance {balance} {expected}");
    }
    let apart = apart(&two.session, &one.session);
    assert!(apart <= 1e-5, "weights are {apart} apart");
}

/// The biases of each layer, as bits.
fn biases(trained: &Trained) -> Vec<Vec<u32>> {
    let run = trained.session.trainer().run();
    let moments = run.states_of(|kind| kind == StateKind::Moment).map(|(name, _)| name);
    let names = moments.filter(|name| name.ends_with("e_score_correction_bias"));
    names.map(|name| numbers(run, name).into_iter().map(f32::to_bits).collect()).collect()
}

#[test]
fn biases_of_experts_are_those_of_one_rank_in_every_stage() {
    let folder = folder();
    let of = |ranks| RawConfig {
        config: None,
        model: Some("tiny-moe".into()),
        layers: Some(2),
        router_aux_loss: Some("bias".into()),
        router_bias_update_rate: Some(0.01),
        max_steps: Some(4),
        ..settings(folder.path(), ranks)
    };
    let one = train(&of(1));
    let expected = biases(&one);
    assert!(expected.len() == 2 && expected.iter().all(|layer| layer.iter().any(|&bias| bias != 0)));
    for (ranks, name) in [2, 4].into_iter().flat_map(|ranks| ["0", "1", "2", "3"].map(|name| (ranks, name))) {
        let several = train(&stage(name, of(ranks)));
        let what = format!("{ranks} ranks, stage {name}");
        assert_eq!(biases(&several), expected, "{what}");
        assert_eq!(load(&several), load(&one), "{what}");
        for (loss, expected) in several.losses.iter().zip(&one.losses) {
            assert!((loss - expected).abs() <= 2e-6 * expected, "{what}: {loss} {expected}");
        }
        let apart = apart(&several.session, &one.session);
        assert!(apart <= 1e-5, "{what}: weights are {apart} apart");
    }
}
