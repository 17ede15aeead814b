//! The settings of optimizers that keep moments of a projected gradient, as transformers' `optim_args` writes them:
//! `rank=128,update_proj_gap=200,scale=1.0,scale_type=channel`.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::name_hash;
use plimsoll_graph::op::{Apollo, ApolloScaling, Muon, Stored};
use plimsoll_graph::{Op, Shape};

use super::Optimizer;

/// Larger ranks than any matrix has.
const LARGEST_RANK: usize = 1 << 16;

/// How gradients are projected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// Columns of the projection.
    pub rank: usize,
    /// Steps after which another projection is drawn.
    pub gap: usize,
    /// Steps are multiplied by the root of this number.
    pub scale: f32,
    /// How many scaling factors a matrix has.
    pub scaling: ApolloScaling,
}

impl Default for LowRank {
    /// The values that transformers passes where none are stated.
    fn default() -> LowRank {
        LowRank { rank: 128, gap: 200, scale: 1.0, scaling: ApolloScaling::Channel }
    }
}

impl LowRank {
    /// Refuses values with which no step means anything.
    ///
    /// # Errors
    ///
    /// A sentence that begins with `optim_args`.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=LARGEST_RANK).contains(&self.rank) {
            return Err(format!("optim_args has a rank of {}; it must be 1 to {LARGEST_RANK}", self.rank));
        }
        if !(1..=u32::MAX as usize).contains(&self.gap) {
            return Err(format!("optim_args has an update_proj_gap of {}; it must be at least 1", self.gap));
        }
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return Err(format!("optim_args has a scale of {}; it must be a number above 0", self.scale));
        }
        Ok(())
    }

    /// Takes one `name=value`.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = || format!("optim_args has {name}={value}, which is no number that {name} can be");
        match (name, value) {
            ("rank", _) => self.rank = value.parse().map_err(|_| wrong())?,
            ("update_proj_gap", _) => self.gap = value.parse().map_err(|_| wrong())?,
            ("scale", _) => self.scale = value.parse().map_err(|_| wrong())?,
            ("scale_type", "channel") => self.scaling = ApolloScaling::Channel,
            ("scale_type", "tensor") => self.scaling = ApolloScaling::Tensor,
            ("proj", "random") | ("proj_type", "std") => {}
            ("scale_type", _) => return Err(only(name, value, "channel and tensor")),
            ("proj", _) => return Err(only(name, value, "random")),
            ("proj_type", _) => return Err(only(name, value, "std")),
            _ => {
                let known = "rank, update_proj_gap, scale, scale_type, proj and proj_type";
                return Err(format!("optim_args has no `{name}`; known are {known}"));
            }
        }
        Ok(())
    }
}

fn only(name: &str, value: &str, known: &str) -> String {
    format!("optim_args has {name}={value}; known is {known}")
}

impl FromStr for LowRank {
    type Err = String;

    fn from_str(text: &str) -> Result<LowRank, String> {
        let mut form = LowRank::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("optim_args is a list of name=value with commas between, got `{pair}`"));
            };
            form.set(name.trim(), value.trim())?;
        }
        form.check().map(|()| form)
    }
}

impl fmt::Display for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LowRank { rank, gap, scale, scaling } = self;
        let scaling = match scaling {
            ApolloScaling::Channel => "channel",
            ApolloScaling::Tensor => "tensor",
        };
        write!(f, "rank={rank},update_proj_gap={gap},scale={scale},scale_type={scaling}")
    }
}

impl Optimizer {
    /// The update of a matrix whose gradient is projected; none where the projection would have as many numbers as the
    /// gradient.
    pub(super) fn projected(&self, name: &str, shape: Shape, stored: Stored) -> Option<Op> {
        let [_, shorter, _] = Muon::extents(shape);
        let LowRank { rank, gap, scale, scaling } = self.low_rank;
        let Optimizer { beta1, beta2, epsilon, weight_decay, .. } = *self;
        let stream = name_hash(&format!("{name}/projection"));
        let rates = Apollo { rank, gap, scale, scaling, beta1, beta2, epsilon, weight_decay, stream, stored };
        (rank < shorter).then_some(Op::Apollo(rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_transformers_and_print_as_they_are_read() {
        let mini: LowRank =
            "rank=1, proj=random, scale_type=tensor, scale=128, update_proj_gap=50".parse().unwrap();
        assert_eq!(mini, LowRank { rank: 1, gap: 50, scale: 128.0, scaling: ApolloScaling::Tensor });
        assert_eq!(mini.to_string().parse(), Ok(mini));
        assert_eq!("".parse(), Ok(LowRank::default()));
        for (text, said) in [
            ("rank", "optim_args is a list of name=value with commas between, got `rank`"),
            ("rank=0", "optim_args has a rank of 0; it must be 1 to 65536"),
            ("rank=few", "optim_args has rank=few, which is no number that rank can be"),
            ("scale=-1", "optim_args has a scale of -1; it must be a number above 0"),
            ("update_proj_gap=0", "optim_args has an update_proj_gap of 0; it must be at least 1"),
            ("proj=svd", "optim_args has proj=svd; known is random"),
            ("scale_type=row", "optim_args has scale_type=row; known is channel and tensor"),
            (
                "ranks=4",
                "optim_args has no `ranks`; known are rank, update_proj_gap, scale, scale_type, proj and proj_type",
            ),
        ] {
            assert_eq!(text.parse::<LowRank>(), Err(said.to_owned()));
        }
    }
}
