//! Output that is no part of a run's state: records on standard output, TensorBoard's files, the progress bar. Where the run
//! is kept, the first failure of one is noted, and the run goes on without it.

use plimsoll::training::course::{Event, Listener};

use crate::commands::train::say;
use crate::exit::{self, Failure};

/// A listener that the run can do without.
pub(crate) struct Dispensable<'a> {
    listener: &'a mut dyn Listener<Failure>,
    /// Name of the output, for the note.
    what: &'static str,
    failed: bool,
}

impl<'a> Dispensable<'a> {
    pub(crate) fn new(what: &'static str, listener: &'a mut dyn Listener<Failure>) -> Dispensable<'a> {
        Dispensable { listener, what, failed: false }
    }
}

impl Listener<Failure> for Dispensable<'_> {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        if self.failed {
            return Ok(());
        }
        match self.listener.hear(event) {
            Err(failure) if exit::goes_on_unheard() => {
                self.failed = true;
                let why = match failure {
                    Failure::Unread => "nobody reads it any more".to_owned(),
                    other => other.to_string(),
                };
                say(&format!("note: {} from here on is not written ({why}); the run goes on\n", self.what))
            }
            heard => heard,
        }
    }
}
