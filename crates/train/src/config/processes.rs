//! Settings of a rank that is a process among several of its machine.

use super::Config;
use crate::error::TrainError;
use crate::settings::RawConfig;

/// The place of a process among those that a launcher has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessPlace {
    /// Processes on this machine.
    pub here: usize,
    /// The number of this process among them, by which it takes its GPU.
    pub rank_here: usize,
}

impl Config {
    /// As [`check`](Self::check), for a rank that is one of several processes. Those of a machine share its threads and, where
    /// no budget is stated, its memory; each has a GPU of its own, if they run on GPUs.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_process(raw: &RawConfig, place: ProcessPlace) -> Result<Config, TrainError> {
        Config::checked(raw, Some(place))
    }

    /// The settings of all ranks, completed by the place of this one.
    pub(super) fn placed(mut self, place: ProcessPlace, raw: &RawConfig) -> Config {
        let threads = plimsoll_devices::threads(raw.threads.unwrap_or(0));
        let here = place.here.max(1);
        self.options.threads = (threads / here).max(1);
        self.options.processes_here = Some(here);
        self.options.rank_here = place.rank_here;
        self
    }
}
