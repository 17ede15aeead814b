//! Fusion passes: the place between autodiff and plan where nodes are joined.
//!
//! A pass is a function from graph to graph; [`fuse`] runs them in order and verifies after each. The
//! list is empty: every op of this version has a kernel of its own. A fused op added here is an op like
//! any other: it has a reference kernel, a conformance case, and counts for the planner.

use crate::{Graph, GraphError};

/// A named rewrite.
type Pass = (&'static str, fn(Graph) -> Graph);

const PASSES: &[Pass] = &[];

/// Runs all passes.
///
/// # Errors
///
/// When a pass leaves a graph that does not verify; the error names the pass.
pub fn fuse(graph: Graph) -> Result<Graph, GraphError> {
    PASSES.iter().try_fold(graph, |graph, (name, pass)| {
        let fused = pass(graph);
        fused
            .verify()
            .map_err(|error| GraphError { what: format!("pass {name}: {}", error.what), ..error })?;
        Ok(fused)
    })
}
