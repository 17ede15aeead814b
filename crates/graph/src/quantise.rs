//! The pass that keeps frozen weights in few bits, after [`store`](crate::store).
//!
//! ```text
//! y = linear(x, w)           →   w₁ = dequantise(w, w.absmax, …);  y = linear(x, w₁)
//! dx = linear_grad_input(w)  →   w₂ = dequantise(w, w.absmax, …);  dx = linear_grad_input(w₂)
//! ```
//!
//! Each reader has its own `dequantise` node right before it, so that no dequantised weight outlives its use, under any
//! plan. A weight that its model stores as `(in, out)` is kept as `(out, in)`, as in bitsandbytes; its readers are
//! adapted.
//!
//! Absent on purpose: the choice of weights. The caller names them, and fills their ranges.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Init, Node, StateId, StateKind};
use crate::op::{Dequantise, Quantised};
use crate::splice::Splice;
use crate::{DType, GraphError, Op, Type, Value};

/// Keeps the matrices called `weights` in `form`; their readers get them as `to`.
///
/// # Errors
///
/// When a weight is unknown, trained, not read by linear layers alone, or of a width that the form has no blocks for.
pub fn quantise(
    graph: Graph,
    weights: &BTreeSet<String>,
    form: Quantised,
    to: DType,
) -> Result<Graph, GraphError> {
    let readers = readers(&graph, weights);
    let found = weights.iter().map(|name| Weight::find(&graph, name, form, &readers));
    let found: BTreeMap<Value, Weight> =
        found.map(|weight| weight.map(|weight| (weight.value, weight))).collect::<Result<_, _>>()?;
    let (splice, nodes) = Splice::of(graph);
    let mut pass = Pass { splice, form, to, weights: BTreeMap::new() };
    for (value, weight) in found {
        pass.declare(value, &weight);
    }
    for node in nodes {
        pass.rewrite(node)?;
    }
    pass.splice.finish()
}

/// The nodes that read each of the parameters called `weights`, found in one walk: there may be thousands of both.
fn readers<'a>(graph: &'a Graph, weights: &BTreeSet<String>) -> BTreeMap<Value, Vec<&'a Node>> {
    let values = weights.iter().filter_map(|name| graph.state_named(name)).map(|state| graph.newest(state));
    let mut readers: BTreeMap<Value, Vec<&Node>> = values.map(|value| (value, Vec::new())).collect();
    for node in graph.nodes() {
        for input in &node.inputs {
            if let Some(of) = readers.get_mut(input) {
                of.push(node);
            }
        }
    }
    readers
}

/// A weight before it is quantised.
struct Weight {
    value: Value,
    state: StateId,
    /// The weight's extents as `(out, in)`.
    shape: [usize; 2],
}

impl Weight {
    fn find(
        graph: &Graph,
        name: &str,
        form: Quantised,
        readers: &BTreeMap<Value, Vec<&Node>>,
    ) -> Result<Weight, GraphError> {
        let state = graph.state_named(name).ok_or_else(|| refuse(name, "is not there"))?;
        let info = graph.state(state);
        let trained = graph.state_named(&crate::gradient_name(name)).is_some();
        let (false, [value]) = (trained, &info.versions[..]) else {
            return Err(refuse(name, "is trained, and quantised weights are frozen"));
        };
        let value = *value;
        let &[first, second] = &info.ty.shape[..] else {
            return Err(refuse(name, &format!("is {}, and only matrices are quantised", info.ty)));
        };
        let mut orders = BTreeSet::new();
        for node in readers.get(&value).into_iter().flatten() {
            orders.insert(stored_transposed(node, value).ok_or_else(|| {
                let why =
                    format!("is read by `{}`; only weights of linear layers are quantised", node.op.name());
                refuse(name, &why)
            })?);
        }
        let shape = match orders.iter().collect::<Vec<_>>()[..] {
            [true] => [second, first],
            [false] => [first, second],
            _ => return Err(refuse(name, "is read in both orders or not at all")),
        };
        match form.refuses(shape[1]) {
            Some(why) => Err(refuse(name, &why)),
            None => Ok(Weight { value, state, shape }),
        }
    }
}

/// Whether `node` reads `weight` as `(in, out)`; none when it is no reader of weights.
fn stored_transposed(node: &Node, weight: Value) -> Option<bool> {
    let only = |from: usize, count: usize| {
        let mut places = (0..node.inputs.len()).filter(|&index| node.inputs[index] == weight);
        places.all(|index| (from..from + count).contains(&index))
    };
    match node.op {
        Op::Linear { transposed, .. } => only(1, 1).then_some(transposed),
        Op::LinearGradInput { transposed } => only(0, 1).then_some(transposed),
        Op::Mlp(mlp) => only(1, mlp.products()).then_some(mlp.transposed),
        Op::MlpGrad { mlp, weights: false, .. } => only(2, mlp.products()).then_some(mlp.transposed),
        _ => None,
    }
}

/// A weight's ranges.
struct Ranges {
    values: Vec<Value>,
    shape: [usize; 2],
}

struct Pass {
    splice: Splice,
    form: Quantised,
    to: DType,
    weights: BTreeMap<Value, Ranges>,
}

impl Pass {
    /// Gives a weight's range the type of codes, and puts its scales beside it.
    fn declare(&mut self, value: Value, weight: &Weight) {
        let (kind, graph) = (StateKind::Parameter { trainable: false }, &mut self.splice.graph);
        let name = graph.states[weight.state.index()].name.clone();
        let mut values = Vec::new();
        for (suffix, ty) in self.form.ranges(weight.shape) {
            if suffix.is_empty() {
                let state = &mut graph.states[weight.state.index()];
                (state.ty, state.kind, state.init) = (ty, kind, Init::Fill(0.0));
                graph.values[value.index()].ty = ty;
                values.push(value);
            } else {
                let state = graph.find_or_push_state(format!("{name}{suffix}"), ty, kind, Init::Fill(0.0));
                values.push(graph.newest(state));
            }
        }
        self.weights.insert(value, Ranges { values, shape: weight.shape });
    }

    /// Appends a node, after the nodes that dequantise its weights.
    fn rewrite(&mut self, mut node: Node) -> Result<(), GraphError> {
        let known = |value: &Value| self.weights.contains_key(value);
        let quantised = node.inputs.iter().filter(|value| known(value)).count();
        if quantised > 0 {
            self.turn(&mut node, quantised)?;
        }
        for index in 0..node.inputs.len() {
            if let Some(Ranges { values, shape }) = self.weights.get(&node.inputs[index]) {
                let op = Op::Dequantise(Dequantise { form: self.form, shape: *shape, to: self.to });
                let ty = Type { shape: (*shape).into(), dtype: self.to };
                let weight = self.splice.fresh_of(ty);
                self.splice.insert_all(&node, op, values.clone(), weight);
                node.inputs[index] = weight;
            }
        }
        self.splice.keep(node);
        Ok(())
    }

    /// Adapts a reader to weights that are now `(out, in)`; a network turns all of its weights or none.
    fn turn(&self, node: &mut Node, quantised: usize) -> Result<(), GraphError> {
        match &mut node.op {
            Op::Linear { transposed, .. } | Op::LinearGradInput { transposed } => *transposed = false,
            Op::Mlp(mlp) | Op::MlpGrad { mlp, .. } => {
                if mlp.transposed && quantised < mlp.products() {
                    let block = self.splice.graph.block_name(node.block);
                    let why = "has weights in both orders: quantise all weights of a network or none".into();
                    return Err(GraphError { what: "quantise".into(), block, why, at: None });
                }
                mlp.transposed = false;
            }
            _ => {}
        }
        Ok(())
    }
}

fn refuse(name: &str, why: &str) -> GraphError {
    GraphError { what: "quantise".into(), block: String::new(), why: format!("`{name}` {why}"), at: None }
}

/// Bytes of the quantised weights of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedBytes {
    /// The form of the weights.
    pub form: Quantised,
    /// The number of weights.
    pub weights: usize,
    /// Bytes of the weights' codes and scales.
    pub bytes: u64,
    /// Bytes that the same weights would take as f32.
    pub whole_bytes: u64,
}

impl Graph {
    /// The quantised weights, if there are any.
    pub fn quantised_bytes(&self) -> Option<QuantisedBytes> {
        let mut seen = BTreeSet::new();
        let mut sum: Option<QuantisedBytes> = None;
        for node in &self.nodes {
            let Op::Dequantise(Dequantise { form, shape: [rows, columns], .. }) = node.op else { continue };
            if !seen.insert(node.inputs[0]) {
                continue;
            }
            let bytes: u64 = node.inputs.iter().map(|&input| self.ty(input).bytes() as u64).sum();
            let sum = sum.get_or_insert(QuantisedBytes { form, weights: 0, bytes: 0, whole_bytes: 0 });
            sum.weights += 1;
            sum.bytes += bytes;
            sum.whole_bytes += (4 * rows * columns) as u64;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differentiate;

    /// Two linear layers, the second one trained and the first stored as `transposed` says.
    fn layers(transposed: bool, width: usize) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [6, width], DType::F32); // (N, C)
        let a = g.param("a", [width, width], Init::Normal(0.1)); // (C, C)
        let x = g.linear(x, a, None); // (N, C)
        let shape = if transposed { [width, 128] } else { [128, width] };
        let w = g.frozen("w", shape, Init::Normal(0.1)); // (out, in), or (in, out)
        let x = g.apply(Op::Linear { transposed, bias: false }, &[x, w]); // (N, 128)
        let loss = g.sum(x, &[0, 1]);
        g.output("loss", loss);
        differentiate(&g.finish().unwrap(), loss).unwrap()
    }

    fn of(graph: Graph, form: Quantised) -> Result<Graph, GraphError> {
        quantise(graph, &BTreeSet::from(["w".to_owned()]), form, DType::F32)
    }

    #[test]
    fn every_reader_has_a_dequantise_of_its_own_right_before_it() {
        for form in [Quantised::Nf4, Quantised::Nf4Double, Quantised::Int8] {
            for transposed in [false, true] {
                let graph = of(layers(transposed, 64), form).unwrap();
                let nodes = graph.nodes();
                let places: Vec<usize> =
                    (0..nodes.len()).filter(|&at| matches!(nodes[at].op, Op::Dequantise(_))).collect();
                assert_eq!(places.len(), 2, "{form}: forward and backward");
                for at in places {
                    let (made, reader) = (nodes[at].outputs[0], &nodes[at + 1]);
                    assert!(reader.inputs.contains(&made), "{form}: {}", reader.op.name());
                    let turned = matches!(
                        reader.op,
                        Op::Linear { transposed: false, .. } | Op::LinearGradInput { transposed: false }
                    );
                    assert!(turned, "{form}: {:?}", reader.op);
                    let readers = nodes.iter().filter(|node| node.inputs.contains(&made)).count();
                    assert_eq!((readers, reader.phase), (1, nodes[at].phase), "{form}");
                }
            }
        }
    }

    #[test]
    fn codes_and_scales_take_less_than_0_13_of_the_floats() {
        let graph = of(layers(false, 256), Quantised::Nf4Double).unwrap();
        let bytes = graph.quantised_bytes().unwrap();
        assert_eq!((bytes.weights, bytes.whole_bytes), (1, 4 * 128 * 256));
        // Half a byte, a byte for 64, four for 64 · 256, and an offset.
        assert_eq!(bytes.bytes, 128 * 128 + 512 + 4 * 2 + 4);
        assert!(bytes.bytes as f64 <= 0.130 * bytes.whole_bytes as f64);
        assert_eq!(layers(false, 64).quantised_bytes(), None);
    }

    #[test]
    fn widths_without_whole_blocks_are_refused_in_four_bits_and_not_in_eight() {
        let why = of(layers(false, 96), Quantised::Nf4Double).unwrap_err().why;
        assert_eq!(why, "`w` has 96 columns, and a block of 4-bit codes holds 64");
        of(layers(false, 96), Quantised::Int8).unwrap();
    }

    #[test]
    fn trained_weights_and_tables_are_refused_by_name() {
        let trained = BTreeSet::from(["a".to_owned()]);
        let why = quantise(layers(false, 64), &trained, Quantised::Int8, DType::F32).unwrap_err().why;
        assert_eq!(why, "`a` is trained, and quantised weights are frozen");
        let mut g = Graph::new();
        let ids = g.input("ids", [4], DType::I32);
        let table = g.frozen("w", [10, 64], Init::Normal(0.1));
        let x = g.embedding(table, ids);
        g.output("x", x);
        let why = of(g.finish().unwrap(), Quantised::Nf4).unwrap_err().why;
        assert_eq!(why, "`w` is read by `embedding`; only weights of linear layers are quantised");
    }
}
