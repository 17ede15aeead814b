//! Losses of routers: how evenly tokens are spread over experts (Fedus et al. 2021), and how large scores grow (Zoph et
//! al. 2022).
//!
//! ```text
//! P, c = expert_load(p, indices, marks)          sums of probabilities and counts of tokens, for each sequence and expert
//! balance_loss(scale, targets, P, c, …)          E·Σₑ (c/n)·(P/n), 1·k when all experts have the same share
//! ```
//!
//! A group is one sequence: its loss is weighted by its tokens, so that neither the micro-batch nor the order of rows
//! changes the sum. Tokens whose target carries no loss are not counted. The other form combines all sequences, tokens
//! and layers of a micro-batch, padding left out, as transformers does. A third way has no loss: biases steer the choice, and every step
//! moves them by the counts of all its tokens (Wang et al. 2024). Everything is f32 under every precision.

use super::{Cotangents, equal, integers, no_derivative, no_types, operands};
use crate::graph::{Graph, Node, StateKind, Steered};
use crate::op::Balance;
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Shape, SortedCopies, Type, Value};

impl Graph {
    /// `[P, c]`: for each sequence and expert the sum of probabilities `p[B,T,E]` and the number of tokens that
    /// `indices[B,T,k]` send there. Tokens whose mark in `marks[B,T]` is `ignored` are left out.
    #[track_caller]
    pub fn expert_load(&mut self, p: Value, indices: Value, marks: Value, ignored: i32) -> [Value; 2] {
        let node = self.apply_all(Op::ExpertLoad { ignored }, &[p, indices, marks]);
        let outputs = &self.node(node).outputs;
        [outputs[0], outputs[1]]
    }

    /// Of each expert the copies that `indices[B,T,k]` send there and those that have a row: `[2,E]`. Tokens that are 0 in
    /// `present[B,T]` are not counted.
    #[track_caller]
    pub fn count_copies(&mut self, indices: Value, copies: SortedCopies, present: Value) -> Value {
        let experts = self.shape(copies.ranges)[0];
        self.apply(Op::CountCopies { experts }, &[indices, copies.places, present])
    }

    /// The biases of a router's choice, `[E]`: state that begins at 0, that every step moves by `rate` towards an even
    /// load, and that a checkpoint keeps. A [`tally`](Self::tally) of the same name must count the tokens of each expert.
    #[track_caller]
    pub fn steered_bias(&mut self, name: &str, experts: usize, rate: f32) -> Value {
        let name = self.full_name(name);
        let bias = self.state_range(&name, Type::f32([experts]), StateKind::Moment);
        if !self.steered.iter().any(|steered| steered.bias == name) {
            self.steered.push(Steered { bias: name, rate });
        }
        bias
    }

    /// The balance of the loads of one layer, or of several taken together.
    #[track_caller]
    pub fn balance_loss(&mut self, loads: &[[Value; 2]], targets: Value, balance: Balance) -> Value {
        let scale = self.loss_scale();
        let inputs: Vec<Value> =
            [scale, targets].into_iter().chain(loads.iter().flatten().copied()).collect();
        self.apply(Op::BalanceLoss(balance), &inputs)
    }

    /// The mean square of `lse[N]`, the logarithms of a router's divisors.
    #[track_caller]
    pub fn router_z_loss(&mut self, lse: Value, targets: Value, ignore_index: i32) -> Value {
        let scale = self.loss_scale();
        self.apply(Op::RouterZLoss { ignore_index }, &[scale, targets, lse])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::ExpertLoad { .. } => {
            let [p, indices, marks] = operands(inputs)?;
            let [rows, length, experts] = sequences(p)?;
            integers(indices, "indices")?;
            if indices.shape.len() != 3 || indices.shape[..2] != [rows, length] {
                return Err(format!("indices {indices} have no row for each token of {p}"));
            }
            equal(marks, Type::i32([rows, length]), "marks")?;
            Ok(vec![Type::f32([rows, experts]); 2])
        }
        Op::CountCopies { experts } => {
            let [indices, places, present] = operands(inputs)?;
            integers(indices, "indices")?;
            equal(places, indices, "places")?;
            integers(present, "present")?;
            match indices.shape[..] {
                [rows, length, _] if present.shape[..] == [rows, length] => {
                    Ok(vec![Type::f32([2, *experts])])
                }
                _ => Err(format!("{present} does not say of each token of {indices} whether it is one")),
            }
        }
        Op::Steer { rate } => {
            let [counts, scale] = operands(inputs)?;
            equal(counts, Type::f32(counts.shape), "counts")?;
            equal(scale, Type::f32([]), "scale")?;
            if counts.shape.is_empty() || !rate.is_finite() {
                return Err(format!("the counts {counts} cannot move biases by {rate}"));
            }
            Ok(vec![Type::f32([counts.shape.columns()])])
        }
        Op::ExpertLoadGrad { .. } => {
            let [load, marks] = operands(inputs)?;
            let [rows, experts] = group(load)?;
            integers(marks, "marks")?;
            match marks.shape[..] {
                [count, length] if count == rows => Ok(vec![Type::f32([rows, length, experts])]),
                _ => Err(format!("marks {marks} have no row for each of {load}")),
            }
        }
        Op::BalanceLoss(_) => {
            loads(inputs, 2, "a probability and a count for each layer")?;
            Ok(vec![Type::f32([])])
        }
        Op::BalanceLossGrad(_) => {
            let (dloss, rest) = inputs.split_first().ok_or("takes at least 4 inputs, got 0")?;
            equal(*dloss, Type::f32([]), "cotangent")?;
            Ok(vec![loads(rest, 1, "a count for each layer")?])
        }
        Op::RouterZLoss { .. } => {
            logarithms(inputs)?;
            Ok(vec![Type::f32([])])
        }
        Op::RouterZLossGrad { .. } => {
            let (dloss, rest) = inputs.split_first().ok_or("takes 4 inputs, got 0")?;
            equal(*dloss, Type::f32([]), "cotangent")?;
            Ok(vec![logarithms(rest)?])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let inputs = &node.inputs;
    match &node.op {
        Op::ExpertLoad { ignored } => {
            tape.emit(inputs[0], Op::ExpertLoadGrad { ignored: *ignored }, &[dy, inputs[2]]);
        }
        // The gradient is the same for the probabilities of every layer.
        Op::BalanceLoss(balance) => {
            let (probabilities, counts) = (inputs[2..].iter().step_by(2), inputs[3..].iter().step_by(2));
            let operands: Vec<Value> =
                [dy, inputs[0], inputs[1]].into_iter().chain(counts.copied()).collect();
            let gradient = tape.graph.apply(Op::BalanceLossGrad(*balance), &operands);
            probabilities.for_each(|&probability| tape.share(probability, gradient));
        }
        Op::RouterZLoss { ignore_index } => {
            let op = Op::RouterZLossGrad { ignore_index: *ignore_index };
            tape.emit(inputs[2], op, &[dy, inputs[0], inputs[1], inputs[2]]);
        }
        other => return no_derivative(other),
    }
    Ok(())
}

/// `[B, T, E]` of probabilities.
fn sequences(p: Type) -> Result<[usize; 3], String> {
    let extents = <[usize; 3]>::try_from(&p.shape[..]).ok().filter(|_| p.dtype == DType::F32);
    extents.ok_or_else(|| format!("probabilities must be f32 of [sequences, positions, experts], got {p}"))
}

/// `[B, E]` of a load.
fn group(load: Type) -> Result<[usize; 2], String> {
    let extents = <[usize; 2]>::try_from(&load.shape[..]).ok().filter(|_| load.dtype == DType::F32);
    extents.ok_or_else(|| format!("a load must be f32 of [sequences, experts], got {load}"))
}

/// The type of the loads after `scale` and `targets`; every layer has `each` of them.
fn loads(inputs: &[Type], each: usize, wanted: &str) -> Result<Type, String> {
    let [scale, targets, loads @ ..] = inputs else {
        return Err(format!("takes scale, targets and {wanted}, got {}", inputs.len()));
    };
    equal(*scale, Type::f32([]), "scale")?;
    integers(*targets, "targets")?;
    let first =
        *loads.first().filter(|_| loads.len() % each == 0).ok_or_else(|| format!("takes {wanted}"))?;
    let [rows, _] = group(first)?;
    if targets.shape.len() != 2 || targets.shape[0] != rows {
        return Err(format!("targets {targets} have no row for each of {first}"));
    }
    loads.iter().try_for_each(|&load| equal(load, first, "loads of two layers"))?;
    Ok(first)
}

/// The type of the logarithms behind `scale` and `targets`.
fn logarithms(inputs: &[Type]) -> Result<Type, String> {
    let [scale, targets, lse] = operands(inputs)?;
    equal(scale, Type::f32([]), "scale")?;
    integers(targets, "targets")?;
    equal(lse, Type::f32(Shape::from([targets.shape.elements()])), "logarithms, one for each target,")?;
    Ok(lse)
}
