//! The step loop: data in, one optimizer step at a time, records out.
//!
//! The caller owns the clock's presentation (a progress bar, a file); the trainer only measures.

use std::time::Instant;

use plimsoll_exec::{Data, Device};

use crate::data::{Batches, Rows};
use crate::error::TrainError;
use crate::lr::Lr;
use crate::memory;
use crate::metrics::{EndRecord, StepRecord};
use crate::run::Run;

/// A run that feeds itself.
#[derive(Debug)]
pub struct Trainer<D: Device> {
    run: Run<D>,
    batches: Batches,
    lr: Lr,
    /// Whether the model keeps documents of one row apart.
    documents: bool,
    tokens: Vec<i32>,
    targets: Vec<i32>,
    doc_start: Vec<i32>,
    seconds: f64,
    positions: u64,
}

impl<D: Device> Trainer<D> {
    /// A trainer of `run` on `batches`, which must have the run's micro-batch.
    pub fn new(run: Run<D>, batches: Batches, lr: Lr, documents: bool) -> Trainer<D> {
        let positions = run.micro_batch() * batches.source().seq_len();
        let memory = || vec![0; positions];
        Trainer {
            run,
            batches,
            lr,
            documents,
            tokens: memory(),
            targets: memory(),
            doc_start: memory(),
            seconds: 0.0,
            positions: 0,
        }
    }

    /// One optimizer step on the next global batch. At the end of an epoch that batch is what is left,
    /// with a divisor of its own.
    ///
    /// # Errors
    ///
    /// When the data cannot be read, or the loss or the gradient is not finite.
    pub fn step(&mut self) -> Result<StepRecord, TrainError> {
        let begin = Instant::now();
        let step = self.run.steps() + 1;
        let group = self.batches.next_group()?;
        let scale = [1.0 / group.valid_tokens.max(1) as f32];
        let lr = self.lr.at(step);
        self.run.begin(lr as f32);
        let mut loss = 0.0;
        for which in 0..group.micro_batches {
            let (tokens, targets, doc_start) =
                (&mut self.tokens[..], &mut self.targets[..], &mut self.doc_start[..]);
            self.batches.read(&group, which, Rows { tokens, targets, doc_start })?;
            let inputs = [
                ("tokens", Data::I32(&self.tokens)),
                ("targets", Data::I32(&self.targets)),
                ("scale", Data::F32(&scale)),
                ("doc_start", Data::I32(&self.doc_start)),
            ];
            let used = if self.documents { &inputs[..] } else { &inputs[..3] };
            loss += f64::from(self.run.backward(used)?);
        }
        let grad_norm = f64::from(self.run.step(lr as f32)?);
        let tokens = group.sequences * self.batches.source().seq_len() as u64;
        let seconds = begin.elapsed().as_secs_f64();
        self.seconds += seconds;
        self.positions += tokens;
        let tokens_per_second = tokens as f64 / seconds;
        Ok(StepRecord {
            step,
            loss,
            grad_norm,
            lr,
            tokens,
            valid_tokens: group.valid_tokens,
            tokens_per_second,
        })
    }

    /// What the run came to.
    ///
    /// # Errors
    ///
    /// When the process's memory cannot be read.
    pub fn end(&self) -> Result<EndRecord, TrainError> {
        Ok(EndRecord {
            planned_peak_bytes: self.run.plan().arena_bytes,
            measured_peak_bytes: self.run.engine().measured_peak(),
            process_peak_bytes: memory::process()?.peak,
            tokens_per_second: self.positions as f64 / self.seconds.max(f64::MIN_POSITIVE),
        })
    }

    /// The run inside.
    pub fn run(&self) -> &Run<D> {
        &self.run
    }

    /// The run inside, to generate with.
    pub fn run_mut(&mut self) -> &mut Run<D> {
        &mut self.run
    }
}
