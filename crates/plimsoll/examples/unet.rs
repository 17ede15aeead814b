//! A small U-Net that finds discs in noisy pictures, trained under `sqrt` recompute in a stated budget:
//! `cargo run --release -p plimsoll --example unet`.
//!
//! Skip connections are no special case: a value that a later block reads passes between regions, so it is
//! kept, and everything inside a region is dropped and recomputed.
//!
//! Legend: `B` pictures, `C` channels, `S` side of a picture (here or halved).
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::op::Conv;
use plimsoll::{DType, Data, Graph, GraphError, Init, Options, Run, Strategy, TrainError, Value, plan_for};

const SIDE: usize = 16;
const PICTURES: usize = 8;
const STEPS: usize = 20;

fn model(pictures: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("picture", [pictures, 1, SIDE, SIDE], DType::F32); // (B, 1, S, S)
    let targets = g.input("inside", [pictures * SIDE * SIDE], DType::I32); // (B·S·S)

    let fine = g.block("fine", |g| conv(g, x, "conv", 8, 1)); // (B, 8, S, S)
    let middle = g.block("middle", |g| conv(g, fine, "conv", 16, 2)); // (B, 16, S/2, S/2)
    let x = g.block("coarse", |g| {
        let x = conv(g, middle, "down", 32, 2); // (B, 32, S/4, S/4)
        conv(g, x, "conv", 32, 1) // (B, 32, S/4, S/4)
    });
    let x = g.block("to_middle", |g| up(g, x, middle)); // (B, 16, S/2, S/2)
    let x = g.block("to_fine", |g| up(g, x, fine)); // (B, 8, S, S)

    let x = g.transpose(x, &[0, 2, 3, 1]); // (B, S, S, 8)
    let x = g.reshape(x, [pictures * SIDE * SIDE, 8]); // (B·S·S, 8)
    let loss = g.chain(x).head_loss("head", 2, targets); // ()
    g.output("loss", loss);
    g.finish()
}

/// `silu(conv3×3(x))` with `out` channels.
fn conv(g: &mut Graph, x: Value, name: &str, out: usize, stride: usize) -> Value {
    let channels = g.shape(x)[1];
    let spread = (2.0 / (9 * channels) as f32).sqrt();
    let w = g.param(&format!("{name}.weight"), [out, channels, 3, 3], Init::Normal(spread)); // (O, C, 3, 3)
    let b = g.param(&format!("{name}.bias"), [out], Init::Fill(0.0)); // (O)
    let y = g.conv2d(x, w, Some(b), Conv { stride, padding: 1 }); // (B, O, S/stride, S/stride)
    g.silu(y) // (B, O, S/stride, S/stride)
}

/// Twice the side by pixel shuffle, then joined with `skip (B, C, 2·S, 2·S)`.
fn up(g: &mut Graph, x: Value, skip: Value) -> Value {
    let (batch, channels, side) = (g.shape(skip)[0], g.shape(skip)[1], g.shape(x)[2]);
    let x = conv(g, x, "up", 4 * channels, 1); // (B, 4·C, S, S)
    let x = g.reshape(x, [batch, channels, 2, 2, side, side]); // (B, C, 2, 2, S, S)
    let x = g.transpose(x, &[0, 1, 4, 2, 5, 3]); // (B, C, S, 2, S, 2)
    let x = g.reshape(x, [batch, channels, 2 * side, 2 * side]); // (B, C, 2·S, 2·S)
    let both = g.concat(&[x, skip], 1); // (B, 2·C, 2·S, 2·S)
    conv(g, both, "conv", channels, 1) // (B, C, 2·S, 2·S)
}

/// Pictures of a disc each, and for every pixel whether it lies inside.
fn discs() -> (Vec<f32>, Vec<i32>) {
    let pixel = |at: usize| {
        let (picture, y, x) = (at / (SIDE * SIDE), at / SIDE % SIDE, at % SIDE);
        let center = (4 + picture, 11 - picture);
        let inside = center.0.abs_diff(x).pow(2) + center.1.abs_diff(y).pow(2) < 16;
        let noise = ((at * 7919 + 13) % 101) as f32 / 50.0 - 1.0;
        (f32::from(u8::from(inside)) + noise, i32::from(inside))
    };
    (0..PICTURES * SIDE * SIDE).map(pixel).unzip()
}

fn main() -> Result<(), TrainError> {
    let options = Options { memory: Some(64 << 20), global_batch: PICTURES, ..Options::default() };
    let options = Options { micro_batch: Some(PICTURES), recompute: Some(Strategy::Sqrt), ..options };
    let keeping = Options { recompute: Some(Strategy::None), ..options.clone() };
    let kept = plan_for(&model, &*keeping.device()?, &keeping)?.choice.plan.arena_bytes;
    let mut run = Run::new(model, &options)?;

    let (pictures, inside) = discs(); // (B, 1, S, S), (B·S·S)
    let batch = [("picture", Data::F32(&pictures)), ("inside", Data::I32(&inside))];
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(run.step(5e-3, &[batch])?.loss);
    }
    let (planned, measured) = (run.plan().arena_bytes, run.engine().measured_peak());
    println!("loss {:.4} to {:.4}", losses[0], losses[STEPS - 1]);
    println!("peak planned {planned}, measured {measured} bytes; without recompute {kept} bytes");
    assert_eq!(measured, planned, "the plan is exact");
    assert!(planned < kept, "recompute saves memory");
    assert!(losses[STEPS - 1] < 0.5 * losses[0], "the loss falls");
    Ok(())
}
