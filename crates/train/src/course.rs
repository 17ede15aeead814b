//! The course of a run: steps, records, evaluations, and when it ends. Whoever wants to know listens.
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
//! Whoever asks for the end has seconds, not an evaluation's time: the checkpoint comes at once, and the evaluation that
//! was due is made up for when the run goes on.
//!
//! Whatever shows a loss shows that of a `Log`: so the number of a step is the same on the console, in files and on the
//! page. A `Step` says how far the run is.
//!
//! A bar, a file of metrics, TensorBoard and a page are listeners alike: the loop knows none of them. The first
//! that fails ends the run with its error, and so does a step or an evaluation, but not before the run is saved.

use std::path::Path;

use crate::checkpoint::{Best, Checkpoints, Progress as Kept};
use crate::error::TrainError;
use crate::metrics::{BestRecord, EndRecord, EvaluationRecord, StepRecord};
use crate::trainer::Trainer;
use crate::validation::Validation;

/// When to give up on a run that no longer gets better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// Evaluations in a row without a better loss.
    pub patience: u64,
    /// By how much a loss must be better to count.
    pub threshold: f64,
}

/// What a run does besides its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// The last step, counted from the beginning of the run.
    pub steps: u64,
    /// The step after which to pause, if that is not the last. A pause leaves no trace in the rest of the run: an
    /// evaluation that is not due is not made there either.
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

impl Course {
    /// The last step before the run pauses or is over.
    pub fn end(&self) -> u64 {
        self.pause.map_or(self.steps, |pause| pause.min(self.steps))
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A step was taken.
    Step(&'a StepRecord),
    /// The mean over the steps since the last record; the learning rate and the gradient norm of the last.
    Log(&'a StepRecord),
    /// The model was evaluated.
    Evaluation(&'a EvaluationRecord),
    /// A checkpoint is about to be written: whoever keeps a record of the run brings it to the disk first.
    Saving,
    /// A checkpoint was written to this folder.
    Saved(&'a Path),
    /// Something went otherwise than its user will expect, and the run goes on.
    Note(&'a str),
    /// The run is over.
    End(&'a EndRecord),
}

/// Someone who is told.
pub trait Listener<E> {
    /// Takes note of an event.
    ///
    /// # Errors
    ///
    /// Whatever the listener cannot do; the run is saved and ends.
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E>;
}

impl<E, F: FnMut(&Event<'_>) -> Result<(), E>> Listener<E> for F {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        self(event)
    }
}

impl Trainer {
    /// Takes the steps of a course and tells the listeners, in their order.
    ///
    /// # Errors
    ///
    /// The first fault of a step, an evaluation or a listener. The run is saved before it ends with one, if its state is of
    /// one step: as a regular checkpoint, or where the next step was not finite under a name of its own.
    pub fn train<E: From<TrainError>>(
        &mut self,
        course: &Course,
        mut validation: Option<&mut Validation>,
        checkpoints: Option<&Checkpoints>,
        listeners: &mut [&mut dyn Listener<E>],
    ) -> Result<EndRecord, E> {
        let mut told = Told { listeners, failed: None };
        let (mut window, mut progress) = (Window::default(), Progress::of(self.reached()));
        let keeping = course.save_steps.map(|every| every.max(1)).zip(checkpoints);
        let mut saved = self.run().steps();
        if progress.owes_evaluation
            && let Some(validation) = validation.as_deref_mut()
            && let Some(evaluated) = self.evaluate_unless_stopped(validation)?
        {
            let before = progress.best_step();
            told.tell(Event::Evaluation(&progress.judge(evaluated, course.stopping)));
            self.reach(progress.kept(self.reached().loss));
            // As the step before the interruption would have done.
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
                    self.rescue(&fault, keeping.filter(|_| self.run().steps() != saved), window, &mut told);
                    return Err(fault.into());
                }
            };
            let step = record.step;
            window.add(&record);
            told.tell(Event::Step(&record));
            over = step >= course.end() || self.is_asked_to_end(&told);
            let regular = |every: u64| step.is_multiple_of(every.max(1));
            if over || regular(course.logging_steps) {
                told.tell_window(&mut window);
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
            self.reach(progress.kept(Some(record.loss)));
            if over {
                told.tell_window(&mut window);
            }
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

    /// Whether the run is to end for another reason than its course. A listener that failed ends it like a signal: at once,
    /// but saved.
    fn is_asked_to_end<E>(&self, told: &Told<'_, '_, E>) -> bool {
        self.stop_requested() || told.failed.is_some()
    }

    /// Saves the run. The checkpoint of the step `surpassed` goes if it was there for being the best alone.
    fn keep<E>(
        &self,
        (every, checkpoints): (u64, &Checkpoints),
        surpassed: Option<u64>,
        told: &mut Told<'_, '_, E>,
    ) -> Result<(), TrainError> {
        let surpasses = surpassed.filter(|surpassed| !surpassed.is_multiple_of(every));
        told.tell(Event::Saving);
        let saved = self.save(checkpoints, &Kept { surpasses, ..self.reached().clone() })?;
        told.tell(Event::Saved(&saved));
        if let Some(surpassed) = surpasses {
            checkpoints.forget(surpassed, self.facts());
        }
        told.tell_notes(checkpoints);
        Ok(())
    }

    /// Saves a run that ends with the fault of a step, as the step before left it.
    fn rescue<E>(
        &self,
        fault: &TrainError,
        keeping: Option<(u64, &Checkpoints)>,
        mut window: Window,
        told: &mut Told<'_, '_, E>,
    ) {
        told.tell_window(&mut window);
        let Some((_, checkpoints)) = keeping.filter(|_| self.run().is_whole()) else { return };
        told.tell(Event::Saving);
        let not_finite = matches!(fault, TrainError::NotFinite { .. });
        let saved = if not_finite {
            self.save_last_finite(checkpoints, self.reached())
        } else {
            self.save(checkpoints, self.reached())
        };
        match saved {
            Ok(saved) if not_finite => {
                told.tell(Event::Saved(&saved));
                told.tell(Event::Note(&format!(
                    "the same settings lead to the same numbers: go on with `--resume {}` and a lower --learning-rate or \
                     --max-grad-norm; --resume latest goes back to the checkpoint before",
                    saved.display()
                )));
            }
            Ok(saved) => told.tell(Event::Saved(&saved)),
            Err(also) => told.tell(Event::Note(&format!("steps since the last checkpoint are lost: {also}"))),
        }
        told.tell_notes(checkpoints);
    }
}

/// The listeners, and the first fault of one. The others hear on: what is saved then is worth telling.
struct Told<'a, 'b, E> {
    listeners: &'a mut [&'b mut dyn Listener<E>],
    failed: Option<E>,
}

impl<E> Told<'_, '_, E> {
    fn tell(&mut self, event: Event<'_>) {
        for listener in self.listeners.iter_mut() {
            let heard = listener.hear(&event);
            self.failed = self.failed.take().or(heard.err());
        }
    }

    /// Tells of the steps since the last record, if there are any.
    fn tell_window(&mut self, window: &mut Window) {
        if let Some(record) = std::mem::take(window).record() {
            self.tell(Event::Log(&record));
        }
    }

    fn tell_notes(&mut self, checkpoints: &Checkpoints) {
        for note in checkpoints.take_notes() {
            self.tell(Event::Note(&note));
        }
    }

    fn result(&mut self) -> Result<(), E> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Steps since the last record.
#[derive(Clone, Copy, Default)]
struct Window {
    last: Option<StepRecord>,
    steps: u64,
    loss: f64,
    tokens: u64,
    valid_tokens: u64,
    seconds: f64,
}

impl Window {
    fn add(&mut self, record: &StepRecord) {
        self.last = Some(*record);
        self.steps += 1;
        self.loss += record.loss;
        self.tokens += record.tokens;
        self.valid_tokens += record.valid_tokens;
        self.seconds += record.tokens as f64 / record.tokens_per_second;
    }

    /// One record for all its steps, if there are any. A single step is its own record, to the bit.
    fn record(self) -> Option<StepRecord> {
        let last = self.last?;
        if self.steps == 1 {
            return Some(last);
        }
        Some(StepRecord {
            loss: self.loss / self.steps as f64,
            mean_over: self.steps,
            tokens: self.tokens,
            valid_tokens: self.valid_tokens,
            tokens_per_second: self.tokens as f64 / self.seconds,
            ..last
        })
    }
}

/// The best evaluation so far, and how many came after it.
#[derive(Default)]
struct Progress {
    best: Option<Best>,
    /// What a loss must undercut to end the wait: that of the last one that did.
    mark: Option<f64>,
    waited: u64,
    /// The last evaluation.
    last: Option<f64>,
    /// Whether one was due and put off.
    owes_evaluation: bool,
}

impl Progress {
    /// Goes on from what a checkpoint knew.
    fn of(kept: &Kept) -> Progress {
        Progress {
            best: kept.best,
            mark: kept.mark,
            waited: kept.without_gain,
            last: kept.metric,
            owes_evaluation: kept.owes_evaluation,
        }
    }

    fn best_step(&self) -> Option<u64> {
        self.best.map(|best| best.step)
    }

    /// What a checkpoint is to know.
    fn kept(&self, loss: Option<f64>) -> Kept {
        Kept {
            loss,
            metric: self.last,
            best: self.best,
            mark: self.mark,
            without_gain: self.waited,
            owes_evaluation: self.owes_evaluation,
            surpasses: None,
        }
    }

    /// Says whether the record is the best so far, and counts it.
    fn judge(&mut self, record: EvaluationRecord, stopping: Option<EarlyStopping>) -> EvaluationRecord {
        let threshold = stopping.map_or(0.0, |stopping| stopping.threshold);
        self.last = Some(record.eval_loss);
        self.owes_evaluation = false;
        // A loss that is not a number is never better, not even than none: nothing could undercut it.
        let better = |than: Option<f64>| {
            record.eval_loss.is_finite() && than.is_none_or(|than| record.eval_loss < than)
        };
        let best = better(self.best.map(|best| best.metric));
        if better(self.mark.map(|mark| mark - threshold)) {
            self.mark = Some(record.eval_loss);
            self.waited = 0;
        } else {
            self.waited += 1;
        }
        if best {
            self.best = Some(Best { step: record.step, metric: record.eval_loss });
        }
        EvaluationRecord { best, ..record }
    }

    fn exhausted(&self, stopping: Option<EarlyStopping>) -> bool {
        stopping.is_some_and(|stopping| self.waited >= stopping.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(step: u64, eval_loss: f64) -> EvaluationRecord {
        EvaluationRecord {
            step,
            eval_loss,
            eval_perplexity: None,
            eval_accuracy: None,
            eval_f1: None,
            valid_tokens: 1,
            seconds: 1.0,
            best: false,
        }
    }

    #[test]
    fn patience_counts_evaluations_that_are_not_better_by_the_threshold() {
        let stopping = Some(EarlyStopping { patience: 2, threshold: 0.1 });
        let mut progress = Progress::default();
        // 1.95 is the best so far, but not by enough to wait anew.
        let said: Vec<(bool, bool)> = [2.0, 1.95, 1.7, 1.75, 1.65]
            .iter()
            .zip(1..)
            .map(|(&loss, step)| {
                (progress.judge(evaluated(step, loss), stopping).best, progress.exhausted(stopping))
            })
            .collect();
        assert_eq!(said, [(true, false), (true, false), (true, false), (false, false), (true, true)]);
        assert_eq!(progress.best_step(), Some(5));
    }

    #[test]
    fn without_patience_nothing_is_exhausted_and_the_first_of_equals_is_best() {
        let mut progress = Progress::default();
        let best: Vec<bool> =
            [2.0, 1.0, 1.0, 3.0].iter().map(|&loss| progress.judge(evaluated(1, loss), None).best).collect();
        assert_eq!(best, [true, true, false, false]);
        assert!(!progress.exhausted(None));
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_never_the_best_and_the_first_number_after_it_is() {
        let stopping = Some(EarlyStopping { patience: 2, threshold: 0.0 });
        let mut progress = Progress::default();
        let mut judged = |step, loss| {
            let best = progress.judge(evaluated(step, loss), stopping).best;
            (best, progress.best_step(), progress.exhausted(stopping))
        };
        assert_eq!(judged(1, f64::NAN), (false, None, false));
        assert_eq!(judged(2, 3.0), (true, Some(2), false));
        assert_eq!(judged(3, f64::NAN), (false, Some(2), false));
        assert_eq!(judged(4, f64::INFINITY), (false, Some(2), true));
    }

    #[test]
    fn a_record_of_several_steps_is_their_mean() {
        let step = |step, loss, tokens_per_second| StepRecord {
            step,
            epoch: None,
            loss,
            mean_over: 1,
            grad_norm: loss,
            lr: 0.1,
            tokens: 100,
            valid_tokens: 90,
            tokens_per_second,
        };
        let mut window = Window::default();
        let (first, last) = (step(1, 2.0, 100.0), step(2, 1.0, 50.0));
        window.add(&first);
        window.add(&last);
        let record = window.record().unwrap();
        let expected = StepRecord {
            loss: 1.5,
            mean_over: 2,
            tokens: 200,
            valid_tokens: 180,
            tokens_per_second: 200.0 / 3.0,
            ..last
        };
        assert_eq!(record, expected);
    }
}
