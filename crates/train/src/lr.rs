//! The learning rate of a step: linear warmup, then constant, linear to zero or cosine to zero.
//!
//! A pure function of the step, so that a resumed run needs no state. The curves are those of
//! transformers' `get_{constant,linear,cosine}_schedule_with_warmup`, with three differences:
//!
//! - Steps count from 1. Step `s` of the warmup has `s / warmup_steps` of the peak, where transformers has
//!   `(s − 1) / warmup_steps` and so spends its first step at rate 0; after the warmup the rates are the
//!   same. No step that is taken has rate 0: a decay reaches it one step after the last.
//! - Past `max_steps` the cosine stays at 0 instead of rising again.
//! - With `warmup_steps ≥ max_steps` every step is a warmup step.
//!
//! Absent: cosine cycles, restarts, inverse square root. Whether the numbers make sense (a finite peak)
//! is for the configuration to check.

use std::fmt;
use std::str::FromStr;

/// What the rate does after the warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Stays at the peak.
    Constant,
    /// Falls on a straight line that would reach 0 one step after `max_steps`.
    Linear,
    /// Falls on half a cosine that would reach 0 one step after `max_steps`.
    Cosine,
}

/// The rule that gives every step its learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lr {
    /// The highest rate, reached at step `warmup_steps`.
    pub peak: f64,
    /// Steps of linear rise; 0 for none.
    pub warmup_steps: u64,
    /// The last step; a decaying rate is 0 from the next one on.
    pub max_steps: u64,
    /// What happens between the two.
    pub decay: Decay,
}

impl Lr {
    /// The rate of `step`, which counts from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup_steps {
            return self.peak * step as f64 / self.warmup_steps.max(1) as f64;
        }
        let progress = self.progress(step);
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Linear => self.peak * (1.0 - progress),
            Decay::Cosine if progress >= 1.0 => 0.0,
            Decay::Cosine => self.peak * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        }
    }

    /// How much of the decay lies behind `step`: 0 at the first step after the warmup, 1 after `max_steps`.
    fn progress(&self, step: u64) -> f64 {
        let length = self.max_steps.saturating_sub(self.warmup_steps).max(1);
        ((step - 1 - self.warmup_steps) as f64 / length as f64).min(1.0)
    }
}

/// A name that is no decay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDecay(String);

impl fmt::Display for UnknownDecay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no learning-rate decay; choose constant, linear or cosine", self.0)
    }
}

impl std::error::Error for UnknownDecay {}

impl FromStr for Decay {
    type Err = UnknownDecay;

    fn from_str(name: &str) -> Result<Decay, UnknownDecay> {
        match name {
            "constant" => Ok(Decay::Constant),
            "linear" => Ok(Decay::Linear),
            "cosine" => Ok(Decay::Cosine),
            _ => Err(UnknownDecay(name.to_owned())),
        }
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Decay::Constant => "constant",
            Decay::Linear => "linear",
            Decay::Cosine => "cosine",
        })
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "values that binary fractions hold exactly")]
mod tests {
    use super::*;

    const ALL: [Decay; 3] = [Decay::Constant, Decay::Linear, Decay::Cosine];

    #[test]
    fn warmup_rises_linearly_to_the_peak_for_every_decay() {
        for decay in ALL {
            let lr = Lr { peak: 2.0, warmup_steps: 4, max_steps: 12, decay };
            assert_eq!([1, 2, 3, 4].map(|step| lr.at(step)), [0.5, 1.0, 1.5, 2.0], "{decay}");
        }
    }

    #[test]
    fn without_warmup_the_decay_begins_at_the_first_step() {
        assert_values(Decay::Constant, 0, 4, &[3.0, 3.0, 3.0, 3.0]);
        assert_values(Decay::Linear, 0, 4, &[3.0, 2.25, 1.5, 0.75, 0.0]);
    }

    #[test]
    fn linear_and_cosine_match_values_computed_by_hand() {
        // Two steps of warmup, then progress 0, 1/4, 1/2, 3/4, 1; cos(π/4) = √½.
        let root = std::f64::consts::FRAC_1_SQRT_2;
        assert_values(Decay::Linear, 2, 6, &[1.5, 3.0, 3.0, 2.25, 1.5, 0.75, 0.0]);
        assert_values(
            Decay::Cosine,
            2,
            6,
            &[1.5, 3.0, 3.0, 1.5 * (1.0 + root), 1.5, 1.5 * (1.0 - root), 0.0],
        );
    }

    #[test]
    fn past_the_end_a_decayed_rate_stays_zero_and_a_constant_one_stays_at_the_peak() {
        let last_and_later = |decay| {
            let lr = Lr { peak: 3.0, warmup_steps: 2, max_steps: 6, decay };
            [7, 8, 10, 1000].map(|step| lr.at(step))
        };
        assert_eq!(last_and_later(Decay::Linear), [0.0; 4]);
        assert_eq!(last_and_later(Decay::Cosine), [0.0; 4]);
        assert_eq!(last_and_later(Decay::Constant), [3.0; 4]);
    }

    #[test]
    fn a_warmup_longer_than_the_run_never_reaches_the_peak() {
        let lr = Lr { peak: 1.0, warmup_steps: 10, max_steps: 5, decay: Decay::Cosine };
        assert_eq!(lr.at(5), 0.5);
    }

    #[test]
    fn names_are_read_back_and_an_unknown_one_lists_the_choices() {
        for decay in ALL {
            assert_eq!(decay.to_string().parse(), Ok(decay));
        }
        let fault = "cosin".parse::<Decay>().unwrap_err().to_string();
        assert_eq!(fault, "`cosin` is no learning-rate decay; choose constant, linear or cosine");
    }

    fn assert_values(decay: Decay, warmup_steps: u64, max_steps: u64, expected: &[f64]) {
        let lr = Lr { peak: 3.0, warmup_steps, max_steps, decay };
        for (step, want) in (1..).zip(expected) {
            let got = lr.at(step);
            assert!((got - want).abs() < 1e-12, "{decay} at {step}: {got}, expected {want}");
        }
    }
}
