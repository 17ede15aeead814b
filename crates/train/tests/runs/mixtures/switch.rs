//! Mixtures routed as Switch routes them: one expert for each token, a capacity that some tokens exceed, and a z-loss.

use super::*;

/// Three quarters of an even share.
const CAPACITY: f32 = 0.75;

/// A folder with one expert for each token, whose probability is its weight.
fn switch(name: &'static str) -> Folder {
    let mut folder = Folder::open(name, BalanceGroup::Sequence);
    let Architecture::Llama(model) = &mut folder.architecture else { panic!("{name} is a mixture") };
    let mixture = model.mixture.as_mut().unwrap();
    (mixture.chosen, mixture.normalised, mixture.capacity) = (1, false, Some(CAPACITY));
    mixture.losses.z = 0.01;
    folder
}

/// Copies of the last step that found their expert full, over all layers.
fn overflowing(run: &Run) -> f32 {
    let tallies: Vec<String> =
        run.states_of(|kind| kind == StateKind::Tally).map(|(name, _)| name.to_owned()).collect();
    let lost = |counts: &[f32]| {
        let (sent, placed) = counts.split_at(counts.len() / 2);
        sent.iter().sum::<f32>() - placed.iter().sum::<f32>()
    };
    tallies.iter().map(|name| lost(&run.state(name).unwrap())).sum()
}

#[test]
fn recompute_and_threads_change_no_bit_where_tokens_overflow() {
    for folder in FOLDERS.map(switch) {
        for tied in [false, true] {
            let mut expected = None;
            for strategy in STRATEGIES {
                for threads in [1, 3] {
                    let mut run = folder.run(strategy, 2, threads);
                    if tied {
                        tie(&mut run);
                    }
                    let got = bits(&mut run, &divided(&folder.batch, 2));
                    let same = expected.get_or_insert_with(|| got.clone()) == &got;
                    assert!(same, "{} {strategy} {threads} {tied}", folder.name);
                    assert!(overflowing(&run) > 0.0, "{}: some tokens overflow", folder.name);
                    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{strategy}");
                }
            }
        }
    }
}

#[test]
fn accumulation_changes_only_the_order_of_sums_where_tokens_overflow() {
    for folder in FOLDERS.map(switch) {
        let mut run = folder.run(Strategy::None, 4, 1);
        run.step(0.0, &divided(&folder.batch, 4)).unwrap();
        let kinds: Vec<&str> = run.added_losses().map(|(name, _)| name).collect();
        assert!(
            ["router.balance", "router.z"].iter().all(|kind| kinds.iter().any(|name| name.ends_with(kind)))
        );
        assert_equal_in_micro_batches(&folder);
    }
}

/// The settings of a run that trains a folder with so many experts for each token.
fn choosing(name: &str, chosen: usize) -> RawConfig {
    RawConfig {
        model: Some(path(name).display().to_string()),
        num_experts_per_tok: Some(chosen),
        output_dir: Some("trained".into()),
        seq_len: Some(GOLDEN_SEQ),
        memory: Some("64MiB".to_owned()),
        ..RawConfig::default()
    }
}

#[test]
fn another_number_of_experts_for_each_token_is_in_the_config_of_the_trained_model() {
    for (name, chosen) in [("qwen2-moe", 1), ("qwen3-moe", 1), ("olmoe", 1), ("olmoe", 3), ("mixtral", 3)] {
        let config = Config::check(&choosing(name, chosen)).unwrap();
        let form = config.form().unwrap();
        let (_, text) = form.texts.iter().find(|(file, _)| file == "config.json").unwrap();
        let choice = |architecture: &Architecture| {
            let Architecture::Llama(model) = architecture else { panic!("{name} is a mixture") };
            let mixture = model.mixture.as_ref().unwrap();
            (mixture.chosen, mixture.normalised)
        };
        let read = choice(&Architecture::from_config(text).unwrap().architecture);
        assert_eq!(read, choice(&config.model.architecture), "{name}");
        assert_eq!(read.0, chosen, "{name}");
    }
    let config = Config::check(&choosing("mixtral", 1)).unwrap();
    let error = config.form().unwrap_err().to_string();
    assert!(error.contains("choose two experts or more for each token"), "{error}");
}

#[test]
fn a_capacity_below_one_row_is_refused_with_the_least_that_is_not() {
    let mut folder = switch("mixtral");
    let Architecture::Llama(model) = &mut folder.architecture else { panic!("a mixture is a Llama") };
    model.mixture.as_mut().unwrap().capacity = Some(0.2);
    let error = Run::new(&folder, &options(4, 2, Strategy::None, 1)).unwrap_err().to_string();
    let told =
        "a capacity factor of 0.2 leaves each of 4 experts less than one of 16 tokens; give 0.25 or more";
    assert!(error.contains(told), "{error}");
}
