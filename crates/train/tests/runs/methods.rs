//! Limits on the work of planning all methods together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;

use plimsoll_exec::Timings;
use plimsoll_graph::Graph;
use plimsoll_train::job::methods;
use plimsoll_train::memory::Budget;
use plimsoll_train::{Config, RawConfig, Target};

#[test]
fn methods_of_an_8b_model_are_planned_with_few_programs_and_few_lists_of_what_layers_may_keep() {
    let raw = RawConfig {
        model: Some("llama-3.1-8b".into()),
        device: Some("cuda:4090".into()),
        seq_len: Some(1024),
        global_batch: Some(8),
        ..RawConfig::default()
    };
    let config = Config::check(&raw).unwrap();
    let Target::Described { spec, .. } = config.target else { panic!("{:?}", config.target) };
    let budget = Budget::of_device(&spec, None).unwrap();
    let (timings, graphs) = (Timings::default(), Cell::new(0));
    let facts = config.options.facts_of(&spec, &timings);
    let counting = |graph: &Graph| {
        graphs.set(graphs.get() + 1);
        facts(graph)
    };
    let rows = methods(&raw, &config, &counting, &|_| Ok(budget)).unwrap();
    for row in &rows {
        let work = row.figures.as_ref().unwrap().work;
        // Bounds rule out all micro-batches but one or two. A forward pass alone is no chain, so its bound takes an optimum.
        let most = if row.flags.contains("--optim") { 4 } else { 1 };
        assert!(work.optima <= most, "{}: {work:?}", row.method.name);
        assert!(work.programs <= 14 && work.runs <= 300_000, "{}: {work:?}", row.method.name);
    }
    assert!(graphs.get() <= 90, "{} graphs", graphs.get());
}
