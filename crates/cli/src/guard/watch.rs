//! A limit on time: reading that keeps the processor busy without progress is ended.
//!
//! Only seconds in which the process was at work count. A slow disk, or a machine that sleeps or is busy with other
//! work, is no fault of a file.
#![allow(unsafe_code, reason = "the processor time of the process is asked for in libc")]

use std::thread;
use std::time::Duration;

use plimsoll::training::reading;

use super::ending::{self, Why};
use super::is_raised;

/// How often the watch looks.
const EVERY: Duration = Duration::from_millis(500);
/// Work that leads nowhere, until it is ended. The slowest honest step (reading a vocabulary of 256,000 words on a slow
/// machine) takes about 3 s.
const PATIENCE: Duration = Duration::from_secs(15);
/// Enough for reading two numbers and for the last error message.
const STACK: usize = 64 << 10;

/// Starts the watch. Without a thread for it, files are read unwatched.
pub(super) fn start() {
    let watch = || {
        let mut lost = Lost::default();
        loop {
            thread::sleep(EVERY);
            if lost.after(is_raised(), reading::steps(), worked()) >= PATIENCE {
                ending::end(&Why::Stuck);
            }
        }
    };
    let _ = thread::Builder::new().name("watch".into()).stack_size(STACK).spawn(watch);
}

/// Processor time that was spent since reading last advanced.
#[derive(Default)]
struct Lost {
    time: Duration,
    steps: u64,
    worked: Duration,
}

impl Lost {
    /// Compares the counters with the last reading; returns the time lost so far.
    fn after(&mut self, raised: bool, steps: u64, worked: Duration) -> Duration {
        // The process's clock adds up its threads; a period counts once, however many threads worked.
        let share = worked.saturating_sub(self.worked).min(EVERY);
        let gets_on = !raised || steps != self.steps;
        self.time = if gets_on { Duration::ZERO } else { self.time + share };
        (self.steps, self.worked) = (steps, worked);
        self.time
    }
}

/// The processor time of this process.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a `timespec`, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_leads_nowhere_is_lost() {
        let (mut lost, ms) = (Lost::default(), Duration::from_millis);
        assert_eq!(lost.after(true, 1, ms(400)), ms(0), "a step was made");
        assert_eq!(lost.after(true, 1, ms(800)), ms(400));
        assert_eq!(lost.after(true, 1, ms(800)), ms(400), "nobody worked");
        assert_eq!(lost.after(true, 1, ms(9800)), ms(900), "sixteen threads are no sixteen times the loss");
        assert_eq!(lost.after(false, 1, ms(9900)), ms(0), "nothing is read");
        assert_eq!(lost.after(true, 1, ms(9950)), ms(50));
        assert_eq!(lost.after(true, 2, ms(9990)), ms(0));
    }
}
