//! How fast this machine multiplies matrices, and how much of that a step needs.
//!
//! The ceiling is measured with the kernels of a run: a chain of square products through the same plan and the same
//! engine. A step's own products are counted once, even if recompute runs them again, so the share of the ceiling is
//! that of useful work.

use std::time::Instant;

use plimsoll_exec::{Data, Engine};
use plimsoll_graph::{DType, Graph, GraphError, Init, narrow, store, work};
use plimsoll_plan::{Costed, Program, Role, Scratch, SearchError, Strategy, plan};

use crate::error::TrainError;
use crate::planning::Options;

/// Products that follow one another without input from outside.
const CHAIN: usize = 8;

/// Floating-point operations per second of square products of `size` rows, over at least `seconds`: with the threads,
/// instructions and element types of `options`.
///
/// # Errors
///
/// When the memory or the threads cannot be had.
pub fn matmul_rate(options: &Options, size: usize, seconds: f64) -> Result<f64, TrainError> {
    let device = options.plain_device()?;
    let graph = store(narrow(chain(size)?, options.precision)?, options.storage.of_graph())?;
    let flops = matmul_flops(&graph);
    let facts = device.facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    let plan = plan(&program, Strategy::None, Scratch::Best)
        .map_err(|error| TrainError::Plan(SearchError::Plan(error)))?;
    let mut engine = Engine::new(device, &program, &plan, 0)?;
    let x = vec![0.5; size * size];
    let mut once = || {
        let begin = Instant::now();
        engine.run(Role::Further, &[("x", Data::F32(&x))])?;
        Ok::<f64, TrainError>(flops / begin.elapsed().as_secs_f64())
    };
    // The first run touches memory for the first time; of the others the fastest counts, since the rest were disturbed.
    once()?;
    let begin = Instant::now();
    let mut best = once()?;
    while begin.elapsed().as_secs_f64() < seconds {
        best = best.max(once()?);
    }
    Ok(best)
}

fn chain(size: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let mut x = g.input("x", [size, size], DType::F32); // (N, N)
    let w = g.param("w", [size, size], Init::Normal(0.01)); // (N, N)
    for _ in 0..CHAIN {
        x = g.linear(x, w, None); // (N, N)
    }
    g.output("y", x);
    g.finish()
}

/// Floating-point operations in the matrix products of a graph, each node once.
pub fn matmul_flops(graph: &Graph) -> f64 {
    let node_work = |node: &plimsoll_graph::Node| {
        work(&node.op, &graph.input_types(node), &graph.output_types(node)).matmul_flops
    };
    graph.nodes().iter().map(node_work).sum()
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Precision;

    use super::*;
    use crate::optimizer::{StateStorage, WeightStorage};

    #[test]
    #[allow(clippy::float_cmp, reason = "whole numbers that a double holds")]
    fn a_chain_is_eight_products_and_has_a_rate() {
        assert_eq!(matmul_flops(&chain(32).unwrap()), 8.0 * 2.0 * 32.0 * 32.0 * 32.0);
        let one = Options { threads: 1, ..Options::default() };
        let storage = StateStorage { weights: WeightStorage::Bf16Master, ..StateStorage::default() };
        let bf16 = Options { precision: Precision::Bf16, storage, ..one.clone() };
        for options in [one, bf16] {
            let rate = matmul_rate(&options, 64, 0.01).unwrap();
            assert!(rate > 1e7 && rate < 1e13, "{rate}");
        }
    }
}
