//! The ranks of a job other than rank 0: threads of this process, or other processes, each with a device, an arena and data of
//! its own.
//!
//! Rank 0 is the session itself. The others start with its plan, receive its state, and take the steps that it tells of. They
//! open the data again, because each reads its own rows; and the checkpoint, if each keeps its own part of the moments.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use plimsoll_exec::{Communicator, Device, thread_ranks};

use super::follower::Follower;
use super::processes::hand_out;
use crate::config::Config;
use crate::error::TrainError;
use crate::planning::Planned;
use crate::trainer::dismiss;

/// Ranks that follow rank 0. Dropping it ends them, and waits for those that are threads.
#[derive(Debug)]
pub(super) struct OtherRanks {
    /// Rank 0's end.
    world: Arc<dyn Communicator>,
    threads: Vec<JoinHandle<()>>,
}

impl OtherRanks {
    /// The ends of all ranks of this process; none for a run alone. Rank 0's device has joined the first of them. `processes`
    /// is rank 0's end where the others are processes.
    pub(super) fn world(
        config: &Config,
        processes: Option<Arc<dyn Communicator>>,
        device: &mut dyn Device,
    ) -> Result<Vec<Arc<dyn Communicator>>, TrainError> {
        if config.options.rank_links.is_some() {
            return Err(TrainError::Config(
                "--rank-link describes ranks that are not here; leave it out to train, or ask `plan`".into(),
            ));
        }
        let Some(ranks) = config.options.world() else { return Ok(Vec::new()) };
        let world = match processes {
            Some(end) => vec![end],
            None => thread_ranks(ranks, config.rank_limit)?,
        };
        // Other processes join at the same time, and hear why where this one cannot.
        device.join(Arc::clone(&world[0])).inspect_err(|error| world[0].leave(&error.to_string()))?;
        Ok(world)
    }

    /// Starts a thread for every rank but the first; `resumed` is the folder of the checkpoint that the run goes on from.
    pub(super) fn start(
        config: &Config,
        planned: &Planned,
        resumed: Option<&Path>,
        world: Vec<Arc<dyn Communicator>>,
    ) -> Result<Option<OtherRanks>, TrainError> {
        let mut ends = world.into_iter();
        let Some(first) = ends.next() else { return Ok(None) };
        let mut ranks = OtherRanks { world: first, threads: Vec::new() };
        if ranks.world.ranks_in_process() < ranks.world.ranks() {
            hand_out(planned, resumed, &*ranks.world)?;
        }
        for end in ends {
            let source = config.clone().open_data(&mut |_| ())?.train;
            let mut device = config.options.following_device()?;
            device.join(Arc::clone(&end))?;
            let resumed = resumed.map(Path::to_owned);
            let (config, planned) = (config.clone(), planned.clone());
            let follower = Follower { config, planned, source, device, resumed, end };
            let name = format!("plimsoll-follow-{}", follower.end.rank());
            let thread = thread::Builder::new().name(name).spawn(move || drop(follower.run()));
            let refused = |error| TrainError::Output(format!("cannot start a thread for a rank: {error}"));
            ranks.threads.push(thread.map_err(refused)?);
        }
        Ok(Some(ranks))
    }
}

impl OtherRanks {
    /// The number of ranks besides rank 0.
    pub(super) fn count(&self) -> usize {
        self.world.ranks() - 1
    }
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        // If rank 0 did not finish a step, ranks in the middle of it learn by this word that rank 0 will not come.
        if dismiss(&*self.world).is_ok() {
            self.world.part();
        }
        self.world.leave("the run is over");
        for thread in self.threads.drain(..) {
            // If this rank failed, rank 0 has already returned the same error.
            let _ = thread.join();
        }
    }
}
