//! Shared by tests that train: the models and numbers of `reference/models.py`, batches, and a run over them.

#![allow(dead_code, reason = "each test file uses its own part")]

use plimsoll_exec::Data;
use plimsoll_model::{Architecture, IGNORED};
use plimsoll_plan::{Purpose, Strategy};
use plimsoll_train::{LanguageModel, Options, Run, Step};

#[path = "../../../model/tests/support/families.rs"]
pub(crate) mod models;
#[allow(unused_imports, reason = "each test file uses its own part")]
pub(crate) use models::{Size, families};
mod folder;
#[path = "../../../graph/tests/support/golden.rs"]
mod golden;
#[allow(unused_imports, reason = "each test file uses its own part")]
pub(crate) use folder::names;
pub(crate) use golden::Golden;

/// Tokens of a golden sequence.
pub(crate) const GOLDEN_SEQ: usize = Size::GOLDEN.seq;
/// Far more than any of these models needs.
const MEMORY: u64 = 2 << 30;

/// Every strategy that has a name.
pub(crate) const STRATEGIES: [Strategy; 7] = [
    Strategy::None,
    Strategy::Selective,
    Strategy::Full,
    Strategy::Sqrt,
    Strategy::Every(2),
    Strategy::Minimal,
    Strategy::Manual,
];

pub(crate) fn llama(size: Size) -> Architecture {
    models::llama(size).into()
}

pub(crate) fn gpt2(size: Size) -> Architecture {
    models::gpt2(size).into()
}

pub(crate) fn bert(size: Size) -> Architecture {
    models::bert(size).into()
}

/// Options for a given division of a batch.
pub(crate) fn options(
    global_batch: usize,
    micro_batch: usize,
    recompute: Strategy,
    threads: usize,
) -> Options {
    Options {
        memory: Some(MEMORY),
        global_batch,
        micro_batch: Some(micro_batch),
        recompute: Some(recompute),
        seed: 7,
        threads,
        ..Options::default()
    }
}

/// A run of one of the families.
pub(crate) fn start(architecture: &Architecture, seq_len: usize, options: &Options) -> Run {
    let model = LanguageModel { architecture: architecture.clone(), seq_len, generate: false, lora: None };
    Run::new(model, options).unwrap()
}

/// Names of the trained parameters of a run.
pub(crate) fn parameters(run: &Run) -> Vec<String> {
    let gradients = run.states().filter_map(|(name, _)| name.strip_prefix("grad."));
    gradients.map(str::to_owned).collect()
}

/// A global batch.
#[derive(Clone)]
pub(crate) struct Batch {
    pub seq: usize,
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    /// First positions of documents, for models that tell documents apart.
    pub doc_start: Option<Vec<i32>>,
}

impl Batch {
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len() / self.seq
    }

    /// Targets that count.
    pub(crate) fn valid(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORED).count()
    }

    /// The same rows `times` over.
    pub(crate) fn repeated(&self, times: usize) -> Batch {
        Batch {
            seq: self.seq,
            tokens: self.tokens.repeat(times),
            targets: self.targets.repeat(times),
            doc_start: self.doc_start.as_ref().map(|starts| starts.repeat(times)),
        }
    }

    /// Words from a small recurrence, so that every row differs; row `r` counts about `r`-dependent parts of
    /// its targets, the last of every four rows only one.
    pub(crate) fn synthetic(rows: usize, seq: usize, vocab: usize, documents: bool, salt: usize) -> Batch {
        let word = |row: usize, at: usize| ((row * 31 + at * at * 7 + at * 3 + salt * 13) % vocab) as i32;
        let counts = |row: usize, at: usize| match row % 4 {
            0 => true,
            1 => at < seq / 4,
            2 => at.is_multiple_of(3),
            _ => at == seq / 2,
        };
        let places = || (0..rows).flat_map(|row| (0..seq).map(move |at| (row, at)));
        let target = |(row, at)| if counts(row, at) { word(row, at + 1) } else { IGNORED };
        // Every other row is two documents.
        let doc_start = |(row, at): (usize, usize)| if row % 2 == 1 && at >= seq / 3 { seq / 3 } else { 0 };
        Batch {
            seq,
            tokens: places().map(|(row, at)| word(row, at)).collect(),
            targets: places().map(target).collect(),
            doc_start: documents.then(|| places().map(|place| doc_start(place) as i32).collect()),
        }
    }

    /// The inputs of each micro-batch of `rows` rows.
    pub(crate) fn micro_batches(&self, rows: usize) -> impl Iterator<Item = Vec<(&'static str, Data<'_>)>> {
        let (positions, targets) = (rows * self.seq, rows * self.targets.len() / self.rows());
        (0..self.tokens.len()).step_by(positions).map(move |start| {
            let (part, first_target) = (start..start + positions, start / positions * targets);
            let mut inputs = vec![
                ("tokens", Data::I32(&self.tokens[part.clone()])),
                // One target for each position, or one for each row.
                ("targets", Data::I32(&self.targets[first_target..first_target + targets])),
            ];
            if let Some(doc_start) = &self.doc_start {
                inputs.push(("doc_start", Data::I32(&doc_start[part])));
            }
            inputs
        })
    }

    /// One step over all rows in the run's micro-batches; returns their losses and the norm.
    pub(crate) fn step(&self, run: &mut Run, lr: f32) -> (Vec<f32>, f32) {
        let rows = run.micro_batch();
        let mut step = run.begin(lr, self.valid() as u64);
        let losses = self.backward(&mut step, rows);
        (losses, step.finish().unwrap().grad_norm)
    }

    /// Runs forward and backward over all rows in micro-batches of `rows` rows; returns their losses.
    pub(crate) fn backward(&self, step: &mut Step<'_>, rows: usize) -> Vec<f32> {
        self.micro_batches(rows).map(|inputs| step.backward(&inputs).unwrap()).collect()
    }
}

/// Takes a step over each of the batches, after an evaluation of its first micro-batch if `evaluates` is set. Returns every
/// loss and norm and the final weights, as bits.
pub(crate) fn train_to_bits(
    run: &mut Run,
    batches: impl IntoIterator<Item = Batch>,
    evaluates: bool,
) -> Vec<u32> {
    let mut numbers = Vec::new();
    for batch in batches {
        if evaluates {
            let held_out = batch.micro_batches(run.micro_batch()).next().unwrap();
            numbers.push(run.evaluate(&held_out).unwrap());
        }
        let (losses, norm) = batch.step(run, 1e-2);
        numbers.extend(losses);
        numbers.push(norm);
    }
    for name in parameters(run) {
        numbers.extend(run.state(&name).unwrap());
    }
    numbers.into_iter().map(f32::to_bits).collect()
}

/// All state but gradients, as bits.
pub(crate) fn lasting_bits(run: &Run) -> Vec<u32> {
    let lasting = run.plan().states.iter().filter(|range| range.purpose != Purpose::Gradients);
    lasting.flat_map(|range| run.state(&range.name).unwrap()).map(f32::to_bits).collect()
}

impl Golden {
    pub(crate) fn batch(&self) -> Batch {
        Batch {
            seq: GOLDEN_SEQ,
            tokens: self.ints("batch.tokens").unwrap(),
            targets: self.ints("batch.targets").unwrap(),
            doc_start: self.ints("batch.doc_start"),
        }
    }

    /// Gives a run the weights from before the first step.
    pub(crate) fn load_weights(&self, run: &mut Run) {
        for name in parameters(run) {
            run.set_state(&name, &self.floats(&name)).unwrap();
        }
    }
}

/// The largest difference between two tensors, relative to the largest element expected.
pub(crate) fn distance(got: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    absolute_distance(got, expected) / largest
}

/// The largest difference between two tensors.
pub(crate) fn absolute_distance(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).fold(0.0, |most, (a, b)| {
        let difference = (a - b).abs();
        // NaN must not lose against a number.
        if difference.is_nan() { f32::NAN } else { most.max(difference) }
    })
}

/// Splits off the biases of attention keys, whose gradient is 0 but for rounding: adding a constant to all
/// keys does not change a softmax. Returns the ordinary elements and those.
pub(crate) fn without_key_bias(name: &str, values: &[f32]) -> (Vec<f32>, Vec<f32>) {
    if name.ends_with("key.bias") {
        return (Vec::new(), values.to_vec());
    }
    if name.ends_with("c_attn.bias") {
        let third = values.len() / 3;
        return ([&values[..third], &values[2 * third..]].concat(), values[third..2 * third].to_vec());
    }
    (values.to_vec(), Vec::new())
}
