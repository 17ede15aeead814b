//! A small transformer written by hand, with one's own marks for the parts that are recomputed:
//! `cargo run --release -p plimsoll --example transformer`.
//!
//! `checkpoint(g, |g| …)` may stand around anything, and nest: here around each half of the layers, and
//! inside it around each layer. The strategy `manual` honours the marks, all others ignore them. Trained
//! with `none` and with `manual`, not one bit of a loss may differ.
//!
//! Legend: `B` sequences, `T` positions, `C` width, `H` heads of width `D`, `V` words.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::op::Gelu;
use plimsoll::{
    DType, Data, Graph, GraphError, Options, Run, Strategy, TrainError, Value, Visible, checkpoint,
};

const BATCH: usize = 8;
const SEQ: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const VOCAB: usize = 32;
const STEPS: usize = 12;

fn model(batch: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let tokens = g.input("tokens", [batch, SEQ], DType::I32); // (B, T)
    let targets = g.input("targets", [batch * SEQ], DType::I32); // (B·T)
    let mut x = g.chain(tokens).embedding("words", VOCAB, WIDTH).learned_positions("places").value(); // (B, T, C)
    for half in [["layers.0", "layers.1"], ["layers.2", "layers.3"]] {
        x = checkpoint(&mut g, |g| {
            half.iter().fold(x, |x, name| g.block(name, |g| checkpoint(g, |g| layer(g, x)))) // (B, T, C)
        });
    }
    let loss = g.chain(x).rms_norm("norm").head_loss("head", VOCAB, targets); // ()
    g.output("loss", loss);
    g.finish()
}

/// `x + attention(rms_norm(x))`, then `x + mlp(rms_norm(x))`.
fn layer(g: &mut Graph, x: Value) -> Value {
    let x = g.residual(x, |x| x.rms_norm("attention.norm").attention("attention", HEADS, Visible::CAUSAL)); // (B, T, C)
    g.residual(x, |x| x.rms_norm("mlp.norm").linear("up", 4 * WIDTH).gelu(Gelu::Tanh).linear("down", WIDTH))
}

/// Trains under `strategy`; returns the bits of the losses, and the peak.
fn train(strategy: Strategy) -> Result<(Vec<u32>, u64), TrainError> {
    let options = Options { memory: Some(128 << 20), global_batch: BATCH, ..Options::default() };
    let options = Options { micro_batch: Some(BATCH), recompute: Some(strategy), ..options };
    let mut run = Run::new(model, &options)?;
    // Each row counts up by a step of its own, so two words determine the next.
    let word = |row: usize, position: usize| (((row + 1) * position + row) % VOCAB) as i32;
    let shifted = |by: usize| (0..BATCH * SEQ).map(move |i| word(i / SEQ, i % SEQ + by)).collect();
    let (tokens, targets): (Vec<i32>, Vec<i32>) = (shifted(0), shifted(1)); // (B, T), (B·T)
    let batch = [("tokens", Data::I32(&tokens)), ("targets", Data::I32(&targets))];
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(run.step(3e-3, &[batch])?.loss);
    }
    let (planned, measured) = (run.plan().arena_bytes, run.engine().measured_peak());
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!("{strategy}: loss {first:.3} to {last:.3}, peak planned {planned}, measured {measured} bytes");
    assert_eq!(measured, planned, "the plan is exact");
    assert!(last < 0.5 * first, "the loss falls");
    Ok((losses.iter().map(|loss| loss.to_bits()).collect(), measured.0))
}

fn main() -> Result<(), TrainError> {
    let ((kept, most), (recomputed, least)) = (train(Strategy::None)?, train(Strategy::Manual)?);
    assert_eq!(recomputed, kept, "recompute changes no bit");
    assert!(least < most, "recompute saves memory");
    println!("the same losses to the bit in {} % of the memory", 100 * least / most);
    Ok(())
}
