//! Names of the recompute strategies.

use std::fmt;
use std::str::FromStr;

/// Which activations are dropped after the forward pass and recomputed in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// Keep everything: fastest, memory grows with depth.
    None,
    /// Keep the results of matrix products and the inputs of layers, recompute the cheap rest.
    Selective,
    /// Keep the inputs of every √n-th layer.
    Sqrt,
    /// Keep the inputs of every k-th layer.
    Every(usize),
    /// Keep the inputs of every layer.
    Full,
    /// Keep nothing: memory stays constant, time grows with the square of depth.
    Minimal,
    /// Drop the values inside the model's `checkpoint` marks.
    Manual,
    /// The fastest inside the budget, decided for every value of every layer.
    Auto,
}

impl Strategy {
    /// The strategies with a fixed rule, usually fastest first.
    pub const LADDER: [Strategy; 5] =
        [Strategy::None, Strategy::Selective, Strategy::Full, Strategy::Sqrt, Strategy::Minimal];
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::None => f.write_str("none"),
            Strategy::Selective => f.write_str("selective"),
            Strategy::Sqrt => f.write_str("sqrt"),
            Strategy::Every(layers) => write!(f, "every:{layers}"),
            Strategy::Full => f.write_str("full"),
            Strategy::Minimal => f.write_str("minimal"),
            Strategy::Manual => f.write_str("manual"),
            Strategy::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        match text {
            "none" => Ok(Strategy::None),
            "selective" => Ok(Strategy::Selective),
            "sqrt" => Ok(Strategy::Sqrt),
            "full" => Ok(Strategy::Full),
            "minimal" => Ok(Strategy::Minimal),
            "manual" => Ok(Strategy::Manual),
            "auto" => Ok(Strategy::Auto),
            _ => text
                .strip_prefix("every:")
                .and_then(|count| count.parse().ok())
                .filter(|&count| count > 0)
                .map(Strategy::Every)
                .ok_or_else(|| {
                    format!(
                        "unknown recompute strategy `{text}`; \
                         choose auto, none, selective, full, sqrt, every:K (K = 1, 2, …), minimal or manual"
                    )
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_themselves() {
        for strategy in
            Strategy::LADDER.into_iter().chain([Strategy::Every(3), Strategy::Manual, Strategy::Auto])
        {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "every:0".parse::<Strategy>().unwrap_err();
        assert!(error.starts_with("unknown recompute strategy `every:0`; choose auto, none"), "{error}");
    }
}
