//! The course of a run: steps, records, evaluations, and when it ends. Listeners are informed of each.
//!
//! ```text
//! step 1  step 2  step 3  step 4  …  last step
//! Step    Step    Step    Step       Step         every step, for a progress bar
//!         Log             Log        Log          the mean since the last, to be shown (logging_steps 2)
//!                         Evaluation Evaluation   the validation loss (eval_steps 4), and at the end
//!                 Saved   Saved      Saved        a checkpoint (save_steps 3), after the best evaluation, and at the end
//!                                    End
//! ```
//!
//! After a request to stop only seconds may be left, not enough for an evaluation: the checkpoint is written at once,
//! and the evaluation that was due is made when the run resumes.
//!
//! Every display of a loss shows that of a `Log`, so the number of a step is the same on the console, in files and on
//! the page. A `Step` reports progress.
//!
//! A bar, a file of metrics, TensorBoard and a page are all listeners: the loop knows none of them. The first that
//! fails ends the run with its error, and so does a step or an evaluation, but not before the run is saved.

use std::fmt;

use super::Trainer;
use super::best_so_far::{BestSoFar, EarlyStopping};
use super::events::{Event, Listener, Told};
use super::records::{BestRecord, EndRecord};
use super::validation::ValidationSet;
use super::window::Window;
use crate::checkpoint::{Checkpoints, EvaluationState};
use crate::error::TrainError;

/// Tasks of a run besides its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainLoop {
    /// The last step, counted from the beginning of the run.
    pub steps: u64,
    /// The step after which to pause, if that is not the last. A pause leaves no trace in the rest of the run: it adds
    /// no evaluation either.
    pub pause: Option<u64>,
    /// Steps between two records.
    pub logging_steps: u64,
    /// Steps between two evaluations.
    pub eval_steps: Option<u64>,
    /// When to end before the last step.
    pub stopping: Option<EarlyStopping>,
    /// Steps between two checkpoints.
    pub save_steps: Option<u64>,
}

impl TrainLoop {
    /// The last step before the run pauses or is over.
    pub fn end(&self) -> u64 {
        self.pause.map_or(self.steps, |pause| pause.min(self.steps))
    }
}

impl Trainer {
    /// Takes the steps of a course and informs the listeners, in their order.
    ///
    /// # Errors
    ///
    /// The first fault of a step, an evaluation or a listener. If all state is of one step, the run is saved before it
    /// ends: as a regular checkpoint, or under a name of its own if the next step was not finite.
    pub fn train<E: From<TrainError> + fmt::Display>(
        &mut self,
        course: &TrainLoop,
        mut validation: Option<&mut ValidationSet>,
        checkpoints: Option<&Checkpoints>,
        listeners: &mut [&mut dyn Listener<E>],
    ) -> Result<EndRecord, E> {
        let mut told = Told::new(listeners);
        let mut window = Window::of(self.reached().unrecorded);
        let mut progress = BestSoFar::of(self.reached());
        let keeping = course.save_steps.map(|every| every.max(1)).zip(checkpoints);
        let mut saved = self.run().steps();
        if progress.owes_evaluation
            && let Some(validation) = validation.as_deref_mut()
            && let Some(evaluated) = self.evaluate_unless_stopped(validation)?
        {
            let before = progress.best_step();
            told.tell(Event::Evaluation(&progress.judge(evaluated, course.stopping)));
            self.reach(EvaluationState { unrecorded: window.kept(), ..progress.kept(self.reached().loss) });
            // Without the interruption this would have been saved right after the step, so it is saved here.
            if let Some(keeping) = keeping.filter(|_| progress.best_step() != before) {
                self.keep(keeping, before, &mut told)?;
            }
        }
        let mut over = self.run().steps() >= course.end()
            || progress.exhausted(course.stopping)
            || self.is_asked_to_end(&told);
        while !over {
            let record = match self.step() {
                Ok(record) => record,
                Err(fault) => {
                    told.tell_window(&mut window);
                    self.rescue(&fault, keeping.map(|(_, checkpoints)| checkpoints), saved, &mut told);
                    return Err(fault.into());
                }
            };
            let step = record.step;
            window.add(&record);
            told.tell(Event::Step(&record));
            told.tell_remarks(self.run().engine().device());
            over = step >= course.end() || self.is_asked_to_end(&told);
            let regular = |every: u64| step.is_multiple_of(every.max(1));
            if over || regular(course.logging_steps) {
                self.log(&mut window, &mut told);
            }
            let before = progress.best_step();
            let mut unevaluated = None;
            if let (Some(every), Some(validation)) = (course.eval_steps, validation.as_deref_mut())
                && (step >= course.steps || regular(every))
            {
                let evaluated =
                    if told.failed.is_some() { Ok(None) } else { self.evaluate_unless_stopped(validation) };
                match evaluated {
                    Ok(Some(evaluated)) => {
                        told.tell(Event::Evaluation(&progress.judge(evaluated, course.stopping)));
                    }
                    Ok(None) => progress.owes_evaluation = true,
                    Err(fault) => (progress.owes_evaluation, unevaluated) = (true, Some(fault)),
                }
                let exhausted = !progress.owes_evaluation && progress.exhausted(course.stopping);
                over |= exhausted || unevaluated.is_some() || self.is_asked_to_end(&told);
            }
            if over {
                self.log(&mut window, &mut told);
            }
            self.reach(EvaluationState { unrecorded: window.kept(), ..progress.kept(Some(record.loss)) });
            let best = progress.best_step() != before;
            if let Some(keeping) = keeping.filter(|(every, _)| over || best || regular(*every)) {
                self.keep(keeping, before.filter(|_| best), &mut told)?;
                saved = step;
            }
            if let Some(fault) = unevaluated {
                return Err(fault.into());
            }
        }
        told.result()?;
        let stopped_early = self.run().steps() < course.end() && !self.stop_requested();
        let end = EndRecord { best: progress.best.map(BestRecord::from), stopped_early, ..self.end()? };
        told.tell(Event::End(&end));
        told.result()?;
        Ok(end)
    }

    /// Reports the steps since the last record, and the load of experts in the last of them.
    fn log<E: fmt::Display>(&self, window: &mut Window, told: &mut Told<'_, '_, E>) {
        if !told.tell_window(window) {
            return;
        }
        match self.experts() {
            Ok(Some(record)) => told.tell(Event::Experts(&record)),
            Ok(None) => {}
            // The step itself is sound; if the device is not, the next one says so.
            Err(fault) => told.tell(Event::Note(&format!("the load of experts is unknown: {fault}"))),
        }
    }

    /// Whether the run is to end before its last step. A listener that failed ends it like a signal: at once, but
    /// saved.
    fn is_asked_to_end<E>(&self, told: &Told<'_, '_, E>) -> bool {
        self.stop_requested() || told.failed.is_some()
    }

    /// Saves the run. The checkpoint of the step `surpassed` is removed if it was kept only as the best.
    fn keep<E: fmt::Display>(
        &self,
        (every, checkpoints): (u64, &Checkpoints),
        surpassed: Option<u64>,
        told: &mut Told<'_, '_, E>,
    ) -> Result<(), TrainError> {
        let surpasses = surpassed.filter(|surpassed| !surpassed.is_multiple_of(every));
        told.tell(Event::Saving);
        let saved = self.save(checkpoints, &EvaluationState { surpasses, ..self.reached().clone() })?;
        told.tell(Event::Saved(&saved));
        if let Some(surpassed) = surpasses {
            checkpoints.forget(surpassed, self.facts());
        }
        told.tell_notes(checkpoints);
        Ok(())
    }
}
