//! The ranks of a job other than rank 0: threads of this process, each with a device, an arena and data of its own.
//!
//! Rank 0 is the session itself. The others start with its plan, receive its state, and take the steps that it tells of. They
//! open the data again, because each reads its own rows.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use plimsoll_exec::{Communicator, Device, LIMIT, thread_ranks};

use crate::config::Config;
use crate::data::{Batches, Source};
use crate::error::TrainError;
use crate::planning::Planned;
use crate::run::Run;
use crate::trainer::{Lr, Trainer, dismiss};

/// Threads that follow rank 0. Dropped, it tells them of the end and waits for them.
#[derive(Debug)]
pub(super) struct OtherRanks {
    /// Rank 0's end.
    world: Arc<dyn Communicator>,
    threads: Vec<JoinHandle<()>>,
}

impl OtherRanks {
    /// The ends of all ranks, which rank 0's device has joined; none for a run alone.
    pub(super) fn world(
        config: &Config,
        device: &mut dyn Device,
    ) -> Result<Vec<Arc<dyn Communicator>>, TrainError> {
        if config.options.ranks < 2 {
            return Ok(Vec::new());
        }
        let world = thread_ranks(config.options.ranks, LIMIT)?;
        device.join(Arc::clone(&world[0]))?;
        Ok(world)
    }

    /// Starts a thread for every rank but the first.
    pub(super) fn start(
        config: &Config,
        planned: &Planned,
        world: Vec<Arc<dyn Communicator>>,
    ) -> Result<Option<OtherRanks>, TrainError> {
        let mut ends = world.into_iter();
        let Some(first) = ends.next() else { return Ok(None) };
        let mut ranks = OtherRanks { world: first, threads: Vec::new() };
        for end in ends {
            let source = config.clone().open_data(&mut |_| ())?.train;
            let device = config.options.plain_device()?;
            let follower = Follower { config: config.clone(), planned: planned.clone(), source, device, end };
            let name = format!("plimsoll-follow-{}", follower.end.rank());
            let thread = thread::Builder::new().name(name).spawn(move || follower.run());
            let refused = |error| TrainError::Output(format!("cannot start a thread for a rank: {error}"));
            ranks.threads.push(thread.map_err(refused)?);
        }
        Ok(Some(ranks))
    }
}

impl OtherRanks {
    /// The number of ranks besides rank 0.
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        // Ranks in the middle of a step, which rank 0 did not end, find out by this word that it will not come.
        let _ = dismiss(&*self.world);
        self.world.leave("the run is over");
        for thread in self.threads.drain(..) {
            // Whatever ended it was the error of rank 0 too.
            let _ = thread.join();
        }
    }
}

/// Everything that one rank begins with.
struct Follower {
    config: Config,
    planned: Planned,
    source: Source,
    device: Box<dyn Device>,
    end: Arc<dyn Communicator>,
}

impl Follower {
    fn run(self) {
        let Follower { config, planned, source, device, end } = self;
        let started = Run::start_rank(device, planned, config.options.seed, &end);
        let result = started.and_then(|run| {
            let batches = Batches::new(source, config.options.global_batch as u64, run.micro_batch());
            let lr: Lr = config.lr(batches.steps_per_epoch())?;
            let mut trainer = Trainer::new(run, batches, lr);
            let followed = trainer.share_state().and_then(|()| trainer.follow());
            // Before the trainer is dropped, so that the others hear this reason first.
            followed.inspect_err(|error| end.leave(&error.to_string()))
        });
        if let Err(error) = result {
            end.leave(&error.to_string());
        }
    }
}
