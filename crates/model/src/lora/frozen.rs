//! The linear layers whose weights may be quantised: all but the head, as in transformers.

use plimsoll_graph::{Graph, Init};

use super::layers::{Form, heads, is_adapter, layers};

/// A linear layer and its weight.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearLayer {
    /// Name of the weight.
    pub weight: String,
    /// Columns of the module's input.
    pub input: usize,
    /// Columns of the module's result.
    pub output: usize,
    /// Whether its model stores the weight `(in, out)`.
    pub transposed: bool,
    /// The weight's contents where no file has them.
    pub init: Init,
}

/// Every linear layer of a forward graph once, in the order they run, without heads and without adapters.
pub fn linear_layers(forward: &Graph) -> Vec<LinearLayer> {
    let heads = heads(forward);
    let found = layers(forward).into_iter().filter(|layer| layer.form != Form::Table);
    found
        .filter(|layer| !heads.contains(&layer.weight()) && !is_adapter(&layer.weight()))
        .filter_map(|layer| {
            let state = forward.state_named(&layer.weight())?;
            Some(LinearLayer {
                weight: layer.weight(),
                input: layer.input,
                output: layer.output,
                transposed: layer.form == Form::Transposed,
                init: forward.state(state).init.clone(),
            })
        })
        .collect()
}
