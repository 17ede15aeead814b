//! Ctrl-C and termination. Before the first step they end the program with a sentence and the usual code; from then on the
//! first ends the run after its step, saved, and the second ends it at once.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::exit::Failure;

/// Signals while a run is being prepared.
pub(crate) struct Preparing {
    /// The switch that ends the run, once there is a run.
    stop: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl Preparing {
    /// Hears signals from here on. A thread waits for them, since work such as planning or reading weights looks at no
    /// switch. `undo` removes what the program made so far.
    pub(crate) fn begin(undo: impl FnOnce() + Send + 'static) -> Result<Preparing, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| unheard(&error))?;
        let stop = Arc::new(OnceLock::<Arc<AtomicBool>>::new());
        let run = Arc::clone(&stop);
        let wait = move || {
            let Some(signal) = signals.forever().next() else { return };
            if let Some(stop) = run.get() {
                // It may have come before the run had a switch.
                stop.store(true, Ordering::Relaxed);
            } else {
                undo();
                end(signal);
            }
        };
        let thread = thread::Builder::new().name("signals".into()).stack_size(256 << 10);
        thread.spawn(wait).map_err(|error| unheard(&error))?;
        Ok(Preparing { stop })
    }

    /// From here on signals set `stop`, and a second one ends the program.
    pub(crate) fn train(self, stop: Arc<AtomicBool>) -> Result<(), Failure> {
        for signal in [SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, 128 + signal, stop.clone())
                .and_then(|_| register(signal, stop.clone()))
                .map_err(|error| unheard(&error))?;
        }
        // Last: until then, the thread ends the program.
        let _ = self.stop.set(stop);
        Ok(())
    }
}

fn unheard(error: &io::Error) -> Failure {
    Failure::Other(format!("signals cannot be heard: {error}"))
}

/// Says that the run has not begun, and ends the program as a signal does.
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
