//! A small transformer written by hand, with one's own marks for what is dropped and rebuilt:
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
    DType, Data, Graph, GraphError, Init, Options, Run, Strategy, TrainError, Value, Visible, checkpoint,
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
    let scale = g.loss_scale(); // ()
    let words = g.param("words", [VOCAB, WIDTH], Init::Normal(0.1)); // (V, C)
    let places = g.param("places", [SEQ, WIDTH], Init::Normal(0.1)); // (T, C)
    let x = g.embedding(words, tokens); // (B, T, C)
    let mut x = g.add(x, places); // (B, T, C)
    for half in [["layers.0", "layers.1"], ["layers.2", "layers.3"]] {
        x = checkpoint(&mut g, |g| {
            half.iter().fold(x, |x, name| g.block(name, |g| checkpoint(g, |g| layer(g, x)))) // (B, T, C)
        });
    }
    let x = g.reshape(x, [batch * SEQ, WIDTH]); // (B·T, C)
    let loss = g.head_loss(x, words, None, targets, scale, -100); // ()
    g.output("loss", loss);
    g.finish()
}

/// `x + attention(rms_norm(x))`, then `x + mlp(rms_norm(x))`.
fn layer(g: &mut Graph, mut x: Value) -> Value {
    for (name, body) in [("attention", attention as fn(&mut Graph, Value) -> Value), ("mlp", mlp)] {
        x = g.block(name, |g| {
            let weight = g.param("norm", [WIDTH], Init::Fill(1.0)); // (C)
            let normed = g.rms_norm(x, weight, 1e-6); // (B, T, C)
            let update = body(g, normed); // (B, T, C)
            g.add(x, update) // (B, T, C)
        });
    }
    x // (B, T, C)
}

fn attention(g: &mut Graph, x: Value) -> Value {
    let batch = g.shape(x)[0];
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = g.param(name, [WIDTH, WIDTH], Init::Normal(0.1)); // (C, C)
        let y = g.linear(x, w, None); // (B, T, C)
        g.reshape(y, [batch, SEQ, HEADS, WIDTH / HEADS]) // (B, T, H, D)
    });
    let mixed = g.attention(q, k, v, Visible::CAUSAL); // (B, T, H, D)
    let mixed = g.reshape(mixed, [batch, SEQ, WIDTH]); // (B, T, C)
    let out = g.param("out", [WIDTH, WIDTH], Init::Normal(0.05)); // (C, C)
    g.linear(mixed, out, None) // (B, T, C)
}

fn mlp(g: &mut Graph, x: Value) -> Value {
    let up = g.param("up", [4 * WIDTH, WIDTH], Init::Normal(0.1)); // (4·C, C)
    let down = g.param("down", [WIDTH, 4 * WIDTH], Init::Normal(0.05)); // (C, 4·C)
    let hidden = g.linear(x, up, None); // (B, T, 4·C)
    let hidden = g.gelu(hidden, Gelu::Tanh); // (B, T, 4·C)
    g.linear(hidden, down, None) // (B, T, C)
}

/// Trains under `strategy`; returns the bits of the losses, and the peak.
fn train(strategy: Strategy) -> Result<(Vec<u32>, u64), TrainError> {
    let options = Options { memory: Some(128 << 20), global_batch: BATCH, ..Options::default() };
    let options = Options { micro_batch: Some(BATCH), recompute: Some(strategy), ..options };
    let mut run = Run::new(model, &options)?;
    // Each row counts up by a step of its own: whoever has seen two words can name the next.
    let word = |row: usize, position: usize| (((row + 1) * position + row) % VOCAB) as i32;
    let shifted = |by: usize| (0..BATCH * SEQ).map(move |i| word(i / SEQ, i % SEQ + by)).collect();
    let (tokens, targets): (Vec<i32>, Vec<i32>) = (shifted(0), shifted(1)); // (B, T), (B·T)
    let scale = Data::F32(&[1.0 / (BATCH * SEQ) as f32]); // ()
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let batch = [("tokens", Data::I32(&tokens)), ("targets", Data::I32(&targets)), ("scale", scale)];
        losses.push(run.backward(&batch)?);
        run.step(3e-3)?;
    }
    let (planned, measured) = (run.plan().arena_bytes, run.engine().measured_peak());
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!("{strategy}: loss {first:.3} to {last:.3}, peak planned {planned}, measured {measured} bytes");
    assert_eq!(measured, planned, "the plan is exact");
    assert!(last < 0.5 * first, "the loss falls");
    Ok((losses.iter().map(|loss| loss.to_bits()).collect(), measured))
}

fn main() -> Result<(), TrainError> {
    let ((kept, most), (rebuilt, least)) = (train(Strategy::None)?, train(Strategy::Manual)?);
    assert_eq!(rebuilt, kept, "recompute changes no bit");
    assert!(least < most, "recompute saves memory");
    println!("the same losses to the bit in {} % of the memory", 100 * least / most);
    Ok(())
}
