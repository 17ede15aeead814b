//! A trained factor for each column of a layer's result, or of its input in feed-forward networks (Liu et al. 2022).
//!
//! ```text
//! y = l·(x·Wᵀ + b)          keys, values and other modules; l (out, 1) in files
//! y = (l·x)·Wᵀ + b          modules of feed-forward networks; l (1, in) in files
//! ```

use plimsoll_graph::{Graph, GraphError, Init, Value};

use super::Adapter;
use super::module::Module;
use super::pattern::Pattern;
use crate::language::refuse;

/// The modules whose input is scaled, by PEFT's rule: `feedforward_modules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// Modules whose names end in one of these.
    Names(Vec<String>),
    /// Modules whose whole name fits.
    Pattern(Pattern),
}

impl FeedForward {
    /// Whether a module's input is scaled.
    ///
    /// # Errors
    ///
    /// When the expression takes too long.
    pub fn holds(&self, module: &str) -> Result<bool, GraphError> {
        match self {
            FeedForward::Names(names) => Ok(names.iter().any(|name| module.ends_with(name.as_str()))),
            FeedForward::Pattern(pattern) => pattern.fits(module),
        }
    }

    /// Refuses a name or an expression that fits none of the modules with adapters.
    pub(super) fn check(&self, adapters: &[Adapter]) -> Result<(), GraphError> {
        let single: Vec<FeedForward> = match self {
            FeedForward::Names(names) => {
                names.iter().map(|name| FeedForward::Names(vec![name.clone()])).collect()
            }
            FeedForward::Pattern(_) => vec![self.clone()],
        };
        for one in single {
            if !adapters.iter().any(|adapter| one.holds(&adapter.module).unwrap_or(true)) {
                let text = match &one {
                    FeedForward::Names(names) => names.concat(),
                    FeedForward::Pattern(pattern) => pattern.text().to_owned(),
                };
                let why =
                    format!("the feed-forward module `{text}` is none of the modules that get adapters");
                return Err(refuse("lora", why));
            }
        }
        Ok(())
    }
}

/// The result of a linear layer with its factors.
pub(super) fn wrap(g: &mut Graph, module: &Module, adapter: &Adapter) -> Value {
    let factors = |g: &mut Graph, shape: [usize; 2], count: usize| {
        let stored = g.param_named(&adapter.factors(), shape, Init::Fill(1.0));
        g.reshape(stored, [count]) // (in) or (out)
    };
    if adapter.feedforward {
        let factors = factors(g, [1, adapter.input], adapter.input);
        let x = g.mul(module.x, factors); // (…, in)
        return module.result(g, x);
    }
    let y = module.result(g, module.x); // (…, out)
    let factors = factors(g, [adapter.output, 1], adapter.output);
    g.mul(y, factors)
}
