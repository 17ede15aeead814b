//! Routing: probabilities of experts with the logarithm of their divisor, and the choice of the largest.
//!
//! Everything here is f32 under every precision. Softmax after the choice, weights that add up to one and losses of a
//! router are composed of other ops.

use super::{Cotangents, equal, float, no_derivative, no_types, operands};
use crate::graph::{Graph, Node};
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Shape, Type, Value};

impl Graph {
    /// Softmax over the last axis, and for each row the logarithm of its divisor: `[p, lse]`, both f32.
    #[track_caller]
    pub fn softmax_lse(&mut self, x: Value) -> [Value; 2] {
        self.two(Op::SoftmaxLse, &[x])
    }

    /// The `k` largest scores of each row and their columns, the largest first: `[weights, indices]`. Of equal scores the
    /// one with the lower index is taken first.
    #[track_caller]
    pub fn top_k(&mut self, scores: Value, k: usize) -> [Value; 2] {
        self.two(Op::TopK { k, steered: false }, &[scores])
    }

    /// The columns of the `k` largest `p + bias` of each row, with their scores: `[weights, indices]`.
    #[track_caller]
    pub fn steered_top_k(&mut self, scores: Value, p: Value, bias: Value, k: usize) -> [Value; 2] {
        self.two(Op::TopK { k, steered: true }, &[scores, p, bias])
    }

    #[track_caller]
    fn two(&mut self, op: Op, inputs: &[Value]) -> [Value; 2] {
        let node = self.apply_all(op, inputs);
        let outputs = &self.node(node).outputs;
        [outputs[0], outputs[1]]
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::SoftmaxLse => {
            let [x] = operands(inputs)?;
            float(x)?;
            Ok(vec![Type::f32(x.shape), Type::f32([x.shape.rows()])])
        }
        Op::SoftmaxLseGrad { softmax, lse } => {
            let p = *inputs.first().ok_or("takes at least 1 input, got 0")?;
            let dp = softmax.then_some(Type::f32(p.shape));
            let dlse = lse.then_some(Type::f32([p.shape.rows()]));
            let wanted: Vec<Type> = [Type::f32(p.shape)].into_iter().chain(dp).chain(dlse).collect();
            if inputs != wanted {
                return Err(format!("takes {wanted:?}, got {inputs:?}"));
            }
            Ok(vec![p])
        }
        Op::TopK { k, steered } => {
            let scores = *inputs.first().ok_or("takes at least 1 input, got 0")?;
            check_steering(inputs, *steered)?;
            equal(scores, Type::f32(scores.shape), "scores")?;
            let columns = scores.shape.last().copied().unwrap_or(0);
            if *k == 0 || *k > columns {
                return Err(format!("{k} of {columns} columns cannot be chosen; choose 1 to {columns}"));
            }
            let shape = with_columns(scores.shape, *k);
            Ok(vec![Type::f32(shape), Type { shape, dtype: DType::I32 }])
        }
        Op::TopKGrad { columns } => {
            let [indices, dweights] = operands(inputs)?;
            equal(indices, Type { shape: dweights.shape, dtype: DType::I32 }, "indices")?;
            equal(dweights, Type::f32(dweights.shape), "gradient")?;
            if dweights.shape.is_empty() {
                return Err("the gradient of a choice has a column for each, got a scalar".into());
            }
            Ok(vec![Type::f32(with_columns(dweights.shape, *columns))])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let (x, outputs) = (node.inputs[0], &node.outputs);
    match (&node.op, dys) {
        (Op::SoftmaxLse, &[dp, dlse]) => {
            let operands: Vec<Value> = [outputs[0]].into_iter().chain(dp).chain(dlse).collect();
            tape.emit(x, Op::SoftmaxLseGrad { softmax: dp.is_some(), lse: dlse.is_some() }, &operands);
        }
        (Op::TopK { .. }, &[Some(dweights), _]) => {
            let columns = tape.graph.shape(x).columns();
            tape.emit(x, Op::TopKGrad { columns }, &[outputs[1], dweights]);
        }
        (other, _) => return no_derivative(other),
    }
    Ok(())
}

/// Checks the inputs of a choice: its scores, and if biases steer it also the probabilities and the biases.
fn check_steering(inputs: &[Type], steered: bool) -> Result<(), String> {
    if !steered {
        return operands::<1>(inputs).map(|_| ());
    }
    let [scores, p, bias] = operands(inputs)?;
    equal(p, scores, "probabilities and scores")?;
    equal(bias, Type::f32([scores.shape.columns()]), "biases, one for each column,")
}

/// The shape with another last extent.
fn with_columns(shape: Shape, columns: usize) -> Shape {
    shape.with(shape.len() - 1, columns)
}

#[cfg(test)]
mod tests {
    use crate::{DType, Graph, Init, Op, Value, differentiate};

    /// A router whose probabilities and log-sum-exp are part of the loss if the flags say so.
    fn router(softmax: bool, lse: bool) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [6, 4], DType::F32); // (N, C)
        let w = g.param("w", [5, 4], Init::Normal(0.1)); // (E, C)
        let logits = g.linear(x, w, None); // (N, E)
        let [p, z] = g.softmax_lse(logits); // (N, E), (N)
        let [weights, _] = g.top_k(p, 2); // (N, k)
        let terms = [softmax.then(|| g.sum(weights, &[0, 1])), lse.then(|| g.sum(z, &[0]))];
        let loss = terms.into_iter().flatten().reduce(|a, b| g.add(a, b)).unwrap();
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    #[test]
    fn a_cotangent_that_is_missing_costs_no_node_and_no_operand() {
        let gradient = |softmax, lse| {
            let graph = router(softmax, lse);
            let node =
                graph.nodes().iter().find(|node| matches!(node.op, Op::SoftmaxLseGrad { .. })).unwrap();
            let made = graph.nodes().iter().filter(|node| matches!(node.op, Op::TopKGrad { .. })).count();
            (node.op.clone(), node.inputs.len(), made)
        };
        assert_eq!(gradient(true, true), (Op::SoftmaxLseGrad { softmax: true, lse: true }, 3, 1));
        assert_eq!(gradient(true, false), (Op::SoftmaxLseGrad { softmax: true, lse: false }, 2, 1));
        assert_eq!(gradient(false, true), (Op::SoftmaxLseGrad { softmax: false, lse: true }, 2, 0));
    }

    #[test]
    fn more_columns_than_there_are_cannot_be_chosen() {
        for k in [0, 6] {
            let mut g = Graph::new();
            let scores = g.input("scores", [3, 5], DType::F32);
            g.top_k(scores, k);
            let why = format!("{k} of 5 columns cannot be chosen; choose 1 to 5");
            assert_eq!(g.finish().unwrap_err().why, why);
        }
    }

    #[test]
    fn a_statistic_beside_a_result_is_refused_by_name() {
        let mut g = Graph::new();
        let x = g.param("x", [3, 4], Init::Normal(1.0));
        let weight = g.param("weight", [4], Init::Fill(1.0));
        let norm = g.apply_all(Op::RmsNorm { epsilon: 1e-6 }, &[x, weight]);
        let rstd: Value = g.node(norm).outputs[1];
        let loss = g.sum(rstd, &[0]);
        let error = differentiate(&g, loss).unwrap_err();
        assert_eq!(error.to_string(), "rms_norm: its output 1 cannot be differentiated");
    }
}
