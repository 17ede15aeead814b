//! Loads of experts, and the losses of routers.

use plimsoll_exec::ExecError;
use plimsoll_graph::op::Balance;

use super::elementwise::blocks;
use super::launch::{Arg, Check};
use super::lowering::{Call, Lowering, Operand, i32, i64};
use super::place::Place;

/// Layers that one launch adds up, as the kernel takes them.
const LAYERS: usize = 32;
/// Tokens of one partial sum of squares, as the kernel counts them.
const SQUARES: usize = 4096;

/// `(p[B,T,E], indices[B,T,k], marks[B,T]) → (P[B,E], c[B,E])`.
pub(super) fn load(to: &mut Lowering, call: &Call, ignored: i32) -> Result<(), ExecError> {
    let (p, chosen) = (call.inputs[0].shape(), call.inputs[1].shape()[2]);
    let (sequences, length, experts) = (p[0], p[1], p[2]);
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let sizes = [i32(length), i32(experts), i32(chosen), Arg::I32(ignored)];
    let args = operands.chain(sizes).chain([Arg::Check(Check::Expert { experts })]).collect();
    let grid = [experts.div_ceil(32) as u32, sequences as u32, 1];
    to.launch_grid("expert_load", grid, [32, 16], 0, args);
    Ok(())
}

/// `(indices[B,T,k], places[B,T,k], present[B,T]) → c[2,E]`.
pub(super) fn count(to: &mut Lowering, call: &Call, experts: usize) -> Result<(), ExecError> {
    let (copies, chosen) = (call.inputs[0].count(), call.inputs[0].shape()[2]);
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(copies), i32(chosen), Arg::Check(Check::Expert { experts })]).collect();
    to.launch("count_copies", experts, 256, args);
    Ok(())
}

/// `(counts[…,E], scale[]) → bias[E]`.
pub(super) fn steer(to: &mut Lowering, call: &Call, rate: f32) -> Result<(), ExecError> {
    let counts = &call.inputs[0];
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let form = [i64(counts.count()), i32(counts.shape().columns()), Arg::F32(rate)];
    to.launch("steer_bias", 1, 256, operands.chain(form).collect());
    Ok(())
}

/// `(dP[B,E], marks[B,T]) → dp[B,T,E]`.
pub(super) fn load_grad(to: &mut Lowering, call: &Call, ignored: i32) -> Result<(), ExecError> {
    let (experts, length) = (call.inputs[0].shape()[1], call.inputs[1].shape()[1]);
    let count = call.outputs[0].count();
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(count), i32(length), i32(experts), Arg::I32(ignored)]).collect();
    to.launch("expert_load_grad", blocks(count, 1), 256, args);
    Ok(())
}

/// `(scale[], targets[B,T], P₁, c₁ …) → loss`.
pub(super) fn loss(to: &mut Lowering, call: &Call, balance: Balance) -> Result<(), ExecError> {
    let (scale, targets) = (&call.inputs[0], &call.inputs[1]);
    let each = |first: usize| call.inputs[first..].iter().step_by(2).collect::<Vec<_>>();
    let (sums, counts) = (sum_layers(to, &each(2)), sum_layers(to, &each(3)));
    let (groups, whole) = groups(call.inputs[2].shape()[0], balance);
    let losses = to.take(8 * groups as u64);
    let args = vec![
        Arg::Pointer(counts),
        Arg::Pointer(sums),
        targets.pointer(),
        Arg::Pointer(losses),
        whole,
        form(targets, &each(3), balance),
    ];
    to.launch("balance_loss", groups, 256, args);
    finish(to, losses, groups, [scale, &call.outputs[0]]);
    Ok(())
}

/// `(dloss, scale, targets, c₁ …) → dP[B,E]`.
pub(super) fn loss_grad(to: &mut Lowering, call: &Call, balance: Balance) -> Result<(), ExecError> {
    let [dloss, scale, targets] = [0, 1, 2].map(|input| &call.inputs[input]);
    let each: Vec<&Operand> = call.inputs[3..].iter().collect();
    let counts = sum_layers(to, &each);
    let (groups, whole) = groups(each[0].shape()[0], balance);
    let mut args = vec![Arg::Pointer(counts)];
    args.extend([dloss, scale, targets, &call.outputs[0]].map(Operand::pointer));
    args.extend([whole, form(targets, &each, balance)]);
    to.launch("balance_loss_grad", groups, 256, args);
    Ok(())
}

/// `(scale[], targets, lse[N]) → loss`.
pub(super) fn z_loss(to: &mut Lowering, call: &Call, ignored: i32) -> Result<(), ExecError> {
    let [scale, targets, lse] = [0, 1, 2].map(|input| &call.inputs[input]);
    let pieces = lse.count().div_ceil(SQUARES);
    let losses = to.take(8 * pieces as u64);
    let args =
        vec![targets.pointer(), lse.pointer(), Arg::Pointer(losses), i64(lse.count()), Arg::I32(ignored)];
    to.launch("router_z_loss", pieces, 256, args);
    finish(to, losses, pieces, [scale, &call.outputs[0]]);
    Ok(())
}

/// `(dloss, scale, targets, lse[N]) → dlse[N]`.
pub(super) fn z_loss_grad(to: &mut Lowering, call: &Call, ignored: i32) -> Result<(), ExecError> {
    let count = call.outputs[0].count();
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain([i64(count), Arg::I32(ignored)]).collect();
    to.launch("router_z_loss_grad", blocks(count, 1), 256, args);
    Ok(())
}

/// Whether a target is left out, and which.
/// Blocks that a loss is computed by, and whether all sequences are one group.
fn groups(sequences: usize, balance: Balance) -> (usize, Arg) {
    (if balance.whole { 1 } else { sequences }, Arg::I32(i32::from(balance.whole)))
}

fn form(targets: &Operand, layers: &[&Operand], balance: Balance) -> Arg {
    let shape = layers[0].shape();
    let sizes = [shape[0], shape[1], balance.chosen, layers.len(), targets.count()].map(i32);
    Arg::Struct(sizes.into_iter().chain([Arg::I32(balance.ignore_index)]).collect())
}

/// The sum over layers, in f64.
fn sum_layers(to: &mut Lowering, layers: &[&Operand]) -> Place {
    let count = layers[0].count();
    let sums = to.take(8 * count as u64);
    for (turn, part) in layers.chunks(LAYERS).enumerate() {
        let missing = std::iter::repeat_n(Arg::Null, LAYERS - part.len());
        let pointers = part.iter().map(|layer| layer.pointer()).chain(missing).collect();
        let adds = Arg::I32(i32::from(turn > 0));
        let args = vec![Arg::Struct(pointers), Arg::Pointer(sums), i64(count), i32(part.len()), adds];
        to.launch("sum_layers", blocks(count, 1), 256, args);
    }
    sums
}

/// Adds partial losses in their order and scales the sum.
fn finish(to: &mut Lowering, losses: Place, number: usize, [scale, loss]: [&Operand; 2]) {
    let args = vec![Arg::Pointer(losses), scale.pointer(), loss.pointer(), i32(number)];
    to.launch("finish_loss", 1, 32, args);
}
