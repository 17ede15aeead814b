//! Events of a run, and their listeners.

use std::fmt;
use std::path::Path;

use plimsoll_exec::Device;

use super::experts::ExpertRecord;
use super::records::{EndRecord, EvaluationRecord, StepRecord};
use super::window::Window;
use crate::checkpoint::Checkpoints;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A step was taken.
    Step(&'a StepRecord),
    /// The mean over the steps since the last record; the learning rate and the gradient norm of the last.
    Log(&'a StepRecord),
    /// The load of experts in the last of those steps, for a model that has experts.
    Experts(&'a ExpertRecord),
    /// The model was evaluated.
    Evaluation(&'a EvaluationRecord),
    /// A checkpoint is about to be written: listeners that keep a record of the run write it to the disk first.
    Saving,
    /// A checkpoint was written to this folder.
    Saved(&'a Path),
    /// Something unexpected for the user happened, and the run continues.
    Note(&'a str),
    /// The run is over.
    End(&'a EndRecord),
}

/// A listener to the events of a run.
pub trait Listener<E> {
    /// Takes note of an event.
    ///
    /// # Errors
    ///
    /// A fault of the listener; the run is saved and ends.
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E>;

    /// The name of an output that the run can do without: after its first failure the listener gets no more events, the
    /// others get a note, and the run continues. `None` if a failure ends the run.
    fn dispensable(&self) -> Option<&'static str> {
        None
    }
}

impl<E, F: FnMut(&Event<'_>) -> Result<(), E>> Listener<E> for F {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        self(event)
    }
}

/// The listeners, and the first fault of one. The others still get later events, such as the save.
pub(super) struct Told<'a, 'b, E> {
    pub(super) listeners: &'a mut [&'b mut dyn Listener<E>],
    /// Failed listeners that the run does not need.
    silent: Vec<bool>,
    pub(super) failed: Option<E>,
}

impl<'a, 'b, E: fmt::Display> Told<'a, 'b, E> {
    pub(super) fn new(listeners: &'a mut [&'b mut dyn Listener<E>]) -> Told<'a, 'b, E> {
        Told { silent: vec![false; listeners.len()], listeners, failed: None }
    }

    pub(super) fn tell(&mut self, event: Event<'_>) {
        let mut notes = Vec::new();
        for (listener, silent) in
            self.listeners.iter_mut().zip(&mut self.silent).filter(|(_, silent)| !**silent)
        {
            let Err(fault) = listener.hear(&event) else { continue };
            if let Some(what) = listener.dispensable() {
                *silent = true;
                notes.push(format!("{what} from here on is not written ({fault}); the run goes on"));
            } else {
                self.failed = self.failed.take().or(Some(fault));
            }
        }
        // Each note has silenced a listener, so the recursion ends.
        for note in notes {
            self.tell(Event::Note(&note));
        }
    }

    /// Reports the steps since the last record; says whether there were any.
    pub(super) fn tell_window(&mut self, window: &mut Window) -> bool {
        let record = std::mem::take(window).record();
        if let Some(record) = &record {
            self.tell(Event::Log(record));
        }
        record.is_some()
    }

    pub(super) fn tell_notes(&mut self, checkpoints: &Checkpoints) {
        for note in checkpoints.take_notes() {
            self.tell(Event::Note(&note));
        }
    }

    pub(super) fn tell_remarks(&mut self, device: &dyn Device) {
        for remark in device.take_remarks() {
            self.tell(Event::Note(&remark));
        }
    }

    pub(super) fn result(&mut self) -> Result<(), E> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TrainError;

    #[test]
    fn output_that_a_run_can_do_without_falls_silent_at_its_first_failure_and_the_others_hear_a_note() {
        struct Full(u32);
        impl Listener<TrainError> for Full {
            fn hear(&mut self, _: &Event<'_>) -> Result<(), TrainError> {
                self.0 += 1;
                Err(TrainError::Output("no space".into()))
            }
            fn dispensable(&self) -> Option<&'static str> {
                Some("the log")
            }
        }
        let mut heard = Vec::new();
        let mut full = Full(0);
        let mut others = |event: &Event<'_>| {
            heard.push(format!("{event:?}"));
            Ok(())
        };
        let mut listeners: [&mut dyn Listener<TrainError>; 2] = [&mut full, &mut others];
        let mut told = Told::new(&mut listeners);
        told.tell(Event::Saving);
        told.tell(Event::Saving);
        assert!(told.result().is_ok());
        let note = "Note(\"the log from here on is not written (no space); the run goes on\")";
        assert_eq!(heard, ["Saving", note, "Saving"]);
        assert_eq!(full.0, 1, "it hears no more");
    }
}
