//! A small network behind a module, added to its result (Houlsby et al. 2019).
//!
//! ```text
//! y = h + s · f(h·Downᵀ)·Upᵀ          h = x·Wᵀ + b; Down (n, out), Up (out, n)
//! ```
//!
//! Behind the last product of attention and of the feed-forward network it stands where the paper has it, before the sum
//! with the residual stream. `Up` begins at zero, so a new adapter changes nothing. PEFT has no such adapter; names and
//! settings of the files are those of the fork that came with LLM-Adapters (Hu et al. 2023), without biases.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::op::Gelu;
use plimsoll_graph::{Graph, Init, Value};

use super::Adapter;
use super::module::Module;

/// Spread of the first matrix, as in BERT.
const SPREAD: f32 = 0.02;

/// The function between the two products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonLinearity {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// Gaussian error linear unit.
    Gelu,
    /// `x · σ(x)`.
    Silu,
}

impl NonLinearity {
    /// Its name in files and settings.
    pub fn name(self) -> &'static str {
        match self {
            NonLinearity::Tanh => "tanh",
            NonLinearity::Gelu => "gelu",
            NonLinearity::Silu => "silu",
        }
    }

    fn of(self, g: &mut Graph, x: Value) -> Value {
        match self {
            NonLinearity::Tanh => g.tanh(x),
            NonLinearity::Gelu => g.gelu(x, Gelu::Erf),
            NonLinearity::Silu => g.silu(x),
        }
    }
}

impl fmt::Display for NonLinearity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for NonLinearity {
    type Err = String;

    fn from_str(name: &str) -> Result<NonLinearity, String> {
        let all = [NonLinearity::Tanh, NonLinearity::Gelu, NonLinearity::Silu];
        let found = all.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| format!("there is no non-linearity `{name}`; known are tanh, gelu and silu"))
    }
}

/// The result of a linear layer with the network behind it.
pub(super) fn wrap(g: &mut Graph, module: &Module, adapter: &Adapter, between: NonLinearity) -> Value {
    let Adapter { rank, output, scale, .. } = *adapter;
    let y = module.result(g, module.x); // (…, out)
    let down = g.param_named(&adapter.down(), [rank, output], Init::Normal(SPREAD)); // (n, out)
    let up = g.param_named(&adapter.up(), [output, rank], Init::Fill(0.0)); // (out, n)
    let small = g.linear(y, down, None); // (…, n)
    let small = between.of(g, small); // (…, n)
    let small = g.scale(small, scale); // (…, n)
    g.linear(small, up, Some(y)) // (…, out)
}
