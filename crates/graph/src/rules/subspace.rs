//! Parameters that move in a random subspace.

use super::{Cotangents, float, no_derivative, no_types, operands};
use crate::graph::{Graph, Node};
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Type, Value};

impl Graph {
    /// The parameter `w` moved along the coordinates `v[d]` of the subspace that `stream` says.
    #[track_caller]
    pub fn subspace(&mut self, w: Value, v: Value, stream: u64) -> Value {
        self.apply(Op::Subspace { stream }, &[w, v])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Subspace { .. } => {
            let [w, v] = operands(inputs)?;
            float(w)?;
            if v.dtype != DType::F32 || v.shape.len() != 1 || v.shape[0] == 0 {
                return Err(format!("coordinates must be f32[d] with d > 0, got {v}"));
            }
            Ok(vec![Type::f32(w.shape)])
        }
        Op::SubspaceGrad { dimension, .. } => {
            let [dw] = operands(inputs)?;
            float(dw)?;
            if *dimension == 0 {
                return Err("has no coordinate".into());
            }
            Ok(vec![Type::f32([*dimension])])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let (Op::Subspace { stream }, [Some(dy)]) = (&node.op, dys) else { return no_derivative(&node.op) };
    let [w, v] = [node.inputs[0], node.inputs[1]];
    let dimension = tape.graph.shape(v)[0];
    tape.emit(v, Op::SubspaceGrad { stream: *stream, dimension }, &[*dy]);
    tape.share(w, *dy);
    Ok(())
}
