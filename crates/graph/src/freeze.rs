//! The pass that leaves some parameters out of training, before [`differentiate`](crate::differentiate).
//!
//! A frozen parameter has no gradient and no optimizer state, and values that depend on frozen ones alone have no backward
//! nodes: below the lowest trained parameter the backward pass ends.

use crate::GraphError;
use crate::graph::{Graph, StateKind};

/// Freezes every parameter whose name `trained` does not accept.
///
/// # Errors
///
/// When none is left to train.
pub fn freeze(mut graph: Graph, trained: impl Fn(&str) -> bool) -> Result<Graph, GraphError> {
    let mut left = 0;
    for state in &mut graph.states {
        if let StateKind::Parameter { trainable } = &mut state.kind {
            *trainable = *trainable && trained(&state.name);
            left += usize::from(*trainable);
        }
    }
    if left == 0 {
        let why = "no parameter of the model is left to train".to_owned();
        return Err(GraphError { what: "freeze".into(), block: String::new(), why, at: None });
    }
    graph.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Phase, differentiate};

    /// Three linear layers, each in a block of its own.
    fn chain() -> Graph {
        let mut g = Graph::new();
        let mut x = g.input("x", [4, 8], DType::F32); // (N, C)
        for layer in 0..3 {
            x = g.block(&layer.to_string(), |g| {
                let w = g.param("weight", [8, 8], Init::Normal(0.1));
                g.linear(x, w, None)
            });
        }
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    #[test]
    fn no_node_below_the_lowest_trained_parameter_has_a_derivative() {
        let graph = freeze(chain(), |name| name.starts_with("1.")).unwrap();
        let loss = graph.output_named("loss").unwrap();
        let graph = differentiate(&graph, loss).unwrap();
        let backward = graph.nodes().iter().filter(|node| node.phase == Phase::Backward);
        let blocks: Vec<String> = backward.map(|node| graph.block_name(node.block)).collect();
        assert!(
            blocks.iter().any(|block| block == "1") && !blocks.iter().any(|block| block == "0"),
            "{blocks:?}"
        );
        assert!(graph.state_named("grad.1.weight").is_some() && graph.state_named("grad.2.weight").is_none());
    }

    #[test]
    fn a_choice_of_nothing_is_refused() {
        let why = freeze(chain(), |_| false).unwrap_err().why;
        assert_eq!(why, "no parameter of the model is left to train");
    }
}
