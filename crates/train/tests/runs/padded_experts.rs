//! Experts of short texts that have a row each: tokens are counted, and the padding after them is not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::StateKind;
use plimsoll_model::{Architecture, Mixture, Preset};
use plimsoll_plan::Strategy;
use plimsoll_train::data::{
    Batches, DataSpec, Dataset, Part, RowLayout, Source, Task, Tokenizer, Validation,
};
use plimsoll_train::trainer::{Decay, Lr};
use plimsoll_train::{Run, Trainer};
use tempfile::TempDir;

use crate::support::{options, start};

const SEQ: usize = 64;
const TEXTS: usize = 16;
const LAYERS: usize = 2;

/// One expert of four for each token, and room for as many tokens of a row as an even load would send there: 16.
fn model() -> Architecture {
    let Architecture::Llama(mut model) = Preset::from_name("tiny-moe").unwrap().model.with_layers(LAYERS)
    else {
        unreachable!("the preset is a Llama")
    };
    let switch =
        Mixture { experts: 4, chosen: 1, normalised: false, capacity: Some(1.0), ..model.mixture.unwrap() };
    (model.vocab, model.mixture) = (260, Some(switch));
    model.into()
}

/// A trainer whose steps are all texts, in micro-batches of `rows`, and the folder of its data.
fn trainer(layout: RowLayout, rows: usize) -> (Trainer, TempDir) {
    let folder = TempDir::new().unwrap();
    // Fewer tokens than an expert has room for.
    let lines: Vec<String> = (0..TEXTS).map(|n| format!("{{\"text\": \"ship {}\"}}\n", n * n)).collect();
    let path = folder.path().join("texts.jsonl");
    std::fs::write(&path, lines.concat()).unwrap();
    let spec = DataSpec {
        parts: vec![Part::from(&*path)],
        validation: Validation::None,
        task: Task::Causal,
        layout,
        seq_len: SEQ,
        vocabulary: 260,
        seed: 0,
        skip_bad_lines: false,
        cache: folder.path().join("cache"),
        classes: None,
        memory: 1 << 40,
        threads: 1,
    };
    let data = Dataset::open(&spec, &Tokenizer::bytes(), &mut |_| {}).unwrap();
    let model = model().with_documents(layout == RowLayout::Packed);
    let run = start(&model, SEQ, &options(TEXTS, rows, Strategy::None, 2));
    let batches = Batches::new(Source::Corpus(data.train), TEXTS as u64, rows);
    let lr = Lr { peak: 1e-3, warmup_steps: 0, max_steps: 100, decay: Decay::Cosine };
    (Trainer::new(run, batches, lr), folder)
}

/// Of each layer all copies that were sent to experts in the last step.
fn sent(run: &Run) -> Vec<f32> {
    let tallies: Vec<String> =
        run.states_of(|kind| kind == StateKind::Tally).map(|(name, _)| name.to_owned()).collect();
    let all = |counts: Vec<f32>| counts[..counts.len() / 2].iter().sum();
    tallies.iter().map(|name| all(run.state(name).unwrap())).collect()
}

#[test]
fn no_token_of_texts_that_fit_overflows_and_shares_are_of_tokens_alone() {
    // Every token of such a text is learned but the last, which is only a target.
    let tokens: usize = (0..TEXTS).map(|n| format!("ship {}", n * n).len() + 1).sum();
    for rows in [TEXTS, 4, 1] {
        let (mut trainer, _folder) = trainer(RowLayout::Padded, rows);
        trainer.step().unwrap();
        assert_eq!(sent(trainer.run()), [tokens as f32; LAYERS], "micro-batches of {rows}");
        let record = trainer.experts().unwrap().unwrap();
        assert_eq!(record.overflow, [0.0; LAYERS], "micro-batches of {rows}: {record:?}");
    }
}

#[test]
fn packed_texts_are_as_many_tokens_as_padded_ones() {
    let counted = [RowLayout::Packed, RowLayout::Padded].map(|layout| {
        let (mut trainer, _folder) = trainer(layout, 1);
        let positions = trainer.step().unwrap().tokens;
        (positions, sent(trainer.run()))
    });
    assert!(counted[0].0 < counted[1].0, "texts share rows");
    assert_eq!(counted[0].1, counted[1].1);
}
