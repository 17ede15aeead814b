//! The learning rate of a step: linear warmup, then constant, linear to zero or cosine to zero.
//!
//! A pure function of the step, so that a resumed run needs no state. The curves are those of transformers'
//! `get_scheduler` under the same names, so the first step of a warmup has rate 0 here too: step `s`, counted
//! from 1, has `(s − 1) / warmup_steps` of the peak. One difference lies past the end: transformers' cosine rises
//! again there, and ours stays at 0, as the line does.
//!
//! Absent: cosine cycles, restarts, inverse square root. The configuration checks that the numbers make sense (a finite
//! peak).

use std::fmt;
use std::str::FromStr;

/// The course of the rate, warmup included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Rises, then falls on a straight line that would reach 0 one step after `max_steps`.
    Linear,
    /// Rises, then falls on half a cosine that would reach 0 one step after `max_steps`.
    Cosine,
    /// Is at the peak from the first step on.
    Constant,
    /// Rises, then stays at the peak.
    ConstantWithWarmup,
}

/// The rule that gives every step its learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lr {
    /// The highest rate, reached at step `warmup_steps + 1`.
    pub peak: f64,
    /// Steps of linear rise; 0 for none.
    pub warmup_steps: u64,
    /// The last step; a decaying rate is 0 from the next one on.
    pub max_steps: u64,
    /// The course between the two.
    pub decay: Decay,
}

impl Lr {
    /// The rate of `step`, which counts from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup_steps && self.decay != Decay::Constant {
            return self.peak * (step.saturating_sub(1) as f64 / self.warmup_steps as f64);
        }
        let progress = self.progress(step);
        match self.decay {
            Decay::Constant | Decay::ConstantWithWarmup => self.peak,
            Decay::Linear => self.peak * (1.0 - progress),
            Decay::Cosine if progress >= 1.0 => 0.0,
            Decay::Cosine => self.peak * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        }
    }

    /// How much of the decay is done at `step`: 0 at the first step after the warmup, 1 after `max_steps`.
    fn progress(&self, step: u64) -> f64 {
        let length = self.max_steps.saturating_sub(self.warmup_steps).max(1);
        (step.saturating_sub(1 + self.warmup_steps) as f64 / length as f64).min(1.0)
    }
}

impl Decay {
    const ALL: [Decay; 4] = [Decay::Linear, Decay::Cosine, Decay::Constant, Decay::ConstantWithWarmup];

    fn name(self) -> &'static str {
        match self {
            Decay::Linear => "linear",
            Decay::Cosine => "cosine",
            Decay::Constant => "constant",
            Decay::ConstantWithWarmup => "constant_with_warmup",
        }
    }
}

/// A name that is no decay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDecay(String);

impl fmt::Display for UnknownDecay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Decay::ALL.map(Decay::name).join(", ");
        write!(f, "`{}` is no lr_scheduler_type here; known are {known}", self.0)
    }
}

impl std::error::Error for UnknownDecay {}

impl FromStr for Decay {
    type Err = UnknownDecay;

    fn from_str(name: &str) -> Result<Decay, UnknownDecay> {
        let known = Decay::ALL.into_iter().find(|decay| decay.name() == name);
        known.ok_or_else(|| UnknownDecay(name.to_owned()))
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates that `transformers.get_scheduler(name, …, num_warmup_steps, num_training_steps)` of version 5.22 gave each
    /// step of a run with peak 0.1, as printed by Python.
    const TRANSFORMERS: [(&str, u64, u64, &[f64]); 7] = [
        (
            "linear",
            3,
            10,
            &[
                0.0,
                0.033_333_333_333_333_33,
                0.066_666_666_666_666_67,
                0.1,
                0.085_714_285_714_285_72,
                0.071_428_571_428_571_44,
                0.057_142_857_142_857_14,
                0.042_857_142_857_142_86,
                0.028_571_428_571_428_57,
                0.014_285_714_285_714_285,
            ],
        ),
        (
            "cosine",
            3,
            10,
            &[
                0.0,
                0.033_333_333_333_333_33,
                0.066_666_666_666_666_67,
                0.1,
                0.095_048_443_395_120_96,
                0.081_174_490_092_936_69,
                0.061_126_046_697_815_72,
                0.038_873_953_302_184_29,
                0.018_825_509_907_063_328,
                0.004_951_556_604_879_049,
            ],
        ),
        ("constant", 0, 3, &[0.1, 0.1, 0.1]),
        ("constant_with_warmup", 3, 5, &[0.0, 0.033_333_333_333_333_33, 0.066_666_666_666_666_67, 0.1, 0.1]),
        ("linear", 0, 4, &[0.1, 0.075, 0.05, 0.025]),
        ("cosine", 0, 4, &[0.1, 0.085_355_339_059_327_38, 0.05, 0.014_644_660_940_672_627]),
        ("cosine", 8, 5, &[0.0, 0.0125, 0.025, 0.0375, 0.05]),
    ];

    #[test]
    fn every_step_has_the_rate_that_transformers_gives_it() {
        for (name, warmup_steps, max_steps, expected) in TRANSFORMERS {
            let lr = Lr { peak: 0.1, warmup_steps, max_steps, decay: name.parse().unwrap() };
            for (step, want) in (1..).zip(expected) {
                let got = lr.at(step);
                assert!((got - want).abs() < 1e-15, "{name} {warmup_steps} {step}: {got}, expected {want}");
            }
        }
    }

    #[test]
    fn a_constant_rate_knows_no_warmup() {
        let lr = Lr { peak: 0.1, warmup_steps: 5, max_steps: 10, decay: Decay::Constant };
        assert_eq!(lr.at(1).to_bits(), 0.1f64.to_bits());
    }

    #[test]
    fn past_the_end_a_decayed_rate_stays_zero_and_a_constant_one_stays_at_the_peak() {
        for (decay, rate) in [(Decay::Linear, 0.0), (Decay::Cosine, 0.0), (Decay::ConstantWithWarmup, 3.0)] {
            let lr = Lr { peak: 3.0, warmup_steps: 2, max_steps: 6, decay };
            assert_eq!(
                [7, 8, 10, 1000].map(|step| lr.at(step).to_bits()),
                [f64::to_bits(rate); 4],
                "{decay}"
            );
        }
    }

    #[test]
    fn names_are_read_back_and_an_unknown_one_lists_the_choices() {
        for decay in Decay::ALL {
            assert_eq!(decay.to_string().parse(), Ok(decay));
        }
        let fault = "polynomial".parse::<Decay>().unwrap_err().to_string();
        assert_eq!(
            fault,
            "`polynomial` is no lr_scheduler_type here; known are linear, cosine, constant, constant_with_warmup"
        );
    }
}
