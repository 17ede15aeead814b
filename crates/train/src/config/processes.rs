//! Settings of a rank that is a process among several of its machine.

use super::Config;
use crate::settings::RawConfig;

impl Config {
    /// The same settings for a rank that is one of `here` processes on this machine, which share its threads and, where no
    /// budget is stated, its memory.
    #[must_use]
    pub fn among_processes(mut self, here: usize, raw: &RawConfig) -> Config {
        let threads = plimsoll_devices::threads(raw.threads.unwrap_or(0));
        self.options.threads = (threads / here.max(1)).max(1);
        self.options.processes_here = Some(here.max(1));
        self
    }
}
