//! How much of a run's state each rank keeps for itself: the stages of `ZeRO` (Rajbhandari et al., 2020).
//!
//! | stage | divided over ranks |
//! |--:|---|
//! | 0 | nothing: every rank has all weights, gradients and moments |
//! | 1 | moments |
//! | 2 | moments and gradients |
//! | 3 | moments, gradients and weights |

/// The stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ZeroStage {
    /// The lowest that fits into the budget.
    #[default]
    Auto,
    /// Every rank has everything.
    Whole,
    /// Moments are divided.
    Moments,
    /// Moments and gradients are divided.
    Gradients,
    /// Moments, gradients and weights are divided.
    Weights,
}

impl ZeroStage {
    /// The stage, as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            ZeroStage::Auto => "auto",
            ZeroStage::Whole => "0",
            ZeroStage::Moments => "1",
            ZeroStage::Gradients => "2",
            ZeroStage::Weights => "3",
        }
    }

    /// Whether the optimizer's moments are divided over ranks.
    pub fn divides_moments(self) -> bool {
        self >= ZeroStage::Moments
    }

    /// Whether gradients are divided over ranks.
    pub fn divides_gradients(self) -> bool {
        self >= ZeroStage::Gradients
    }

    /// Whether weights are divided over ranks.
    pub fn divides_weights(self) -> bool {
        self >= ZeroStage::Weights
    }
}

impl std::str::FromStr for ZeroStage {
    type Err = String;

    fn from_str(name: &str) -> Result<ZeroStage, String> {
        match name {
            "auto" => Ok(ZeroStage::Auto),
            "0" => Ok(ZeroStage::Whole),
            "1" => Ok(ZeroStage::Moments),
            "2" => Ok(ZeroStage::Gradients),
            "3" => Ok(ZeroStage::Weights),
            _ => Err(format!("--zero-stage is 0, 1, 2, 3 or auto, got `{name}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_divides_what_the_stage_before_divides_and_more() {
        let divided = |name: &str| {
            let stage: ZeroStage = name.parse().unwrap();
            assert_eq!(stage.name(), name);
            [stage.divides_moments(), stage.divides_gradients(), stage.divides_weights()]
        };
        assert_eq!(divided("0"), [false; 3]);
        assert_eq!(divided("1"), [true, false, false]);
        assert_eq!(divided("2"), [true, true, false]);
        assert_eq!(divided("3"), [true; 3]);
        assert!("zero".parse::<ZeroStage>().unwrap_err().contains("got `zero`"));
    }
}
