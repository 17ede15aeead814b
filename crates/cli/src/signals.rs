//! Ctrl-C and termination. Before the first step a signal ends the program with a sentence and the usual code. Later the
//! first signal ends the run after its step and saves it, and the second one ends the run at once.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::exit::Failure;

/// Signals while a run is being prepared.
pub(crate) struct Preparing {
    /// The switch that ends the run, once there is a run.
    stop: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl Preparing {
    /// Handles signals from here on. A thread waits for them, since work such as planning or reading weights checks no
    /// switch. `undo` removes the files that the program has made so far.
    pub(crate) fn begin(undo: impl FnOnce() + Send + 'static) -> Result<Preparing, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| unheard(&error))?;
        let stop = Arc::new(OnceLock::<Arc<AtomicBool>>::new());
        let run = Arc::clone(&stop);
        let mut undo = Some(undo);
        let wait = move || {
            for signal in signals.forever() {
                match run.get() {
                    None => {
                        if let Some(undo) = undo.take() {
                            undo();
                        }
                        end(signal);
                    }
                    Some(stop) if !stop.swap(true, Ordering::Relaxed) => {}
                    Some(_) => low_level::exit(128 + signal),
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into()).stack_size(256 << 10);
        thread.spawn(wait).map_err(|error| unheard(&error))?;
        Ok(Preparing { stop })
    }

    /// From here on the first signal sets `stop`, and the second ends the program.
    pub(crate) fn train(self, stop: Arc<AtomicBool>) {
        let _ = self.stop.set(stop);
    }
}

fn unheard(error: &io::Error) -> Failure {
    Failure::Other(format!("signals cannot be heard: {error}"))
}

/// Reports that the run has not begun, and ends the program as a signal does.
fn end(signal: i32) {
    let mut err = io::stderr().lock();
    let line = if err.is_terminal() { "\n" } else { "" };
    let how = if signal == SIGINT { "interrupted" } else { "terminated" };
    let _ = writeln!(
        err,
        "{line}{how} before the first step; nothing was trained, and nothing saved before was changed"
    );
    low_level::exit(128 + signal);
}
