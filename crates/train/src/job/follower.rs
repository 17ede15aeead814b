//! One rank that follows rank 0, whether it is a thread or a process.
//!
//! It receives undivided state from rank 0. Of divided state it reads or draws its own part, from the files that rank 0
//! begins with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::{Communicator, Device};

use crate::checkpoint::{read_model, read_optimizer};
use crate::config::Config;
use crate::data::{Batches, Source};
use crate::error::TrainError;
use crate::planning::Planned;
use crate::run::Run;
use crate::trainer::{Lr, Trainer};

/// Everything that one rank begins with.
pub(super) struct Follower {
    pub(super) config: Config,
    pub(super) planned: Planned,
    pub(super) source: Source,
    /// The device, which has joined the other ranks.
    pub(super) device: Box<dyn Device>,
    pub(super) resumed: Option<PathBuf>,
    pub(super) end: Arc<dyn Communicator>,
}

impl Follower {
    /// Takes the steps that rank 0 announces, until it announces the end.
    pub(super) fn run(self) -> Result<(), TrainError> {
        let Follower { config, planned, source, device, resumed, end } = self;
        let started = Run::start_joined(device, planned, config.options.seed, &end);
        let result = started.and_then(|mut run| {
            begin(&config, &mut run, resumed.as_deref())?;
            let batches = Batches::new(source, config.options.global_batch as u64, run.micro_batch());
            let lr: Lr = config.lr(batches.steps_per_epoch())?;
            let mut trainer = Trainer::new(run, batches, lr).with_noise(config.noise(&lr));
            let followed = trainer.share_state().and_then(|()| trainer.follow());
            // Before the trainer is dropped, so that the others get this reason first.
            followed.inspect(|()| end.part()).inspect_err(|error| end.leave(&error.to_string()))
        });
        result.inspect_err(|error| end.leave(&error.to_string()))
    }
}

/// Fills in this rank's part of divided state: of the model's weights, then of the checkpoint that the run goes on from.
fn begin(config: &Config, run: &mut Run, resumed: Option<&Path>) -> Result<(), TrainError> {
    let divides_weights = run.divides_weights();
    if divides_weights {
        config.load(run)?;
    }
    let Some(folder) = resumed.filter(|_| run.divides_state()) else { return Ok(()) };
    if divides_weights {
        read_model(run, folder, &config.form()?)?;
    }
    read_optimizer(run, folder)
}
