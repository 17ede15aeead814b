//! A small run that can be saved, interrupted and resumed.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::Path;

use plimsoll_exec::Device;
use plimsoll_model::Architecture;
use plimsoll_plan::Strategy;
use plimsoll_train::checkpoint::{Checkpoint, Checkpoints, EvaluationState};
use plimsoll_train::data::{Batches, Order, Source, Text};
use plimsoll_train::files::{FileError, ModelFormat};
use plimsoll_train::trainer::{Decay, Lr};
use plimsoll_train::{LanguageModel, Options, Run, Trainer, plan_for};

use crate::support::{Size, gpt2, llama, options, start};

/// With dropout, so that a resumed run must also find its random numbers again.
const SIZE: Size = Size { vocab: 259, seq: 16, width: 16, layers: 1, ffn: 32, dropout: 0.1 };
pub(crate) const GLOBAL_BATCH: usize = 4;

/// A trainer at its beginning, on the text at `data`: an epoch is a few dozen steps, the last of them short.
pub(crate) fn trainer(data: &Path, options: &Options) -> Trainer {
    sized(SIZE, data, options)
}

pub(crate) fn sized(size: Size, data: &Path, options: &Options) -> Trainer {
    of(&gpt2(size), size, data, options)
}

/// A trainer of a Llama, whose embedding is not its head.
pub(crate) fn llama_trainer(data: &Path, options: &Options) -> Trainer {
    of(&llama(SIZE), SIZE, data, options)
}

pub(crate) fn of(model: &Architecture, size: Size, data: &Path, options: &Options) -> Trainer {
    of_run(start(model, size.seq, options), size, data, options)
}

/// A trainer of the same model on a device of the caller's.
pub(crate) fn on(device: Box<dyn Device>, data: &Path, options: &Options) -> Trainer {
    let model = LanguageModel { architecture: gpt2(SIZE), seq_len: SIZE.seq, generate: false, lora: None };
    let planned = plan_for(&model, &*device, options).unwrap();
    of_run(Run::start(device, planned, options.seed).unwrap(), SIZE, data, options)
}

fn of_run(run: Run, size: Size, data: &Path, options: &Options) -> Trainer {
    let order = Order::Shuffled { seed: options.seed };
    let text = Text::open(data, size.seq, size.vocab, order).unwrap();
    let batches = Batches::new(Source::Text(text), options.global_batch as u64, run.micro_batch());
    let lr = Lr { peak: 1e-2, warmup_steps: 5, max_steps: 1000, decay: Decay::Cosine };
    Trainer::new(run, batches, lr)
}

pub(crate) fn pinned() -> Options {
    options(GLOBAL_BATCH, 2, Strategy::None, 1)
}

/// Another size of the same family.
pub(crate) const WIDER: Size = Size { width: 32, ..SIZE };
pub(crate) const DEEPER: Size = Size { layers: 2, ..SIZE };

/// Text whose epoch is a few dozen steps.
pub(crate) fn write_text(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("data.txt");
    let lines: Vec<String> = (0..200).map(|n| format!("{n} times {n} is {}. ", n * n)).collect();
    std::fs::write(&path, &lines.concat()[..1900]).unwrap();
    path
}

pub(crate) fn open(folder: &Path, limit: Option<usize>) -> Result<Checkpoints, FileError> {
    let texts = vec![("config.json".to_owned(), "{}\n".to_owned())];
    Checkpoints::open(folder, ModelFormat { texts, ..ModelFormat::default() }, limit)
}

pub(crate) fn latest(checkpoints: &Checkpoints) -> Option<Checkpoint> {
    let found = checkpoints.latest().unwrap();
    assert!(found.broken.is_empty(), "{:?}", found.broken);
    found.checkpoint
}

pub(crate) fn save(trainer: &Trainer, checkpoints: &Checkpoints) -> std::path::PathBuf {
    trainer.save(checkpoints, &EvaluationState::default()).unwrap()
}

/// Bits of all parameters and moments.
pub(crate) fn bits(trainer: &Trainer) -> Vec<(String, Vec<u32>)> {
    let run = trainer.run();
    let kept = run.states().filter(|(name, _)| !name.starts_with("grad."));
    kept.map(|(name, _)| {
        let numbers = run.state(name).unwrap();
        (name.to_owned(), numbers.into_iter().map(f32::to_bits).collect())
    })
    .collect()
}

pub(crate) fn take(trainer: &mut Trainer, steps: u64) {
    for _ in 0..steps {
        trainer.step().unwrap();
    }
}
