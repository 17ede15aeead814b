//! Derivatives against finite differences, op by op, through the whole of `differentiate`.
//!
//! Each conformance case of an op that has a derivative becomes a graph whose parameters are the op's float inputs. The
//! loss is the sum of the output times fixed random numbers. Its derivative in one random direction `d` of unit length is
//! `Σ gradient · d`, which must equal the central difference
//! `(8(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h` with `f(t) = loss(x + t·d)`.
//!
//! Step and tolerance: the difference formula errs by about h⁴/30 of the fifth derivative, 3·10⁻⁶ of it
//! at h = 0.1; values rounded to f32 add about 10⁻⁷/h, a third of that. Both are held against the length
//! of the gradient; the worst seen is 7·10⁻⁶ of it, and 2·10⁻⁵ is allowed. The derivative itself is about
//! a tenth of that length, so an error of a thousandth of the gradient shows.
#![allow(clippy::unwrap_used, reason = "a test may end where it finds a fault")]

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_exec::cases::{Case, Fill, Input, all};
use plimsoll_exec::random::{Stream, name_hash};
use plimsoll_exec::reference::{Tensor, init, interpret};
use plimsoll_graph::{
    DType, Graph, Init, Node, NodeId, Op, Phase, Shape, State, StateKind, Type, Value, differentiate,
    gradient_name,
};

#[path = "../../graph/tests/support/op_names.rs"]
mod op_names;
use op_names::op_names;

const STEP: f64 = 0.1;
const TOLERANCE: f64 = 2e-5;

/// How many elements a case may have to be differentiated. A larger case would test nothing more. In a smaller one, a
/// single element takes a larger share of the step, and the error of the difference formula grows.
const ELEMENTS: std::ops::Range<usize> = 12..5000;

/// Ops that have no derivative, because nothing is differentiated after them or because they yield integers alone.
const WITHOUT: [&str; 17] = [
    "steer",
    "accumulate",
    "sum_squares",
    "clip_scale",
    "sgd",
    "adamw",
    "lion",
    "adafactor",
    "muon",
    "apollo",
    "perturb",
    "perturb_rows",
    "probe_step",
    "sort_by_expert",
    "count_copies",
    "inverse_norm",
    "head_errors",
];

/// Ops whose operands are never trained.
const FROZEN: [&str; 1] = ["dequantise"];

fn has_derivative(op: &str) -> bool {
    !op.contains("_grad") && !WITHOUT.contains(&op) && !FROZEN.contains(&op)
}

#[test]
fn every_derivative_is_what_finite_differences_give() {
    let mut moved = BTreeSet::new();
    for case in all().iter().filter(|case| has_derivative(case.op.name()) && is_judged(case)) {
        let (mut g, mut given) = (Graph::new(), BTreeMap::new());
        let operands: Vec<Value> = (case.inputs.iter().zip(case.tensors()).enumerate())
            .map(|(index, (input, tensor))| {
                let name = index.to_string();
                given.insert(name.clone(), tensor);
                if is_parameter(input) {
                    g.param(&name, input.ty.shape, Init::Fill(0.0))
                } else {
                    g.input(&name, input.ty.shape, input.ty.dtype)
                }
            })
            .collect();
        let node = g.apply_all(case.op.clone(), &operands);
        for outputs in subsets(&g, node) {
            let mut g = g.clone();
            let terms: Vec<Value> = (outputs.iter().enumerate())
                .map(|(index, &y)| weighted_sum(&mut g, y, index, &case.name))
                .collect();
            let loss = terms.into_iter().reduce(|a, b| g.add(a, b)).unwrap();
            if check(&case.name, g, loss, &given) > 0.0 {
                moved.insert(case.op.name());
            }
        }
    }
    let expected: BTreeSet<&str> = op_names().into_iter().filter(|op| has_derivative(op)).collect();
    assert_eq!(
        moved, expected,
        "ops with a gradient that is not zero in some case, and ops that must have one"
    );
}

/// The outputs that have a derivative, in every combination that is not empty: one that the loss does not depend on has no
/// cotangent.
fn subsets(g: &Graph, node: NodeId) -> Vec<Vec<Value>> {
    let Node { op, outputs, .. } = g.node(node);
    let outputs: Vec<Value> = (0..outputs.len())
        .filter(|&output| op.is_differentiable(output))
        .map(|output| outputs[output])
        .collect();
    let chosen = |mask: usize| (0..outputs.len()).filter(move |at| mask >> at & 1 == 1);
    (1..1 << outputs.len()).map(|mask| chosen(mask).map(|at| outputs[at]).collect()).collect()
}

/// Whether a difference quotient of this case can be trusted: f32 throughout, numbers of magnitude 1.
fn is_judged(case: &Case) -> bool {
    let moved = case.inputs.iter().filter(|input| is_parameter(input));
    let elements: usize = moved.map(|input| input.ty.shape.elements()).sum();
    let plain = |input: &Input| {
        let near = !matches!(input.fill, Fill::Normal(spread) if spread > 10.0);
        near && matches!(input.ty.dtype, DType::F32 | DType::I32)
    };
    // The choice of the largest scores jumps if two scores are closer than the step of the quotient. Near
    // integers far above 1, rounding of f32 is too coarse for the step.
    let chooses = matches!(case.op, Op::TopK { .. });
    let apart = |input: &Input| matches!(input.fill, Fill::Distinct(end) if end <= 10);
    ELEMENTS.contains(&elements)
        && case.inputs.iter().all(plain)
        && (!chooses || case.inputs.iter().all(apart))
        && !matches!(case.op, Op::Cast { to } if to != DType::F32)
}

/// Whether an operand has a derivative: neither integers, nor a loss's scale, nor a table that is never trained, nor scores
/// that are equal, where a choice among them jumps.
fn is_parameter(input: &Input) -> bool {
    input.ty.dtype == DType::F32
        && !matches!(input.fill, Fill::Number(_) | Fill::Below(_) | Fill::Frequencies | Fill::Picks)
}

/// The sum of `y` times fixed random numbers.
fn weighted_sum(g: &mut Graph, y: Value, index: usize, name: &str) -> Value {
    let shape = g.shape(y);
    let output = if index == 0 { String::new() } else { format!(" {index}") };
    let weights = normal(&format!("weights{output} of {name}"), shape.elements());
    let weights = g.constant(&format!("weights{output}"), shape, weights.iter().map(|&x| x as f32).collect());
    let weighted = g.mul(y, weights);
    g.sum(weighted, &(0..shape.len()).collect::<Vec<_>>())
}

#[test]
fn an_operand_that_is_read_twice_gets_both_shares() {
    type Twice = fn(&mut Graph, Value) -> Value;
    let twice: [(&str, Twice); 3] =
        [("add", |g, x| g.add(x, x)), ("mul", |g, x| g.mul(x, x)), ("concat", |g, x| g.concat(&[x, x], 1))];
    for (name, apply) in twice {
        let mut g = Graph::new();
        let x = parameters(&mut g, &[&[3, 4]])[0];
        let y = apply(&mut g, x);
        let loss = weighted_sum(&mut g, y, 0, name);
        assert!(check(name, g, loss, &BTreeMap::new()) > 0.0);
    }
}

#[test]
fn a_fused_head_that_is_the_root_has_the_same_derivative() {
    let shapes: [&[usize]; 3] = [&[6, 3], &[5, 3], &[5]];
    for operands in [2, 3] {
        let mut g = Graph::new();
        let parameters = parameters(&mut g, &shapes[..operands]);
        let loss = head(&mut g, &parameters);
        check(&format!("head of {operands} operands as root"), g, loss, &BTreeMap::new());
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
    check("tied", g, loss, &BTreeMap::new());
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
    let states = graph.states().iter();
    let mut states: BTreeMap<String, Tensor> = states.map(|s| (s.name.clone(), init(s, 3))).collect();
    interpret(&graph, &BTreeMap::new(), &mut states, Phase::Backward, true).unwrap();
    let ty = Type { shape: [8].into(), dtype: DType::Bf16 };
    assert_eq!(states["grad.0"].numbers(), Tensor::from_numbers(ty, &weights).numbers());
}

/// Compares the derivative of `loss` in one random direction with the difference quotient; returns the length of the
/// gradient. Parameters and inputs that are not `known` are drawn.
fn check(name: &str, mut g: Graph, loss: Value, known: &BTreeMap<String, Tensor>) -> f64 {
    g.output("loss", loss);
    let forward = g.finish().unwrap_or_else(|error| panic!("{name}: {error}"));
    let backward = differentiate(&forward, loss).unwrap_or_else(|error| panic!("{name}: {error}"));
    let inputs: BTreeMap<String, Tensor> = forward
        .inputs()
        .iter()
        .map(|&input| forward.value(input).name.clone())
        .map(|name| (name.clone(), known.get(&name).cloned().unwrap_or_else(|| given(&forward, &name))))
        .collect();
    let initial = |graph: &Graph| -> BTreeMap<String, Tensor> {
        let states = graph.states().iter();
        states.map(|s| (s.name.clone(), known.get(&s.name).cloned().unwrap_or_else(|| init(s, 3)))).collect()
    };

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
        error <= TOLERANCE * length + f64::from(f32::EPSILON),
        "{name}: {analytic} is not {difference}, of {length}"
    );
    length
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

/// Contents of each input of the graphs above.
fn given(graph: &Graph, name: &str) -> Tensor {
    let ty = graph.ty(graph.input_named(name).unwrap());
    let numbers: &[f64] = match name {
        "ids" => &[0.0, 4.0, 2.0, 2.0, 1.0, 2.0],
        "targets" => &[0.0, 4.0, -100.0, 2.0, 1.0, 2.0],
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
