//! A residual network that tells three spiral arms apart, trained by a loop of one's own:
//! `cargo run --release -p plimsoll --example residual_mlp`.
//!
//! Gradient accumulation by hand: `backward` once per micro-batch, then `finish`. Every loss is divided by the targets of
//! the *whole* step, so four small micro-batches give the gradient of one large batch, while the memory stays that of
//! a small one. `run.step(lr, &batches)` does the same in one call.
//!
//! Legend: `N` points of a micro-batch, `C` width, `F` hidden width, `K` arms.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::{DType, Data, Graph, GraphError, Options, Run, TrainError};

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
    let mut x = g.chain(place).linear_with_bias("stem", WIDTH).value(); // (N, C)
    for layer in 0..LAYERS {
        x = g.block(&format!("layers.{layer}"), |g| {
            g.residual(x, |x| x.rms_norm("norm").linear("up", HIDDEN).silu().linear("down", WIDTH)) // (N, C)
        });
    }
    let loss = g.chain(x).head_loss("head", ARMS, arm); // ()
    g.output("loss", loss);
    g.finish()
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

    let mut losses = Vec::new();
    for number in 1..=STEPS {
        let mut step = run.begin(1e-2, POINTS as u64);
        for (place, arm) in places.chunks(2 * MICRO_BATCH).zip(arms.chunks(MICRO_BATCH)) {
            step.backward(&[("place", Data::F32(place)), ("arm", Data::I32(arm))])?;
        }
        let stepped = step.finish()?;
        losses.push(stepped.loss);
        if number == 1 || number % 10 == 0 {
            println!("step {number:>2}   loss {:.4}   gradient norm {:.4}", stepped.loss, stepped.grad_norm);
        }
    }

    let (planned, measured) = (run.plan().arena_bytes, run.engine().measured_peak());
    println!("planned peak {planned} bytes, measured {measured} bytes");
    assert_eq!(measured, planned, "the plan is exact");
    assert!(losses[STEPS - 1] < 0.2 * losses[0], "the loss falls");
    Ok(())
}
