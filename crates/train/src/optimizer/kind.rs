//! Rules by which optimizers make a step, under the names that users know.

use std::str::FromStr;

/// Which rule makes a step of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    AdamW,
    /// `AdamW` with moments of eight bits, in blocks of 256.
    AdamW8bit,
    /// Stochastic gradient descent, with momentum where it is not 0.
    Sgd,
    /// Steps along signs of a running mean of gradients.
    Lion,
    /// Lion with a moment of eight bits.
    Lion8bit,
    /// Second moments as means of rows and columns.
    Adafactor,
    /// Orthogonal steps for the matrices inside a model, and `AdamW` for everything else.
    Muon,
    /// `AdamW`'s scaling of gradients, from moments of their random projections, for the matrices inside a model, and
    /// `AdamW` for everything else.
    Apollo,
    /// No gradient: slopes along random directions, from losses at points near the weights.
    Mezo,
    /// No gradient: a population of such losses, of which only the order counts.
    Es,
}

/// The names that users know, and their meaning here. `paged` in a name changes nothing: `--offload` lets state that does not
/// fit wait on another tier. `layerwise` changes nothing either: `--update` says when parameters are updated.
const NAMES: [(&str, OptimizerKind); 17] = [
    ("adamw_torch", OptimizerKind::AdamW),
    ("adamw_torch_fused", OptimizerKind::AdamW),
    ("adamw_8bit", OptimizerKind::AdamW8bit),
    ("adamw_bnb_8bit", OptimizerKind::AdamW8bit),
    ("sgd", OptimizerKind::Sgd),
    ("lion_32bit", OptimizerKind::Lion),
    ("lion_8bit", OptimizerKind::Lion8bit),
    ("adafactor", OptimizerKind::Adafactor),
    ("muon", OptimizerKind::Muon),
    ("apollo_adamw", OptimizerKind::Apollo),
    ("apollo_adamw_layerwise", OptimizerKind::Apollo),
    ("mezo", OptimizerKind::Mezo),
    ("es", OptimizerKind::Es),
    ("paged_adamw_32bit", OptimizerKind::AdamW),
    ("paged_adamw_8bit", OptimizerKind::AdamW8bit),
    ("paged_lion_32bit", OptimizerKind::Lion),
    ("paged_lion_8bit", OptimizerKind::Lion8bit),
];

impl OptimizerKind {
    /// The first of the optimizer's names.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether it has a running sum or mean of gradients whose rate is called momentum.
    pub fn has_momentum(self) -> bool {
        matches!(self, OptimizerKind::Sgd | OptimizerKind::Muon)
    }

    /// Whether it trains without a backward pass, by losses at points near the weights.
    pub fn is_zeroth_order(self) -> bool {
        matches!(self, OptimizerKind::Mezo | OptimizerKind::Es)
    }

    /// Whether the optimizer keeps moments of large parameters in eight bits.
    pub(super) fn keeps_codes(self) -> bool {
        matches!(self, OptimizerKind::AdamW8bit | OptimizerKind::Lion8bit)
    }
}

impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<OptimizerKind, String> {
        let known = NAMES.iter().find(|(known, _)| *known == name);
        known.map(|&(_, kind)| kind).ok_or_else(|| {
            let names = NAMES.map(|(known, _)| known).join(", ");
            let instead = if name.starts_with("galore_") {
                "apollo_adamw keeps moments of projected gradients too; "
            } else {
                ""
            };
            format!("there is no optimizer `{name}`; {instead}known are {names}")
        })
    }
}
