//! Prints a line during long silences, so that a working process does not look as if it hangs.
//!
//! Work that people wait for, such as planning, gets a line after a second, and then ever more seldom, in a terminal
//! too. All other work gets one at least once a minute outside a terminal: one step, evaluation or checkpoint may take
//! longer. The line reports progress and no other figures, since records have those. Work that follows other work
//! inherits its silence, and so does a process that starts anew: a minute is counted from the last line that anything
//! printed.
//!
//! [`Silence`] decides, by the times it is given; a thread only waits and writes.

use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::table;

/// The longest silence, unless a test asks for a shorter one: a minute less the time that it takes to wake up on a busy
/// machine.
pub(crate) const LONGEST: Duration = Duration::from_secs(55);
/// How long work that the user waits for may take before its first line.
const SHORT: Duration = Duration::from_secs(1);

/// Work that has no name.
const AT_WORK: &str = "at work";

/// The current work, when it began, and when the last line was printed. Times are counted from the start.
struct Silence {
    work: Option<(String, Duration)>,
    spoke: Duration,
    /// When the next line is due.
    due: Duration,
    /// Time from any line to the next.
    patience: Duration,
    /// The longest such time.
    longest: Duration,
}

impl Silence {
    /// Work without a name, just after a line.
    const fn new() -> Silence {
        Silence {
            work: Some((String::new(), Duration::ZERO)),
            spoke: Duration::ZERO,
            due: LONGEST,
            patience: LONGEST,
            longest: LONGEST,
        }
    }

    /// Time from `now` until a line may be due; `None` if no work is announced.
    fn wait(&self, now: Duration) -> Option<Duration> {
        self.work.is_some().then(|| self.due.saturating_sub(now))
    }

    /// The line that is due at `now`; the next one waits twice as long.
    fn line(&mut self, now: Duration) -> Option<String> {
        let (what, begun) = self.work.as_ref()?;
        if now < self.due {
            return None;
        }
        let line = format!("{what}, {} so far\n", table::duration(now.saturating_sub(*begun).as_secs_f64()));
        self.patience = self.longest.min(2 * self.patience);
        self.spoke(now);
        Some(line)
    }

    /// Notes that a line was printed at `now`.
    fn spoke(&mut self, now: Duration) {
        (self.spoke, self.due) = (now, now + self.patience);
    }

    /// The work `what` begins. The silence of the work before it counts; time in which none was announced does not.
    fn begin(&mut self, now: Duration, what: String, patience: Duration) {
        if self.work.is_none() {
            self.spoke = now;
        }
        self.work = Some((what, now));
        self.patience = patience.min(self.longest);
        self.due = (now + self.patience).min(self.spoke + self.longest);
    }
}

struct Heartbeat {
    /// The clock's start, once the thread runs.
    state: Mutex<(Silence, Option<Instant>)>,
    changed: Condvar,
}

static HEARTBEAT: Heartbeat =
    Heartbeat { state: Mutex::new((Silence::new(), None)), changed: Condvar::new() };

impl Heartbeat {
    fn state(&self) -> MutexGuard<'_, (Silence, Option<Instant>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits and writes, for as long as the process lives.
    fn beat(&self) {
        let mut state = self.state();
        loop {
            let now = state.1.map_or(Duration::ZERO, |start| start.elapsed());
            if let Some(line) = state.0.line(now) {
                // A closed output has no waiting reader.
                let _ = io::stderr().lock().write_all(line.as_bytes());
            }
            state = match state.0.wait(now) {
                Some(wait) => {
                    self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn change(&self, change: impl FnOnce(&mut Silence, Duration)) {
        let mut state = self.state();
        let start = *state.1.get_or_insert_with(Instant::now);
        change(&mut state.0, start.elapsed());
        drop(state);
        self.changed.notify_one();
    }
}

/// Begins to listen, `silent` after the last line of the process that this one continues. To be called before the
/// budget is divided: the thread takes some of the memory.
pub(crate) fn start(silent: Duration, longest: Duration) {
    let mut state = HEARTBEAT.state();
    state.1 = Instant::now().checked_sub(silent);
    state.0.longest = longest;
    drop(state);
    at_work();
    // Without the thread there are no heartbeats, but the program can continue.
    let _ = thread::Builder::new().name("heartbeat".into()).stack_size(64 << 10).spawn(|| HEARTBEAT.beat());
}

/// The user waits for work that lasts until this is dropped.
pub(crate) struct Waiting;

/// The work `what` begins, and the user waits for it.
pub(crate) fn waiting_for(what: &str) -> Waiting {
    HEARTBEAT.change(|silence, now| silence.begin(now, what.to_owned(), SHORT));
    Waiting
}

impl Drop for Waiting {
    fn drop(&mut self) {
        at_work();
    }
}

/// The work `what` begins, which may take hours. In a terminal it has a bar or needs none.
pub(crate) fn at_length(what: String) {
    let terminal = io::stderr().is_terminal();
    HEARTBEAT.change(|silence, now| {
        silence.begin(now, what, LONGEST);
        if terminal {
            silence.work = None;
        }
    });
}

/// No work is announced from now on.
pub(crate) fn at_work() {
    at_length(AT_WORK.into());
}

/// The work continues and has reached `what`.
pub(crate) fn come_to(what: String) {
    HEARTBEAT.change(|silence, _| {
        if let Some(work) = &mut silence.work {
            work.0 = what;
        }
    });
}

/// Something else has been printed.
pub(crate) fn spoke() {
    HEARTBEAT.change(Silence::spoke);
}

/// Time since the last line.
pub(crate) fn silent_for() -> Duration {
    let state = HEARTBEAT.state();
    state.1.map_or(Duration::ZERO, |start| start.elapsed()).saturating_sub(state.0.spoke)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `silence` until `end`, where the work itself prints something at the seconds `said`. Returns the times of
    /// all output, and the lines.
    fn heard(silence: &mut Silence, end: u64, said: &[u64]) -> (Vec<u64>, Vec<String>) {
        let (mut times, mut lines, mut now) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut said = said.iter().map(|&second| Duration::from_secs(second)).peekable();
        while now < Duration::from_secs(end) {
            let due = now + silence.wait(now).unwrap();
            now = said.next_if(|&said| said <= due).inspect(|&said| silence.spoke(said)).unwrap_or(due);
            lines.extend(silence.line(now));
            times.push(now.as_secs());
        }
        (times, lines)
    }

    #[test]
    fn a_run_is_never_silent_for_more_than_a_minute_however_long_its_steps_are() {
        let often: Vec<u64> = (1..1000).collect();
        for said in [&[][..], &[3, 70, 71, 500], &[54, 109, 3000], &often] {
            let mut silence = Silence::new();
            silence.begin(Duration::ZERO, "12 of 100 steps are done".into(), LONGEST);
            let (times, lines) = heard(&mut silence, 3600, said);
            let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(times[0] <= 60 && longest <= 60, "{said:?}: {times:?}");
            assert!(lines[0].starts_with("12 of 100 steps are done, "), "{lines:?}");
        }
    }

    #[test]
    fn a_run_that_says_enough_is_not_interrupted() {
        let mut silence = Silence::new();
        silence.begin(Duration::ZERO, "12 of 100 steps are done".into(), LONGEST);
        let often: Vec<u64> = (1..200).map(|n| 20 * n).collect();
        assert_eq!(heard(&mut silence, 3600, &often).1, Vec::<String>::new());
    }

    #[test]
    fn work_that_follows_other_work_inherits_its_silence_and_so_does_a_process_that_starts_anew() {
        let second = Duration::from_secs;
        let mut silence = Silence::new();
        silence.begin(Duration::ZERO, "at work".into(), LONGEST);
        silence.begin(second(30), "0 of 100 steps are done".into(), LONGEST);
        silence.begin(second(50), "at work".into(), LONGEST);
        assert_eq!(silence.wait(second(50)), Some(second(5)));
        assert_eq!(silence.line(second(55)).as_deref(), Some("at work, 5.0 s so far\n"));
        silence.begin(second(109), "planning".into(), SHORT);
        assert_eq!(silence.wait(second(109)), Some(second(1)));
        // In a terminal there are times without announced work. Work that begins later does not inherit that silence.
        silence.work = None;
        silence.begin(second(999), "planning".into(), SHORT);
        assert_eq!(silence.wait(second(999)), Some(second(1)));
        // The clock of a process that starts anew begins with the last line of the one before.
        let mut silence = Silence::new();
        silence.begin(second(40), "at work".into(), LONGEST);
        assert_eq!(silence.wait(second(40)), Some(second(15)));
    }

    #[test]
    fn what_people_wait_for_is_told_after_a_second_and_then_ever_more_seldom() {
        let mut silence = Silence::new();
        silence.begin(Duration::ZERO, "planning".into(), SHORT);
        let (times, lines) = heard(&mut silence, 300, &[]);
        assert_eq!(times, [1, 3, 7, 15, 31, 63, 118, 173, 228, 283, 338]);
        assert_eq!(lines[1], "planning, 3.0 s so far\n");
        assert_eq!(lines[5], "planning, 1 min 3 s so far\n");
        silence.work = None;
        assert_eq!((silence.wait(Duration::ZERO), silence.line(Duration::from_secs(999))), (None, None));
    }
}
