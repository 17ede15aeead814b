//! Derivatives against finite differences, op by op, through the whole of `differentiate`.
//!
//! Each row of the table is a graph whose parameters are the op's float inputs. The loss is the sum of
//! the output times fixed random numbers. Its derivative in one random direction `d` of unit length is
//! `Σ gradient · d`, which must equal the central difference
//! `(8(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h` with `f(t) = loss(x + t·d)`.
//!
//! Step and tolerance: the difference formula errs by about h⁴/30 of the fifth derivative, 3·10⁻⁶ of it
//! at h = 0.1; values rounded to f32 add about 10⁻⁷/h, a third of that. Both are held against the length
//! of the gradient; the worst seen is 7·10⁻⁶ of it, and 2·10⁻⁵ is allowed. The derivative itself is about
//! a tenth of that length, so an error of a thousandth of the gradient shows.
#![allow(clippy::unwrap_used, reason = "a test may end where it finds a fault")]

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_exec::random::{Stream, name_hash};
use plimsoll_exec::reference::{Tensor, init, interpret};
use plimsoll_graph::op::{Activation, Conv, Gelu, Mlp};
use plimsoll_graph::{
    Axes, DType, Graph, Init, Op, Phase, Shape, State, StateKind, Type, Value, Visible, differentiate,
    gradient_name,
};

const STEP: f64 = 0.1;
const TOLERANCE: f64 = 2e-5;

/// An op, the shapes of its float inputs, and how it is applied to them.
type Row = (&'static str, &'static [&'static [usize]], fn(&mut Graph, &[Value]) -> Value);

/// One line per op and form of it, in the order of `op.rs`.
const TABLE: &[Row] = &[
    ("reshape", &[&[3, 4]], |g, x| g.reshape(x[0], [2, 6])),
    ("transpose", &[&[2, 3, 4]], |g, x| g.transpose(x[0], &[2, 0, 1])),
    ("slice", &[&[3, 5]], |g, x| g.slice(x[0], 1, 1, 3)),
    ("pad", &[&[3, 2]], |g, x| g.apply(Op::Pad { axis: 1, start: 2, len: 5 }, x)),
    ("concat", &[&[2, 3], &[2, 4]], |g, x| g.concat(&[x[0], x[1], x[0]], 1)),
    ("cast", &[&[7]], |g, x| g.cast(x[0], DType::F32)),
    ("broadcast", &[&[3]], |g, x| {
        g.apply(Op::Broadcast { shape: [2, 3, 4].into(), axes: Axes::of([0, 2]) }, x)
    }),
    ("add", &[&[3, 4], &[3, 4]], |g, x| g.add(x[0], x[1])),
    ("add", &[&[2, 3, 4], &[4]], |g, x| g.add(x[0], x[1])),
    ("add", &[&[3, 4]], |g, x| g.add(x[0], x[0])),
    ("mul", &[&[3, 4], &[3, 4]], |g, x| g.mul(x[0], x[1])),
    ("mul", &[&[2, 3, 4], &[3, 4]], |g, x| g.mul(x[0], x[1])),
    ("mul", &[&[3, 4]], |g, x| g.mul(x[0], x[0])),
    ("scale", &[&[5]], |g, x| g.scale(x[0], -1.7)),
    ("silu", &[&[4, 5]], |g, x| g.silu(x[0])),
    ("gelu", &[&[4, 5]], |g, x| g.gelu(x[0], Gelu::Tanh)),
    ("gelu", &[&[4, 5]], |g, x| g.gelu(x[0], Gelu::Erf)),
    ("tanh", &[&[4, 5]], |g, x| g.tanh(x[0])),
    ("swiglu", &[&[4, 5], &[4, 5]], |g, x| g.swiglu(x[0], x[1])),
    ("dropout", &[&[6, 5]], |g, x| g.dropout(x[0], 0.4)),
    ("linear", &[&[2, 3, 5], &[4, 5]], |g, x| g.linear(x[0], x[1], None)),
    ("linear", &[&[3, 5], &[4, 5], &[4]], |g, x| g.linear(x[0], x[1], Some(x[2]))),
    ("linear", &[&[3, 5], &[5, 4], &[4]], |g, x| g.linear_transposed(x[0], x[1], Some(x[2]))),
    ("linear", &[&[2, 3, 5], &[4, 5], &[2, 3, 4]], |g, x| g.linear(x[0], x[1], Some(x[2]))),
    ("matmul", &[&[2, 3, 4], &[2, 4, 5]], |g, x| matmul(g, x, false, false)),
    ("matmul", &[&[2, 3, 4], &[2, 5, 4]], |g, x| matmul(g, x, false, true)),
    ("matmul", &[&[2, 4, 3], &[2, 4, 5]], |g, x| matmul(g, x, true, false)),
    ("matmul", &[&[2, 4, 3], &[2, 5, 4]], |g, x| matmul(g, x, true, true)),
    ("conv2d", &[&[2, 3, 5, 4], &[4, 3, 3, 2], &[4]], |g, x| {
        g.conv2d(x[0], x[1], Some(x[2]), Conv { stride: 1, padding: 1 })
    }),
    ("conv2d", &[&[2, 3, 5, 4], &[4, 3, 3, 2]], |g, x| {
        g.conv2d(x[0], x[1], None, Conv { stride: 2, padding: 0 })
    }),
    ("sum", &[&[2, 3, 4]], |g, x| g.sum(x[0], &[0, 2])),
    ("softmax", &[&[4, 6]], |g, x| g.softmax(x[0])),
    ("layer_norm", &[&[3, 6], &[6], &[6]], |g, x| g.layer_norm(x[0], x[1], x[2], 1e-5)),
    ("rms_norm", &[&[2, 3, 6], &[6]], |g, x| g.rms_norm(x[0], x[1], 1e-6)),
    ("embedding", &[&[5, 3]], |g, x| {
        let ids = g.input("ids", [2, 4], DType::I32);
        g.embedding(x[0], ids)
    }),
    ("rope", &[&[2, 3, 2, 4]], |g, x| rope(g, x[0], false)),
    ("rope", &[&[2, 3, 2, 4]], |g, x| rope(g, x[0], true)),
    ("attention", QKV_GROUPED, |g, x| g.attention(x[0], x[1], x[2], Visible::CAUSAL)),
    ("attention", QKV_EQUAL, |g, x| g.attention(x[0], x[1], x[2], Visible::ALL)),
    ("attention", QKV_GROUPED, |g, x| {
        g.attention(x[0], x[1], x[2], Visible { window: Some(2), ..Visible::CAUSAL })
    }),
    ("attention", QKV_EQUAL, |g, x| {
        let doc_start = Some(g.input("doc_start", [2, 5], DType::I32));
        g.attention(x[0], x[1], x[2], Visible { doc_start, ..Visible::CAUSAL })
    }),
    ("mlp", &[&[5, 3], &[4, 3], &[4, 3], &[3, 4]], |g, x| mlp(g, x, Activation::Swiglu, false)),
    ("mlp", &[&[2, 3, 3], &[3, 4], &[4, 2], &[4], &[2]], |g, x| {
        mlp(g, x, Activation::Gelu(Gelu::Tanh), true)
    }),
    ("mlp", &[&[5, 3], &[4, 3], &[2, 4]], |g, x| mlp(g, x, Activation::Gelu(Gelu::Erf), false)),
    ("cross_entropy", &[&[6, 5]], |g, x| {
        let (targets, scale) = targets(g);
        g.cross_entropy(x[0], targets, scale, -100)
    }),
    ("head_loss", &[&[6, 3], &[5, 3]], head),
    ("head_loss", &[&[6, 3], &[5, 3], &[5]], head),
];

/// Queries, keys and values (B, T, heads, D): four query heads on two key heads, or two on two.
const QKV_GROUPED: &[&[usize]] = &[&[2, 5, 4, 4], &[2, 5, 2, 4], &[2, 5, 2, 4]];
const QKV_EQUAL: &[&[usize]] = &[&[2, 5, 2, 4], &[2, 5, 2, 4], &[2, 5, 2, 4]];

/// Ops that have no derivative because nothing is differentiated after them.
const UPDATES: [&str; 5] = ["accumulate", "sum_squares", "clip_scale", "sgd", "adamw"];

#[test]
fn every_derivative_is_what_finite_differences_give() {
    for (index, (op, shapes, apply)) in TABLE.iter().enumerate() {
        let mut g = Graph::new();
        let parameters = parameters(&mut g, shapes);
        let y = apply(&mut g, &parameters);
        assert!(g.nodes().iter().any(|node| node.op.name() == *op), "row {index} has no {op}");
        let shape = g.shape(y);
        let weights = normal(&format!("weights {index}"), shape.elements());
        let weights = g.constant("weights", shape, weights.iter().map(|&x| x as f32).collect());
        let weighted = g.mul(y, weights);
        let loss = g.sum(weighted, &(0..shape.len()).collect::<Vec<_>>());
        check(&format!("row {index} ({op})"), g, loss);
    }
}

#[test]
fn a_fused_head_that_is_the_root_has_the_same_derivative() {
    let shapes: [&[usize]; 3] = [&[6, 3], &[5, 3], &[5]];
    for operands in [2, 3] {
        let mut g = Graph::new();
        let parameters = parameters(&mut g, &shapes[..operands]);
        let loss = head(&mut g, &parameters);
        check(&format!("head of {operands} operands as root"), g, loss);
    }
}

#[test]
fn a_weight_shared_by_embedding_and_head_has_the_sum_of_both_derivatives() {
    let mut g = Graph::new();
    let table = parameters(&mut g, &[&[5, 3]])[0];
    let ids = g.input("ids", [6], DType::I32);
    let x = g.embedding(table, ids);
    let (targets, scale) = targets(&mut g);
    let loss = g.head_loss(x, table, None, targets, scale, -100);
    check("tied", g, loss);
}

/// Finite differences cannot see through rounding; the rule can be read off: the cotangent is rounded.
#[test]
fn the_gradient_of_a_cast_is_the_cotangent_rounded_to_the_narrow_type() {
    let mut g = Graph::new();
    let x = parameters(&mut g, &[&[8]]);
    let narrow = g.cast(x[0], DType::Bf16);
    let wide = g.cast(narrow, DType::F32);
    let weights = normal("weights", 8);
    let constant = g.constant("weights", [8], weights.iter().map(|&x| x as f32).collect());
    let weighted = g.mul(wide, constant);
    let loss = g.sum(weighted, &[0]);
    let graph = differentiate(&g.finish().unwrap(), loss).unwrap();
    let mut states = initial(&graph);
    interpret(&graph, &BTreeMap::new(), &mut states, Phase::Backward, true).unwrap();
    let ty = Type { shape: [8].into(), dtype: DType::Bf16 };
    assert_eq!(states["grad.0"].numbers(), Tensor::from_numbers(ty, &weights).numbers());
}

#[test]
fn every_op_that_has_a_derivative_has_a_row() {
    let source = include_str!("../../graph/src/op.rs");
    let arms = source.lines().filter(|line| line.trim_start().starts_with("Op::"));
    let names = arms.filter_map(|arm| arm.split_once("=> \"")?.1.strip_suffix("\","));
    let differentiable: BTreeSet<&str> =
        names.filter(|name| !name.contains("_grad") && !UPDATES.contains(name)).collect();
    assert!(differentiable.len() > 20, "the table of names in op.rs has another form now");
    assert_eq!(differentiable, TABLE.iter().map(|(op, ..)| *op).collect());
}

/// Compares the derivative of `loss` in one random direction with the difference quotient.
fn check(name: &str, mut g: Graph, loss: Value) {
    g.output("loss", loss);
    let forward = g.finish().unwrap_or_else(|error| panic!("{name}: {error}"));
    let backward = differentiate(&forward, loss).unwrap_or_else(|error| panic!("{name}: {error}"));
    let inputs: BTreeMap<String, Tensor> = forward
        .inputs()
        .iter()
        .map(|&input| (forward.value(input).name.clone(), given(&forward, input)))
        .collect();

    let mut states = initial(&backward);
    interpret(&backward, &inputs, &mut states, Phase::Backward, true).unwrap();
    let direction = direction(&forward, name);
    let gradient = |parameter: &String| states[&gradient_name(parameter)].numbers();
    let analytic: f64 = direction.iter().map(|(parameter, d)| dot(&gradient(parameter), d)).sum();
    let length =
        direction.keys().map(|parameter| dot(&gradient(parameter), &gradient(parameter))).sum::<f64>().sqrt();

    let f = |t: f64| {
        let mut states = initial(&forward);
        for (parameter, d) in &direction {
            let tensor = &states[parameter];
            let moved: Vec<f64> = tensor.numbers().iter().zip(d).map(|(x, d)| x + t * d).collect();
            let moved = Tensor::from_numbers(tensor.ty, &moved);
            states.insert(parameter.clone(), moved);
        }
        interpret(&forward, &inputs, &mut states, Phase::Forward, true).unwrap()["loss"].numbers()[0]
    };
    let difference = (8.0 * (f(STEP) - f(-STEP)) - (f(2.0 * STEP) - f(-2.0 * STEP))) / (12.0 * STEP);
    let error = (analytic - difference).abs();
    assert!(
        length > 0.0 && error <= TOLERANCE * length,
        "{name}: {analytic} is not {difference}, of {length}"
    );
}

/// A direction of unit length in the space of all parameters.
fn direction(graph: &Graph, name: &str) -> BTreeMap<String, Vec<f64>> {
    let trainable = |state: &&State| matches!(state.kind, StateKind::Parameter { trainable: true });
    let parameters = graph.states().iter().filter(trainable);
    let mut direction: BTreeMap<String, Vec<f64>> = parameters
        .map(|state| {
            (state.name.clone(), normal(&format!("{name} {}", state.name), state.ty.shape.elements()))
        })
        .collect();
    let length = direction.values().map(|d| dot(d, d)).sum::<f64>().sqrt();
    direction.values_mut().flatten().for_each(|x| *x /= length);
    direction
}

fn initial(graph: &Graph) -> BTreeMap<String, Tensor> {
    graph.states().iter().map(|state| (state.name.clone(), init(state, 3))).collect()
}

/// What each input of the graphs above holds.
fn given(graph: &Graph, input: Value) -> Tensor {
    let (ty, name) = (graph.ty(input), graph.value(input).name.as_str());
    let numbers: &[f64] = match name {
        "ids" => &[0.0, 4.0, 2.0, 2.0, 1.0, 2.0, 4.0, 0.0],
        "targets" => &[0.0, 4.0, -100.0, 2.0, 1.0, 2.0],
        "doc_start" => &[0.0, 0.0, 2.0, 2.0, 2.0, 0.0, 1.0, 1.0, 1.0, 4.0],
        "rng" => &[5.0, 6.0, 7.0, 8.0],
        "scale" => &[0.5],
        other => panic!("nothing is given for {other}"),
    };
    Tensor::from_numbers(ty, &numbers[..ty.shape.elements()])
}

/// Parameters of these shapes, named by their number.
fn parameters(g: &mut Graph, shapes: &[&[usize]]) -> Vec<Value> {
    let declare = |(index, shape): (usize, &&[usize])| {
        g.param(&index.to_string(), Shape::new(shape).unwrap(), Init::Normal(1.0))
    };
    shapes.iter().enumerate().map(declare).collect()
}

fn matmul(g: &mut Graph, x: &[Value], transpose_a: bool, transpose_b: bool) -> Value {
    g.apply(Op::Matmul { transpose_a, transpose_b }, x)
}

/// With biases where there are as many as weights.
fn mlp(g: &mut Graph, x: &[Value], activation: Activation, transposed: bool) -> Value {
    let mlp = Mlp { activation, transposed, bias: false, rows: 2 };
    let bias = x.len() > 1 + mlp.products();
    g.apply(Op::Mlp(Mlp { bias, ..mlp }), x)
}

fn rope(g: &mut Graph, x: Value, with_positions: bool) -> Value {
    let frequencies = g.constant("frequencies", [2], vec![1.0, 0.1]);
    let positions = with_positions.then(|| g.input("ids", [2, 3], DType::I32));
    g.rope(x, frequencies, positions)
}

fn head(g: &mut Graph, x: &[Value]) -> Value {
    let (targets, scale) = targets(g);
    g.head_loss(x[0], x[1], x.get(2).copied(), targets, scale, -100)
}

fn targets(g: &mut Graph) -> (Value, Value) {
    (g.input("targets", [6], DType::I32), g.loss_scale())
}

fn normal(name: &str, count: usize) -> Vec<f64> {
    let stream = Stream::new(11, name_hash(name), 0);
    (0..count as u32).map(|i| f64::from(stream.normal_pair(0, i)[0])).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
