//! A document costs the same whatever lies beside it: packed into a row with others, or padded in a row of its own,
//! it has the same loss and sends back the same gradients.
//!
//! A packed document stands later in its row, so its rotary angles and the blocks of its sums differ. Equal therefore means
//! equal up to rounding. The content of the row's other documents must change no bit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use plimsoll_model::{Architecture, IGNORED};
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::Run;
use plimsoll_train::data::{
    Batches, DataSpec, Dataset, Feed, Part, RowLayout, Sequence, Source, Task, Tokenizer, Validation,
};

use crate::support::{
    Size, absolute_distance, distance, gpt2, llama, options, parameters, start, without_key_bias,
};

const SIZE: Size = Size { vocab: 260, seq: 32, width: 32, layers: 2, ffn: 48, dropout: 0.0 };
const TOLERANCE: f32 = 1e-5;
/// Gradients of key biases are 0 but for rounding.
const KEY_BIAS: f32 = 1e-7;

const DOCUMENTS: [&str; 6] = [
    "load it to the mark",
    "no deeper",
    "a line on the hull",
    "this one is longer than a row, so that it is cut into pieces",
    "bytes",
    "nothing grows",
];

/// Loss and gradients of one row.
struct Learned {
    loss: f32,
    gradients: Vec<(String, Vec<f32>)>,
}

impl Learned {
    /// The largest distance between the losses or any gradients of the two.
    fn distance(&self, other: &Learned) -> f32 {
        let mut worst = distance(&[self.loss], &[other.loss]);
        for ((name, mine), (_, theirs)) in self.gradients.iter().zip(&other.gradients) {
            let ((mine, my_keys), (theirs, their_keys)) =
                (without_key_bias(name, mine), without_key_bias(name, theirs));
            assert!(absolute_distance(&my_keys, &their_keys) <= KEY_BIAS, "{name}: biases of keys");
            worst = worst.max(distance(&mine, &theirs));
        }
        assert!(!worst.is_nan());
        worst
    }
}

/// All rows of the documents, in order.
fn rows(layout: RowLayout) -> Vec<Sequence> {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = DOCUMENTS.iter().map(|text| format!("{{\"text\": {text:?}}}\n")).collect();
    let path = folder.path().join("documents.jsonl");
    std::fs::write(&path, lines.concat()).unwrap();
    let spec = DataSpec {
        parts: vec![Part::from(&*path)],
        validation: Validation::Files(vec![Part::from(&*path)]),
        task: Task::Causal,
        layout,
        seq_len: SIZE.seq,
        vocabulary: SIZE.vocab,
        seed: 0,
        skip_bad_lines: false,
        cache: folder.path().join("cache"),
        classes: None,
        memory: 1 << 40,
        threads: 1,
    };
    let data = Dataset::open(&spec, &Tokenizer::bytes(), &mut |_| {}).unwrap();
    let mut batches = Batches::new(Source::Corpus(data.validation.unwrap()), 1, 1);
    let count = batches.steps_per_epoch().unwrap();
    let read = |_| {
        let group = batches.next_group().unwrap();
        let mut row = Sequence::with_positions(SIZE.seq);
        batches.read(&group, 0, row.rows()).unwrap();
        row
    };
    (0..count).map(read).collect()
}

/// The documents of a row, each with its row in which only its own targets count.
fn alone(row: &Sequence) -> Vec<(Vec<i32>, Sequence)> {
    let mut starts = row.doc_start.clone();
    starts.dedup();
    let only = |&start: &i32| {
        let mut only = row.clone();
        for (target, &document) in only.targets.iter_mut().zip(&row.doc_start) {
            *target = if document == start { *target } else { IGNORED };
        }
        let of_it = row.tokens.iter().zip(&row.doc_start).filter(|(_, document)| **document == start);
        (of_it.map(|(&token, _)| token).collect(), only)
    };
    let counts = |(_, row): &(_, Sequence)| row.targets.iter().any(|&target| target != IGNORED);
    starts.iter().map(only).filter(counts).collect()
}

fn learn(run: &mut Run, row: &Sequence) -> Learned {
    let mut feed = Feed::new(1, SIZE.seq, |name| run.engine().input(Role::First, name));
    let filled: Result<(), ()> = feed.fill(|rows| {
        rows.tokens.copy_from_slice(&row.tokens);
        rows.targets.copy_from_slice(&row.targets);
        rows.doc_start.copy_from_slice(&row.doc_start);
        Ok(())
    });
    filled.unwrap();
    // At rate 0 the weights do not change, and the next step's gradients begin at zero.
    let loss = run.step(0.0, &[feed.inputs().as_slice()]).unwrap().loss;
    let gradients = parameters(run).into_iter().map(|name| {
        let gradient = run.gradient(&name).unwrap();
        (name, gradient)
    });
    let gradients = gradients.collect();
    Learned { loss, gradients }
}

fn run(model: &Architecture) -> Run {
    start(model, SIZE.seq, &options(1, 1, Strategy::None, 1))
}

fn models() -> [(&'static str, Architecture); 2] {
    [("llama", llama(SIZE)), ("gpt2", gpt2(SIZE))]
}

#[test]
fn every_document_has_the_same_loss_and_gradients_packed_and_padded() {
    let (packed, padded) = (rows(RowLayout::Packed), rows(RowLayout::Padded));
    // 20 + 10 + 19 + 61 + 6 + 14 positions.
    assert_eq!((packed.len(), padded.len()), (5, 7));
    let shared = packed.iter().flat_map(|row| alone(row).into_iter().map(|(_, only)| only != *row));
    assert!(shared.filter(|&shared| shared).count() >= 4, "documents do share rows");
    for (name, model) in models() {
        let mut run = run(&model.with_documents(true));
        let mut compared = 0;
        for (document, row) in packed.iter().flat_map(alone) {
            let own = padded.iter().flat_map(alone).find(|(tokens, _)| *tokens == document).unwrap().1;
            let apart = learn(&mut run, &row).distance(&learn(&mut run, &own));
            println!("{name}, {} tokens: {apart:.1e}", document.len());
            assert!(apart <= TOLERANCE, "{name}: {apart}");
            compared += 1;
        }
        assert_eq!(compared, 7, "each piece once");
    }
}

#[test]
fn what_the_neighbours_say_changes_no_bit() {
    for (name, model) in models() {
        let mut run = run(&model.with_documents(true));
        for (document, row) in rows(RowLayout::Packed).iter().flat_map(alone) {
            let mut other = row.clone();
            for (token, &target) in other.tokens.iter_mut().zip(&row.targets) {
                *token = if target == IGNORED { 99 } else { *token };
            }
            let (loss, neighbours) = (learn(&mut run, &row).loss, learn(&mut run, &other).loss);
            assert_eq!(loss.to_bits(), neighbours.to_bits(), "{name}, {} tokens", document.len());
        }
    }
}

#[test]
fn without_boundaries_the_difference_would_be_seen() {
    for (name, model) in models() {
        let mut run = run(&model.with_documents(false));
        let (packed, padded) = (rows(RowLayout::Packed), rows(RowLayout::Padded));
        let second = packed.iter().find_map(|row| alone(row).into_iter().nth(1)).unwrap();
        let own = padded.iter().flat_map(alone).find(|(tokens, _)| *tokens == second.0).unwrap().1;
        let apart = learn(&mut run, &second.1).distance(&learn(&mut run, &own));
        assert!(apart > 100.0 * TOLERANCE, "{name}: {apart}");
    }
}
