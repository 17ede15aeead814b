//! A mistake in a model is reported with the line of the model, not of the builder.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{DType, Graph, GraphError, Init};

fn model(build: impl FnOnce(&mut Graph)) -> GraphError {
    let mut g = Graph::new();
    build(&mut g);
    g.finish().unwrap_err()
}

#[test]
fn every_kind_of_mistake_names_this_file() {
    let mistakes = [
        model(|g| {
            let x = g.input("x", [2, 8], DType::F32);
            let w = g.param("w", [4, 16], Init::Normal(0.02));
            g.linear(x, w, None);
        }),
        model(|g| {
            let x = g.input("x", [2, 8], DType::F32);
            g.reshape(x, [3]);
        }),
        model(|g| {
            g.input("x", [2], DType::F32);
            g.input("x", [3], DType::F32);
        }),
        model(|g| {
            let x = g.input("x", [2], DType::F32);
            g.mean(x, &[4]);
        }),
        model(|g| {
            let x = g.input("x", [2], DType::F32);
            g.dropout(x, 1.5);
        }),
        model(|g| {
            let x = g.input("x", [2], DType::F32);
            g.jitter(x, 1.0);
        }),
    ];
    for mistake in mistakes {
        let at = mistake.at.clone().unwrap_or_default();
        assert!(at.starts_with("crates/graph/tests/mistakes.rs:"), "{mistake}");
    }
}
