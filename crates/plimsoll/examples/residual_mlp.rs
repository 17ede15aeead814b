//! A residual network that tells three spiral arms apart, trained by a loop of one's own:
//! `cargo run --release -p plimsoll --example residual_mlp`.
//!
//! Gradient accumulation by hand: `backward` once per micro-batch, then `step`. Every loss is multiplied by
//! one over the points of the *whole* step, so four small micro-batches give the gradient of one large
//! batch while the memory stays that of a small one.
//!
//! Legend: `N` points of a micro-batch, `C` width, `F` hidden width, `K` arms.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::{DType, Data, Graph, GraphError, Init, Options, Run, TrainError, Value};

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const LAYERS: usize = 4;
const ARMS: usize = 3;
const POINTS: usize = 192;
const MICRO_BATCH: usize = 48;
const STEPS: usize = 30;

fn model(points: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let place = g.input("place", [points, 2], DType::F32); // (N, 2)
    let arm = g.input("arm", [points], DType::I32); // (N)
    let scale = g.loss_scale(); // ()

    let stem = g.param("stem.weight", [WIDTH, 2], Init::Normal(1.0)); // (C, 2)
    let bias = g.param("stem.bias", [WIDTH], Init::Normal(1.0)); // (C)
    let mut x = g.linear(place, stem, Some(bias)); // (N, C)
    for layer in 0..LAYERS {
        x = g.block(&format!("layers.{layer}"), |g| residual(g, x)); // (N, C)
    }
    let head = g.param("head.weight", [ARMS, WIDTH], Init::Normal(0.1)); // (K, C)
    let loss = g.head_loss(x, head, None, arm, scale, -100); // ()
    g.output("loss", loss);
    g.finish()
}

/// `x + down(silu(up(rms_norm(x))))`.
fn residual(g: &mut Graph, x: Value) -> Value {
    let norm = g.param("norm.weight", [WIDTH], Init::Fill(1.0)); // (C)
    let up = g.param("up.weight", [HIDDEN, WIDTH], Init::Normal(0.2)); // (F, C)
    let down = g.param("down.weight", [WIDTH, HIDDEN], Init::Normal(0.1)); // (C, F)
    let h = g.rms_norm(x, norm, 1e-6); // (N, C)
    let h = g.linear(h, up, None); // (N, F)
    let h = g.silu(h); // (N, F)
    let h = g.linear(h, down, None); // (N, C)
    g.add(x, h) // (N, C)
}

/// Places and arms of all points. Neighbours in the list lie on different arms.
fn spirals() -> (Vec<f32>, Vec<i32>) {
    let arm = |point: usize| (point % ARMS) as f32;
    let place = |point: usize| {
        let radius = 0.1 + point as f32 / POINTS as f32;
        let angle = 5.0 * radius + arm(point) * std::f32::consts::TAU / ARMS as f32;
        [radius * angle.cos(), radius * angle.sin()]
    };
    ((0..POINTS).flat_map(place).collect(), (0..POINTS).map(|point| (point % ARMS) as i32).collect())
}

fn main() -> Result<(), TrainError> {
    let options = Options {
        memory: Some(64 << 20),
        global_batch: POINTS,
        micro_batch: Some(MICRO_BATCH),
        ..Options::default()
    };
    let mut run = Run::new(model, &options)?;
    let (places, arms) = spirals(); // (4·N, 2), (4·N)
    let scale = [1.0 / POINTS as f32]; // ()

    let mut losses = Vec::new();
    for step in 1..=STEPS {
        let mut loss = 0.0;
        for (place, arm) in places.chunks(2 * MICRO_BATCH).zip(arms.chunks(MICRO_BATCH)) {
            let batch = [("place", Data::F32(place)), ("arm", Data::I32(arm)), ("scale", Data::F32(&scale))];
            loss += run.backward(&batch)?;
        }
        let norm = run.step(1e-2)?;
        losses.push(loss);
        if step == 1 || step % 10 == 0 {
            println!("step {step:>2}   loss {loss:.4}   gradient norm {norm:.4}");
        }
    }

    let (planned, measured) = (run.plan().arena_bytes, run.engine().measured_peak());
    println!("planned peak {planned} bytes, measured {measured} bytes");
    assert_eq!(measured, planned, "the plan is exact");
    assert!(losses[STEPS - 1] < 0.2 * losses[0], "the loss falls");
    Ok(())
}
