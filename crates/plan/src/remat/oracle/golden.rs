//! Whole plans against known answers: an exhaustive search on small graphs, published optima on unit chains, and the
//! promises every plan keeps.

#![allow(clippy::float_cmp, reason = "costs here are whole numbers")]

use super::exhaustive::{optimum, random_dag, random_kernels};
use crate::remat::search_graph::{Oddities, SearchGraph};
use crate::remat::{Dag, DagEffort, Unplannable, plan_dag, simulate};

fn peak(dag: &Dag) -> u64 {
    simulate(dag, &dag.keep_all()).unwrap().peak
}

#[test]
fn small_graphs_are_planned_at_the_exhaustive_optimum() {
    let graphs = (0..1000).chain(6500..8000).map(|seed| (seed, random_dag(seed)));
    for (seed, dag) in graphs.chain((0..1500).map(|seed| (seed, random_kernels(seed)))) {
        let odd = SearchGraph::<1>::new(&dag, Oddities::Once).odd;
        let full = peak(&dag);
        for memory in [full / 2, full * 2 / 3, full - 1, full] {
            let best = optimum(&dag, memory);
            match (plan_dag(&dag, memory, DagEffort::default()), best) {
                (Ok(plan), Some(best)) => {
                    assert!(plan.peak_bytes <= memory);
                    assert!(plan.lower_bound_cost <= best, "seed {seed}, memory {memory}: {plan:?} {best}");
                    if odd {
                        assert!(plan.total_cost >= best, "seed {seed}, memory {memory}");
                    } else {
                        assert_eq!(plan.total_cost, best, "seed {seed}, memory {memory}");
                        assert_eq!(plan.lower_bound_cost, best, "seed {seed}, memory {memory}");
                    }
                }
                (Ok(_), None) => panic!("seed {seed}, memory {memory}: planned the impossible"),
                (Err(_), Some(_)) => assert!(odd, "seed {seed}, memory {memory}: found nothing"),
                (Err(_), None) => {}
            }
        }
    }
}

#[test]
fn the_smallest_budget_that_is_named_works() {
    for seed in 0..200 {
        let dag = random_dag(seed);
        let Err(refused) = plan_dag(&dag, 1, DagEffort::default()) else { continue };
        let (Unplannable::TooSmall { smallest } | Unplannable::NotFound { smallest, .. }) = refused else {
            panic!("{refused}");
        };
        assert!(plan_dag(&dag, smallest, DagEffort::default()).is_ok(), "seed {seed}");
        if let Unplannable::TooSmall { smallest } = refused {
            assert_eq!(optimum(&dag, smallest - 1), None, "seed {seed}");
        }
    }
}

#[test]
fn unit_chains_cost_what_is_known_to_be_least() {
    // Total node evaluations with a budget of 3, 4, … outputs, from an exhaustive search.
    let known: [(usize, u64, &[u64]); 7] = [
        (4, 3, &[15, 11, 10, 9]),
        (6, 3, &[28, 18, 16, 15, 14, 13]),
        (8, 3, &[45, 26, 22, 21, 20, 19, 18, 17]),
        (10, 3, &[66, 35, 29, 27, 26, 25, 24, 23, 22, 21]),
        (12, 3, &[91, 45, 37, 33, 32, 31, 30, 29, 28, 27, 26, 25]),
        (14, 3, &[120, 55, 45, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29]),
        (16, 4, &[67, 53, 47, 44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33]),
    ];
    for (length, first, costs) in known {
        let dag = Dag::unit_chain(length);
        for (memory, &cost) in (first..).zip(costs) {
            let plan = plan_dag(&dag, memory, DagEffort::default()).unwrap();
            assert_eq!(plan.total_cost, cost as f64, "length {length}, budget {memory}");
            assert_eq!(plan.lower_bound_cost, cost as f64, "length {length}, budget {memory}");
        }
    }
}

#[test]
fn more_memory_never_costs_more_and_all_of_it_costs_nothing() {
    for seed in 0..60 {
        let dag = random_dag(seed);
        let mut before = f64::INFINITY;
        for memory in 1..=peak(&dag) {
            if let Ok(plan) = plan_dag(&dag, memory, DagEffort::default()) {
                assert!(plan.total_cost <= before, "seed {seed}, memory {memory}");
                assert!(plan.lower_bound_cost <= plan.total_cost);
                before = plan.total_cost;
            }
        }
        assert_eq!(before, dag.base_cost(), "seed {seed}");
    }
}

#[test]
fn a_long_chain_is_planned_inside_every_budget_with_a_valid_bound() {
    // The chain is too long for a proof, so the beam search and the bound are tested.
    let dag = Dag::unit_chain(100);
    for memory in [8, 16, 30, 60] {
        let plan = plan_dag(&dag, memory, DagEffort::default()).unwrap();
        assert!(plan.peak_bytes <= memory);
        assert!(plan.lower_bound_cost <= plan.total_cost);
        assert!(plan.total_cost < 3.5 * dag.base_cost(), "budget {memory}: {}", plan.total_cost);
    }
}
