//! The end of a run whose step failed: if all its state is of one step it is saved, and a note says what is on the disk
//! and how to continue.
//!
//! The numbers of a step follow from the weights before it and its batch. So a step that was not finite fails again
//! after `last-finite-N`, whatever the learning rate: only other steps before it help, from an earlier checkpoint or
//! from the beginning.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::Trainer;
use super::events::{Event, Told};
use crate::checkpoint::{Checkpoints, EvaluationState};
use crate::error::TrainError;

impl Trainer {
    /// Saves a run that ends with a failed step, in the state before that step, unless that is `saved` already.
    pub(super) fn rescue<E: fmt::Display>(
        &self,
        fault: &TrainError,
        checkpoints: Option<&Checkpoints>,
        saved: u64,
        told: &mut Told<'_, '_, E>,
    ) {
        let Some(checkpoints) = checkpoints else { return };
        if let TrainError::PartlyUpdated { step } = fault {
            told.tell(Event::Note(&torn(*step, newest_before(checkpoints, *step))));
        }
        if !self.run().is_whole() {
            return;
        }
        let steps = self.run().steps();
        let kept = (steps != saved).then(|| self.save_rescued(fault, checkpoints, told)).flatten();
        if fault.is_not_finite() {
            let before = newest_before(checkpoints, steps).map(|before| {
                let newest = steps != saved;
                // A run cannot resume from an earlier checkpoint in a folder that has a later one.
                let path = || format!("{} --output-dir NEW", checkpoints.path(before).display());
                if newest { "latest".to_owned() } else { path() }
            });
            let note = match steps {
                0 => AT_ONCE.to_owned(),
                _ => not_finite(kept.as_deref(), before.as_deref(), self.facts()),
            };
            told.tell(Event::Note(&note));
        }
        told.tell_notes(checkpoints);
    }

    /// Saves the state and reports where. Returns `None` if saving failed, or if the state is saved as a regular
    /// checkpoint.
    fn save_rescued<E: fmt::Display>(
        &self,
        fault: &TrainError,
        checkpoints: &Checkpoints,
        told: &mut Told<'_, '_, E>,
    ) -> Option<PathBuf> {
        told.tell(Event::Saving);
        let not_finite = fault.is_not_finite();
        // The records of all steps are written by now.
        let reached = EvaluationState { unrecorded: None, ..self.reached().clone() };
        let saved = if not_finite {
            self.save_last_finite(checkpoints, &reached)
        } else {
            self.save(checkpoints, &reached)
        };
        match saved {
            Ok(saved) => {
                told.tell(Event::Saved(&saved));
                not_finite.then_some(saved)
            }
            Err(also) => {
                let also = also.with_flags();
                told.tell(Event::Note(&format!("steps since the last checkpoint are lost: {also}")));
                None
            }
        }
    }
}

/// The note of a run whose first step is not finite, which no setting of the optimizer can change.
const AT_ONCE: &str = "no step was taken before it: a weight of the model is not finite or far too large, or the data is at fault";

/// The newest regular checkpoint of an earlier step.
fn newest_before(checkpoints: &Checkpoints, step: u64) -> Option<u64> {
    checkpoints.newest_before(step).ok().flatten()
}

/// The note of a run whose step updated only some of the weights.
fn torn(step: u64, before: Option<u64>) -> String {
    if step == 1 {
        return "no step was taken before it, so nothing is lost".into();
    }
    match before {
        Some(before) if before + 1 == step => {
            format!("checkpoint-{before} has the weights before step {step}")
        }
        Some(before) => format!(
            "nothing was saved after checkpoint-{before}, the last on the disk; `--resume latest --stop-after {}` repeats the \
             steps behind it to the bit and saves the weights before step {step}",
            step - 1
        ),
        None => format!(
            "no checkpoint is on the disk; the same command with `--stop-after {} --output-dir NEW` repeats the steps to the bit and \
             saves the weights before step {step}, and `--update separate` or a smaller --save-steps keeps them the next time",
            step - 1
        ),
    }
}

/// The note of a run whose next step is not finite: `kept` holds its state, and `before` is the name of an earlier
/// checkpoint for `--resume`.
fn not_finite(kept: Option<&Path>, before: Option<&str>, facts: &BTreeMap<String, String>) -> String {
    let holds = kept
        .map_or_else(String::new, |kept| format!("; the weights before the step are in {}", kept.display()));
    let advice = advice(facts);
    match before {
        Some(before) => format!(
            "the same weights and data lead to the same numbers: go back with `--resume {before}` and {advice}{holds}"
        ),
        None => format!(
            "the same weights and data lead to the same numbers, and no earlier checkpoint is on the disk: begin again with \
             {advice}{holds}"
        ),
    }
}

/// Settings that keep weights from growing, as far as this run has not set them already.
fn advice(facts: &BTreeMap<String, String>) -> String {
    match facts.get("max_grad_norm").and_then(|norm| norm.parse::<f64>().ok()) {
        Some(norm) if norm > 0.0 => format!("a lower --learning-rate or a --max-grad-norm below {norm}"),
        Some(_) => {
            "a lower --learning-rate or a limit on the gradient norm, such as --max-grad-norm 1".into()
        }
        None => "a lower --learning-rate".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(norm: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("max_grad_norm".to_owned(), norm.to_owned())])
    }

    #[test]
    fn advice_fits_the_settings_of_the_run() {
        assert_eq!(advice(&facts("0.5")), "a lower --learning-rate or a --max-grad-norm below 0.5");
        assert!(advice(&facts("0")).ends_with("such as --max-grad-norm 1"));
        assert_eq!(advice(&BTreeMap::new()), "a lower --learning-rate");
    }

    #[test]
    fn only_a_checkpoint_that_is_there_is_named() {
        let note = not_finite(Some(Path::new("out/last-finite-7")), Some("latest"), &facts("0"));
        assert!(
            note.contains("`--resume latest` and a lower") && note.ends_with("are in out/last-finite-7"),
            "{note}"
        );
        let none = not_finite(None, None, &facts("0"));
        assert!(
            none.contains("begin again") && !none.contains("--resume") && !none.contains("are in"),
            "{none}"
        );
        assert!(torn(9, Some(4)).contains("`--resume latest --stop-after 8`"));
        assert_eq!(torn(9, Some(8)), "checkpoint-8 has the weights before step 9");
        assert!(!torn(9, None).contains("--resume"));
        assert_eq!(torn(1, None), "no step was taken before it, so nothing is lost");
    }
}
