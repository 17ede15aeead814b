//! Mixtures of experts: copies of tokens sorted by expert, products of each expert's rows with its own weight, and the
//! weighted sum back.
//!
//! ```text
//! x[N,C] ─ dispatch ─▶ [R,C] ─ grouped_linear ─▶ [R,F] … ─▶ [R,C] ─ combine ─▶ y[N,C]
//!             ▲                     ▲ ranges                           ▲ weights[N,k]
//! indices[N,k] ── sort_by_expert ───┴──────────────────────────────────┘
//! ```
//!
//! `R` depends on shapes alone, so a plan is exact before the routing is known. Absent on purpose: routers, which are
//! ops of routing, and biases of experts, which no published model of the known families has.

use super::{Cotangents, equal, float, integers, no_derivative, no_types, operands};
use crate::graph::{Graph, Node};
use crate::op::Sorting;
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Shape, Type, Value};

/// Where copies of tokens lie after they have been sorted by expert.
#[derive(Clone, Copy, Debug)]
pub struct SortedCopies {
    /// The row of each copy, i32 `[…,k]`.
    pub places: Value,
    /// The copy in each row, i32 `[R]`.
    pub slots: Value,
    /// First row and number of copies of each expert, i32 `[E,2]`.
    pub ranges: Value,
}

impl Graph {
    /// Sorts the copies of tokens by the experts that `indices[…,k]` name.
    #[track_caller]
    pub fn sort_by_expert(&mut self, indices: Value, sorting: Sorting) -> SortedCopies {
        let node = self.apply_all(Op::SortByExpert(sorting), &[indices]);
        let outputs = &self.node(node).outputs;
        SortedCopies { places: outputs[0], slots: outputs[1], ranges: outputs[2] }
    }

    /// The rows of `x[…,C]` that experts read, one for each copy: `[R,C]`.
    #[track_caller]
    pub fn dispatch(&mut self, x: Value, copies: SortedCopies) -> Value {
        self.apply(Op::Dispatch, &[x, copies.slots, copies.places])
    }

    /// The sum of each token's rows of `h[R,C]`, times `weights[…,k]` where given: `[…,C]`.
    #[track_caller]
    pub fn combine(&mut self, h: Value, copies: SortedCopies, weights: Option<Value>) -> Value {
        let inputs: Vec<Value> = [h, copies.slots, copies.places].into_iter().chain(weights).collect();
        self.apply(Op::Combine { weighted: weights.is_some() }, &inputs)
    }

    /// Each expert's rows of `x[R,in]` times its own weight of `w[E,out,in]`: `[R,out]`.
    #[track_caller]
    pub fn grouped_linear(&mut self, x: Value, w: Value, copies: SortedCopies) -> Value {
        self.apply(Op::GroupedLinear, &[x, w, copies.ranges])
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::SortByExpert(sorting) => {
            let [indices] = operands(inputs)?;
            sort(indices, *sorting)
        }
        Op::Dispatch => {
            let [x, slots, places] = operands(inputs)?;
            copies(slots, places)?;
            tokens(x, places)?;
            Ok(vec![Type { shape: [slots.shape[0], x.shape.columns()].into(), ..x }])
        }
        Op::Combine { weighted } => {
            let (h, slots, places) = combined(inputs, *weighted)?;
            rows(h, slots.shape[0], "rows")?;
            Ok(vec![Type { shape: with_columns(places.shape, h.shape.columns()), ..h }])
        }
        Op::CombineGradRows => {
            let (dy, slots, places) = combined(inputs, true)?;
            tokens(dy, places)?;
            Ok(vec![Type { shape: [slots.shape[0], dy.shape.columns()].into(), ..dy }])
        }
        Op::CombineGradWeights => {
            let [h, dy, places] = operands(inputs)?;
            tokens(dy, places)?;
            let expected = Type { shape: [h.shape.rows(), dy.shape.columns()].into(), ..dy };
            equal(h, expected, "rows and gradient")?;
            Ok(vec![Type::f32(places.shape)])
        }
        Op::GroupedLinear => {
            let [x, w, ranges] = operands(inputs)?;
            let [_, out, input] = grouped(w, ranges)?;
            product(x, w, input)?;
            Ok(vec![Type { shape: [x.shape[0], out].into(), ..x }])
        }
        Op::GroupedLinearGradInput => {
            let [w, dy, ranges] = operands(inputs)?;
            let [_, out, input] = grouped(w, ranges)?;
            product(dy, w, out)?;
            Ok(vec![Type { shape: [dy.shape[0], input].into(), ..dy }])
        }
        Op::GroupedLinearGradWeight => {
            let [x, dy, ranges] = operands(inputs)?;
            rows(x, dy.shape.rows(), "input")?;
            rows(dy, x.shape.rows(), "gradient")?;
            let shape = [experts(ranges)?, dy.shape.columns(), x.shape.columns()];
            Ok(vec![Type { shape: shape.into(), ..dy }])
        }
        other => no_types(other),
    }
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let inputs = &node.inputs;
    match &node.op {
        Op::Dispatch => tape.emit(inputs[0], Op::Combine { weighted: false }, &[dy, inputs[1], inputs[2]]),
        Op::Combine { weighted: false } => {
            tape.emit(inputs[0], Op::Dispatch, &[dy, inputs[1], inputs[2]]);
        }
        // The weights come first: their gradient is the last reader of the rows.
        Op::Combine { weighted: true } => {
            tape.emit(inputs[3], Op::CombineGradWeights, &[inputs[0], dy, inputs[2]]);
            tape.emit(inputs[0], Op::CombineGradRows, &[dy, inputs[1], inputs[2], inputs[3]]);
        }
        Op::GroupedLinear => {
            tape.emit(inputs[1], Op::GroupedLinearGradWeight, &[inputs[0], dy, inputs[2]]);
            tape.emit(inputs[0], Op::GroupedLinearGradInput, &[inputs[1], dy, inputs[2]]);
        }
        other => return no_derivative(other),
    }
    Ok(())
}

/// Every row is charged as if it belonged to an expert: padding is small, and its place is not known here.
pub(super) fn flops(op: &Op, inputs: &[Type]) -> f64 {
    let elements = |ty: &Type| ty.shape.elements() as f64;
    2.0 * match op {
        Op::GroupedLinear => elements(&inputs[0]) * inputs[1].shape[1] as f64,
        Op::GroupedLinearGradInput => elements(&inputs[1]) * inputs[0].shape[2] as f64,
        Op::GroupedLinearGradWeight => elements(&inputs[0]) * inputs[1].shape.columns() as f64,
        _ => 0.0,
    }
}

fn sort(indices: Type, sorting: Sorting) -> Result<Vec<Type>, String> {
    integers(indices, "indices")?;
    let Sorting { experts, tile, capacity } = sorting;
    if indices.shape.is_empty() || experts == 0 || tile == 0 {
        return Err(format!("{indices} cannot be sorted among {experts} experts in tiles of {tile}"));
    }
    if capacity == Some(0) {
        return Err("a capacity below one row leaves every expert without work; raise it".into());
    }
    let rows = sorting.rows(indices.shape);
    Ok(vec![indices, Type::i32([rows]), Type::i32([experts, 2])])
}

/// `(rows or cotangent, slots, places)` of a sum back.
fn combined(inputs: &[Type], weighted: bool) -> Result<(Type, Type, Type), String> {
    let (&[x, slots, places], weights) =
        inputs.split_first_chunk::<3>().ok_or_else(|| format!("takes 3 inputs, got {}", inputs.len()))?;
    let wanted: Vec<Type> = weighted.then_some(Type::f32(places.shape)).into_iter().collect();
    if weights != wanted {
        return Err(format!("takes the weights {wanted:?}, got {weights:?}"));
    }
    copies(slots, places)?;
    float(x)?;
    Ok((x, slots, places))
}

fn copies(slots: Type, places: Type) -> Result<(), String> {
    integers(slots, "slots")?;
    integers(places, "places")?;
    if slots.shape.len() != 1 || places.shape.is_empty() {
        return Err(format!(
            "slots {slots} must be a vector, and places {places} have a column for each copy"
        ));
    }
    Ok(())
}

/// Checks that `x` has a row for each token.
fn tokens(x: Type, places: Type) -> Result<(), String> {
    integers(places, "places")?;
    float(x)?;
    if x.shape.is_empty() || places.shape.is_empty() || leading(x.shape) != leading(places.shape) {
        return Err(format!("{x} has no row for each token of the places {places}"));
    }
    Ok(())
}

fn leading(shape: Shape) -> Vec<usize> {
    shape[..shape.len() - 1].to_vec()
}

/// Checks that `x` is a matrix of `count` rows.
fn rows(x: Type, count: usize, what: &str) -> Result<(), String> {
    float(x)?;
    if x.shape.len() != 2 || x.shape[0] != count {
        return Err(format!("{what} {x} must be a matrix of {count} rows"));
    }
    Ok(())
}

/// `[E, out, in]` of the weight of all experts.
fn grouped(w: Type, ranges: Type) -> Result<[usize; 3], String> {
    let extents = <[usize; 3]>::try_from(&w.shape[..])
        .map_err(|_| format!("the weight must be a matrix for each expert, got {w}"))?;
    if experts(ranges)? != extents[0] {
        return Err(format!("the weight {w} has {} experts, and ranges {ranges} others", extents[0]));
    }
    Ok(extents)
}

fn experts(ranges: Type) -> Result<usize, String> {
    integers(ranges, "ranges")?;
    match ranges.shape[..] {
        [experts, 2] => Ok(experts),
        _ => Err(format!("ranges must be two numbers for each expert, got {ranges}")),
    }
}

fn product(x: Type, w: Type, columns: usize) -> Result<(), String> {
    let either = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
    if x.shape.len() != 2 || x.shape[1] != columns {
        return Err(format!("{x} must be a matrix of {columns} columns, as the weight {w} wants"));
    }
    if w.dtype != x.dtype && !(either(x.dtype) && either(w.dtype)) {
        return Err(format!("input is {}, weight is {}; cast one of them", x.dtype, w.dtype));
    }
    float(x)
}

fn with_columns(shape: Shape, columns: usize) -> Shape {
    shape.with(shape.len() - 1, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, differentiate};

    /// A mixture of three experts, two of them for each of six tokens.
    fn mixture(capacity: Option<usize>) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.param("x", [2, 3, 4], Init::Normal(1.0)); // (B, T, C)
        let scores = g.input("scores", [2, 3, 3], DType::F32); // (B, T, E)
        let [weights, indices] = g.top_k(scores, 2); // (B, T, k)
        let sorted = g.sort_by_expert(indices, Sorting { experts: 3, tile: 4, capacity });
        let rows = g.dispatch(x, sorted); // (R, C)
        let up = g.param("up", [3, 5, 4], Init::Normal(1.0)); // (E, F, C)
        let down = g.param("down", [3, 4, 5], Init::Normal(1.0)); // (E, C, F)
        let hidden = g.grouped_linear(rows, up, sorted); // (R, F)
        let rows = g.grouped_linear(hidden, down, sorted); // (R, C)
        let y = g.combine(rows, sorted, Some(weights)); // (B, T, C)
        let loss = g.sum(y, &[0, 1, 2]);
        g.output("loss", loss);
        differentiate(&g.finish()?, loss)
    }

    #[test]
    fn rows_follow_from_shapes_alone_and_gradients_of_experts_are_written_where_they_are_summed() {
        let graph = mixture(None).unwrap();
        let slots =
            graph.nodes().iter().find(|node| matches!(node.op, Op::SortByExpert(_))).unwrap().outputs[1];
        assert_eq!(graph.shape(slots)[..], [2 * 3 * 2 + 3 * (4 - 1)], "N·k + E·(tile − 1)");
        for name in ["grad.up", "grad.down"] {
            let state = graph.state(graph.state_named(name).unwrap());
            let writer = graph.node(graph.producer(state.versions[1]).unwrap());
            assert_eq!((&writer.op, state.versions.len()), (&Op::GroupedLinearGradWeight, 2));
        }
        // Scores are no parameters here, so nothing is made for the weights.
        assert!(!graph.nodes().iter().any(|node| node.op == Op::CombineGradWeights));
    }

    #[test]
    fn a_capacity_bounds_the_rows_and_must_let_one_through() {
        let graph = mixture(Some(1)).unwrap();
        let slots =
            graph.nodes().iter().find(|node| matches!(node.op, Op::SortByExpert(_))).unwrap().outputs[1];
        assert_eq!(graph.shape(slots)[..], [2 * 3 + 3 * (4 - 1)], "one row for each expert and sequence");
        let error = mixture(Some(0)).unwrap_err();
        assert_eq!(error.why, "a capacity below one row leaves every expert without work; raise it");
    }
}
