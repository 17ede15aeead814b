//! How much of a run's state each rank keeps for itself: the stages of `ZeRO` (Rajbhandari et al., 2020).
//!
//! | stage | divided over ranks |
//! |--:|---|
//! | 0 | nothing: every rank has all weights, gradients and moments |
//! | 1 | moments |
//! | 2 | moments and gradients |
//!
//! Stage 3, which divides weights too, is refused by name.

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
}

impl ZeroStage {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            ZeroStage::Auto => "auto",
            ZeroStage::Whole => "0",
            ZeroStage::Moments => "1",
            ZeroStage::Gradients => "2",
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
}

impl std::str::FromStr for ZeroStage {
    type Err = String;

    fn from_str(name: &str) -> Result<ZeroStage, String> {
        match name {
            "auto" => Ok(ZeroStage::Auto),
            "0" => Ok(ZeroStage::Whole),
            "1" => Ok(ZeroStage::Moments),
            "2" => Ok(ZeroStage::Gradients),
            "3" => Err("--zero-stage 3 is not there yet; take 2, which divides moments and gradients".into()),
            _ => Err(format!("--zero-stage is 0, 1, 2 or auto, got `{name}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_are_not_there_are_refused_by_name() {
        assert_eq!("1".parse(), Ok(ZeroStage::Moments));
        assert!("3".parse::<ZeroStage>().unwrap_err().starts_with("--zero-stage 3 is not there yet"));
        assert!("zero".parse::<ZeroStage>().unwrap_err().contains("got `zero`"));
    }
}
