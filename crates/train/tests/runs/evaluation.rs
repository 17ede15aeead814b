//! Evaluation in the same arena: the loss of training, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Data;
use plimsoll_graph::{DType, Graph, GraphError, Init};
use plimsoll_train::{Options, Run};

fn model(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [rows, 8], DType::F32); // (N, C)
    let targets = g.input("targets", [rows], DType::I32); // (N)
    let scale = g.loss_scale();
    let w = g.param("w", [16, 8], Init::Normal(0.5)); // (F, C)
    let h = g.linear(x, w, None); // (N, F)
    let h = g.silu(h); // (N, F)
    let head = g.param("head", [5, 16], Init::Normal(0.5)); // (V, F)
    let loss = g.head_loss(h, head, None, targets, scale, -100);
    g.output("loss", loss);
    g.output("hidden", h);
    g.finish()
}

#[test]
fn evaluating_gives_the_loss_of_training_and_changes_nothing() {
    let options = Options { global_batch: 4, micro_batch: Some(4), evaluate: true, ..Options::default() };
    let mut run = Run::new(model, &options).unwrap();
    let x: Vec<f32> = (0..32).map(|i| (i as f32 * 0.7).sin()).collect();
    let targets = [0, 4, -100, 2];
    let batch = [("x", Data::F32(&x)), ("targets", Data::I32(&targets))];
    let before = run.evaluate(&batch).unwrap();
    let trained = run.step(0.1, &[batch]).unwrap().loss;
    assert_eq!(before.to_bits(), trained.to_bits());
    let gradient = run.gradient("w").unwrap();
    let after = run.evaluate(&batch).unwrap();
    assert!(after < trained, "a step in between lowers it");
    assert_eq!(run.gradient("w").unwrap(), gradient, "a loss without training touches no gradient");
    let before = run.state("w").unwrap();
    run.evaluate(&batch).unwrap();
    assert_eq!(run.state("w").unwrap(), before);
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
}

#[test]
fn a_run_that_was_not_planned_to_evaluate_says_so() {
    let mut run = Run::new(model, &Options { micro_batch: Some(1), ..Options::default() }).unwrap();
    let line = line!() + 1;
    let error = run.evaluate(&[]).unwrap_err().to_string();
    let expected = format!("evaluation.rs:{line}: the plan has no schedule `evaluate`");
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn a_batch_that_does_not_fit_is_refused_with_the_line_of_the_caller() {
    let options = Options { global_batch: 4, micro_batch: Some(4), evaluate: true, ..Options::default() };
    let mut run = Run::new(model, &options).unwrap();
    let (x, targets) = ([0.5; 8], [0, 4, -100, 2]);
    let short = [("x", Data::F32(&x)), ("targets", Data::I32(&targets))];
    let line = line!() + 2;
    let errors = [
        run.evaluate(&short).unwrap_err(),
        run.evaluate_share(&short, 3).unwrap_err(),
        run.predict(&short[..1]).unwrap_err(),
        run.step(0.1, &[short]).unwrap_err(),
    ];
    for (error, line) in errors.iter().map(ToString::to_string).zip(line..) {
        let expected = format!("evaluation.rs:{line}: input `x` is f32[4,8], got 8 of f32");
        assert!(error.ends_with(&expected), "{error}, expected {expected}");
    }
}
