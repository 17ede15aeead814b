//! Training a graph that is no chain of layers: the same bits at every budget, with a disk and without, with updates
//! inside the backward pass and behind it, and from a file; the measured peak is the planned one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Data;
use plimsoll_graph::op::Conv;
use plimsoll_graph::{DType, Graph, GraphError, Init, Value};
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::{Optimizer, Options, Planned, Update, plan_from_file};

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::support::lasting_bits;

const ROWS: usize = 4;
const SIDE: usize = 16;
const THREADS: usize = 2;

/// Two levels down and up again, joined at each level.
fn u_net(rows: usize) -> Result<Graph, GraphError> {
    fn layer(g: &mut Graph, name: &str, x: Value, channels: usize, stride: usize) -> Value {
        let from = g.shape(x)[1];
        let w = g.param(&format!("{name}.w"), [channels, from, 3, 3], Init::Normal(0.2));
        let b = g.param(&format!("{name}.b"), [channels], Init::Fill(0.1));
        let y = g.conv2d(x, w, Some(b), Conv { stride, padding: 1 });
        let y = g.silu(y);
        g.dropout(y, 0.1)
    }
    let mut g = Graph::new();
    let mut x = g.input("picture", [rows, 2, SIDE, SIDE], DType::F32);
    let targets = g.input("inside", [rows * SIDE * SIDE], DType::I32);
    let scale = g.loss_scale();
    let mut skips = Vec::new();
    for level in 0..2 {
        x = layer(&mut g, &format!("down{level}"), x, 8 << level, 1);
        skips.push(x);
        x = layer(&mut g, &format!("half{level}"), x, 16 << level, 2);
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        let (channels, side) = (g.shape(skip)[1], g.shape(x)[2]);
        x = layer(&mut g, &format!("up{level}"), x, 4 * channels, 1);
        x = g.reshape(x, [rows, channels, 2, 2, side, side]);
        x = g.transpose(x, &[0, 1, 4, 2, 5, 3]);
        x = g.reshape(x, [rows, channels, 2 * side, 2 * side]);
        let both = g.concat(&[x, skip], 1);
        x = layer(&mut g, &format!("join{level}"), both, channels, 1);
    }
    let x = g.transpose(x, &[0, 2, 3, 1]);
    let x = g.reshape(x, [rows * SIDE * SIDE, 8]);
    let head = g.param("head.w", [2, 8], Init::Normal(0.3));
    let logits = g.linear(x, head, None);
    let loss = g.cross_entropy(logits, targets, scale, -100);
    g.output("loss", loss);
    g.finish()
}

fn options(update: Update) -> Options {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    Options {
        global_batch: ROWS,
        micro_batch: Some(ROWS),
        update,
        optimizer,
        threads: THREADS,
        ..Options::default()
    }
}

fn case(update: Update) -> InArena<fn(usize) -> Result<Graph, GraphError>> {
    InArena { model: u_net, options: options(update), micro_batch: ROWS }
}

/// Trains two steps; the losses and the final weights, as bits.
fn train(planned: Planned) -> Vec<u32> {
    let mut run = start(THREADS, planned);
    let pixels = ROWS * SIDE * SIDE;
    let picture: Vec<f32> = (0..2 * pixels).map(|at| ((at * 7919 + 13) % 101) as f32 / 50.0 - 1.0).collect();
    let inside: Vec<i32> = (0..pixels).map(|at| i32::from(at % SIDE > at / SIDE % SIDE)).collect();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let batch = [("picture", Data::F32(&picture)), ("inside", Data::I32(&inside))];
        numbers.push(run.step(1e-2, &[batch]).unwrap().loss);
    }
    assert_planned_peak(&run);
    numbers.into_iter().map(f32::to_bits).chain(lasting_bits(&run)).collect()
}

#[test]
fn every_budget_gives_the_same_bits() {
    let unlimited = case(Update::Separate).plan(None, u64::MAX).unwrap();
    let expected = train(exactly(unlimited));
    for update in [Update::Separate, Update::InBackward] {
        let most = case(update).plan(None, u64::MAX).unwrap().plan.arena_bytes.0;
        let least = case(update).smallest(None);
        for budget in [least, least + (most - least) / 4, u64::midpoint(least, most)] {
            let choice = case(update).plan(None, budget).unwrap();
            let runs = choice.plan.schedules[&Role::First].executions(&choice.program.train.graph);
            assert_eq!(choice.plan.strategy, Strategy::Auto, "{budget} bytes");
            assert!(runs.iter().any(|&times| times > 1), "{budget} bytes: something runs again");
            assert!(choice.lower_bound_seconds.unwrap() <= choice.step_seconds());
            assert!(choice.plan.arena_bytes.0 <= budget);
            assert!(train(exactly(choice)) == expected, "other bits in {budget} bytes");
        }
    }
}

#[test]
fn with_a_disk_less_memory_gives_the_same_bits() {
    let expected = train(exactly(case(Update::Separate).plan(None, u64::MAX).unwrap()));
    let (alone, least) = (case(Update::Separate).smallest(None), case(Update::Separate).smallest(Some(DISK)));
    assert!(least < alone, "{least} bytes with a disk, {alone} without");
    for budget in [least, u64::midpoint(least, alone), alone + alone / 10] {
        let choice = case(Update::Separate).plan(Some(DISK), budget).unwrap();
        assert!(choice.plan.arena_bytes.0 <= budget);
        assert!(train(exactly(choice)) == expected, "other bits in {budget} bytes");
    }
}

#[test]
fn a_plan_that_was_written_and_read_runs_to_the_bit() {
    let least = case(Update::Separate).smallest(None);
    let made = exactly(case(Update::Separate).plan(None, least + least / 10).unwrap());
    let text = made.to_file();
    let device = plimsoll_devices::cpu(THREADS).unwrap();
    let read = plan_from_file(&u_net, &*device, &options(Update::Separate), &text).unwrap();
    assert!(read.choice.plan.schedules == made.choice.plan.schedules);
    assert!(train(read) == train(made), "other bits from the file");
}
