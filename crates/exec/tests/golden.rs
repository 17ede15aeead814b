//! The reference kernels against `PyTorch`.
//!
//! `reference/ops.py` writes the cases; the list here gives the parameters of each. Results there are
//! computed in f64 and rounded to f32, as they are here, so the two may differ by the rounding of stored
//! statistics and little else.
#![allow(clippy::unwrap_used, reason = "a test may end where it finds a fault")]

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_exec::cases::compare;
use plimsoll_exec::reference::{Tensor, apply, eval};
use plimsoll_graph::op::{Activation, AdamW, Conv, Gelu, Head, Mask, Mlp, Sgd, Stored};
use plimsoll_graph::{Axes, DType, Op, Shape, Type, infer};
use safetensors::{Dtype, SafeTensors};

/// Both sides work in f64 and round once; gradients read statistics (mean, rstd, log-sum-exp) that were
/// rounded to f32, each of which moves the result by about 2⁻²⁴ of its size, a few of them together.
const TOLERANCE: f64 = 1e-6;

/// Ops that only move or round numbers: nothing may differ.
const EXACT: [&str; 8] = ["reshape", "transpose", "slice", "pad", "concat", "cast", "broadcast", "embedding"];

/// Ops that `PyTorch` cannot judge.
const EXCEPTIONS: [(&str, &str); 1] =
    [("dropout", "the mask is a function of our own; the tests below look at its statistics and its bits")];

#[test]
fn every_golden_case_is_reproduced() {
    let golden = read();
    let ops = ops();
    let listed: BTreeSet<&str> = ops.iter().map(|(name, _)| *name).collect();
    let stored: BTreeSet<&str> = golden.keys().map(String::as_str).collect();
    assert_eq!(listed, stored, "the list here and reference/ops.py differ");
    for (name, op) in &ops {
        let case = &golden[*name];
        let tolerance = if EXACT.contains(&op.name()) { 0.0 } else { TOLERANCE };
        let outputs = run(name, op, case);
        for (index, (expected, actual)) in case.outputs.iter().zip(&outputs).enumerate() {
            compare(expected, actual, tolerance, 0.0)
                .unwrap_or_else(|why| panic!("{name}: output {index} {why}"));
        }
    }
}

#[test]
fn every_op_has_a_golden_case_or_a_reason_why_not() {
    let covered: BTreeSet<&str> = ops().iter().map(|(_, op)| op.name()).collect();
    let excepted: BTreeSet<&str> = EXCEPTIONS.iter().map(|(name, _)| *name).collect();
    for name in op_names() {
        assert!(covered.contains(name) != excepted.contains(name), "{name}");
    }
}

#[test]
fn dropout_drops_as_often_as_asked_and_keeps_the_mean() {
    for p in [0.1f32, 0.5, 0.9] {
        let results = dropout(p, 77, [200, 100].into(), [1, 2, 3, 0]);
        let share = results.iter().filter(|&&x| x <= 0.0).count() as f64 / results.len() as f64;
        // 20 000 draws: the share has a standard deviation of at most 0.0036.
        assert!((share - f64::from(p)).abs() < 0.015, "{share} dropped for {p}");
        let mean = results.iter().sum::<f64>() / results.len() as f64;
        assert!((mean - 1.0).abs() < 0.1, "mean {mean} for {p}");
    }
}

#[test]
fn dropout_masks_of_other_streams_steps_and_seeds_have_nothing_in_common() {
    let mask = |stream, rng| dropout(0.5, stream, [64, 64].into(), rng);
    let first = mask(1, [1, 0, 0, 0]);
    for other in [mask(2, [1, 0, 0, 0]), mask(1, [2, 0, 0, 0]), mask(1, [1, 1, 0, 0]), mask(1, [1, 0, 1, 0])]
    {
        let agree = first.iter().zip(&other).filter(|(a, b)| a.total_cmp(b).is_eq()).count();
        // 4096 coin flips: standard deviation 32.
        assert!(agree.abs_diff(2048) < 160, "{agree} of 4096 agree");
    }
}

/// A run must be repeatable with later versions, so the mask is pinned.
#[test]
fn the_dropout_mask_stays_what_it_is() {
    let results = dropout(0.5, 0x0123_4567_89ab_cdef, [4, 8].into(), [12345, -7, 3, 40]);
    let picture = |row: &[f64]| row.iter().map(|&x| if x > 0.0 { '#' } else { '.' }).collect::<String>();
    assert_eq!(
        results.chunks(8).map(picture).collect::<Vec<_>>(),
        ["##.##...", "##..#.#.", "#.###.#.", ".#.#.#.#"]
    );
}

fn dropout(p: f32, stream: u64, shape: Shape, rng: [i32; 4]) -> Vec<f64> {
    let ones = Tensor::f32(shape, vec![1.0; shape.elements()]);
    let rng = Tensor::i32([4], rng.to_vec());
    apply(&Op::Dropout { p, stream }, &[&ones, &rng]).unwrap()[0].numbers()
}

/// Parameters of each case of `reference/ops.py`.
fn ops() -> Vec<(&'static str, Op)> {
    [movement(), elementwise(), products(), norms(), transformers(), networks(), losses(), updates()].concat()
}

fn movement() -> Vec<(&'static str, Op)> {
    let broadcast = |shape: Shape, axis| Op::Broadcast { shape, axes: Axes::of([axis]) };
    vec![
        ("reshape.flat", Op::Reshape { shape: [6, 4].into() }),
        ("transpose.cycle", Op::Transpose { permutation: vec![2, 0, 1] }),
        ("transpose.heads", Op::Transpose { permutation: vec![0, 2, 1, 3] }),
        ("slice.middle", Op::Slice { axis: 1, start: 1, len: 2 }),
        ("slice.last", Op::Slice { axis: 2, start: 2, len: 2 }),
        ("pad.middle", Op::Pad { axis: 1, start: 2, len: 6 }),
        ("concat.middle", Op::Concat { axis: 1 }),
        ("broadcast.rows", broadcast([4, 3].into(), 0)),
        ("broadcast.columns", broadcast([3, 5].into(), 1)),
        ("cast.to_bf16", Op::Cast { to: DType::Bf16 }),
        ("cast.from_bf16", Op::Cast { to: DType::F32 }),
        ("cast.to_f16", Op::Cast { to: DType::F16 }),
        ("cast.from_f16", Op::Cast { to: DType::F32 }),
        ("cast.from_i32", Op::Cast { to: DType::F32 }),
    ]
}

fn elementwise() -> Vec<(&'static str, Op)> {
    vec![
        ("add.same", Op::Add),
        ("add.row", Op::Add),
        ("mul.same", Op::Mul),
        ("mul.row", Op::Mul),
        ("scale.minus", Op::Scale { factor: -0.5 }),
        ("silu.plain", Op::Silu),
        ("silu_grad.plain", Op::SiluGrad),
        ("gelu.tanh", Op::Gelu(Gelu::Tanh)),
        ("gelu.erf", Op::Gelu(Gelu::Erf)),
        ("gelu_grad.tanh", Op::GeluGrad(Gelu::Tanh)),
        ("gelu_grad.erf", Op::GeluGrad(Gelu::Erf)),
        ("tanh.plain", Op::Tanh),
        ("tanh_grad.plain", Op::TanhGrad),
        ("swiglu.plain", Op::Swiglu),
        ("swiglu_grad.plain", Op::SwigluGrad),
    ]
}

fn products() -> Vec<(&'static str, Op)> {
    let linear = |transposed, bias| Op::Linear { transposed, bias };
    let matmul = |transpose_a, transpose_b| Op::Matmul { transpose_a, transpose_b };
    let same = Conv { stride: 1, padding: 1 };
    let stride = Conv { stride: 2, padding: 0 };
    vec![
        ("linear.rows", linear(false, false)),
        ("linear.rows_bias", linear(false, true)),
        ("linear.transposed", linear(true, false)),
        ("linear.transposed_bias", linear(true, true)),
        ("linear_grad_input.rows", Op::LinearGradInput { transposed: false }),
        ("linear_grad_input.transposed", Op::LinearGradInput { transposed: true }),
        ("linear_grad_weight.rows", Op::LinearGradWeight { transposed: false }),
        ("linear_grad_weight.rows_adding", Op::LinearGradWeight { transposed: false }),
        ("linear_grad_weight.transposed", Op::LinearGradWeight { transposed: true }),
        ("linear_grad_weight.transposed_adding", Op::LinearGradWeight { transposed: true }),
        ("matmul.nn", matmul(false, false)),
        ("matmul.nt", matmul(false, true)),
        ("matmul.tn", matmul(true, false)),
        ("matmul.tt", matmul(true, true)),
        ("conv2d.same", Op::Conv2d { conv: same, bias: false }),
        ("conv2d.same_bias", Op::Conv2d { conv: same, bias: true }),
        ("conv2d.stride", Op::Conv2d { conv: stride, bias: false }),
        ("conv2d.stride_bias", Op::Conv2d { conv: stride, bias: true }),
        ("conv2d_grad_input.same", Op::Conv2dGradInput { conv: same, image: [6, 5] }),
        ("conv2d_grad_input.stride", Op::Conv2dGradInput { conv: stride, image: [6, 5] }),
        ("conv2d_grad_weight.same", Op::Conv2dGradWeight { conv: same, window: [3, 3] }),
        ("conv2d_grad_weight.stride", Op::Conv2dGradWeight { conv: stride, window: [2, 3] }),
    ]
}

fn norms() -> Vec<(&'static str, Op)> {
    vec![
        ("sum.leading", Op::Sum { axes: Axes::of([0, 1]) }),
        ("sum.middle", Op::Sum { axes: Axes::of([1]) }),
        ("sum.all", Op::Sum { axes: Axes::of([0, 1, 2]) }),
        ("softmax.plain", Op::Softmax),
        ("softmax_grad.plain", Op::SoftmaxGrad),
        ("layer_norm.plain", Op::LayerNorm { epsilon: 1e-5 }),
        ("layer_norm_grad_input.plain", Op::LayerNormGradInput),
        ("layer_norm_grad_weight.plain", Op::LayerNormGradWeight),
        ("rms_norm.plain", Op::RmsNorm { epsilon: 1e-5 }),
        ("rms_norm_grad_input.plain", Op::RmsNormGradInput),
        ("rms_norm_grad_weight.plain", Op::RmsNormGradWeight),
    ]
}

fn transformers() -> Vec<(&'static str, Op)> {
    let rope = |inverse, positions| Op::Rope { inverse, positions };
    let mut ops = vec![
        ("embedding.plain", Op::Embedding),
        ("embedding_grad.plain", Op::EmbeddingGrad { rows: 6 }),
        ("rope.counted", rope(false, false)),
        ("rope.counted_inverse", rope(true, false)),
        ("rope.given", rope(false, true)),
        ("rope.given_inverse", rope(true, true)),
    ];
    // (forward, backward, causal, window, documents, width)
    let attention = [
        ("attention.causal", "attention_grad.causal", true, None, false, 8.0f32),
        ("attention.all", "attention_grad.all", false, None, false, 6.0),
        ("attention.window", "attention_grad.window", true, Some(3), false, 4.0),
        ("attention.near", "attention_grad.near", false, Some(3), false, 4.0),
        ("attention.documents", "attention_grad.documents", true, None, true, 4.0),
    ];
    for (forward, backward, causal, window, documents, width) in attention {
        let (mask, scale) = (Mask { causal, window, documents }, 1.0 / width.sqrt());
        ops.push((forward, Op::Attention { mask, scale }));
        ops.push((backward, Op::AttentionGrad { mask, scale }));
    }
    ops
}

fn networks() -> Vec<(&'static str, Op)> {
    let swiglu = Mlp { activation: Activation::Swiglu, transposed: false, bias: false, rows: 2 };
    let gelu = |form, transposed| {
        let activation = Activation::Gelu(form);
        Mlp { activation, transposed, bias: true, rows: 2 }
    };
    let gradient = |mlp: Mlp| Op::MlpGrad { mlp, weights: true, biases: mlp.bias };
    vec![
        ("mlp.swiglu", Op::Mlp(swiglu)),
        ("mlp.tanh", Op::Mlp(gelu(Gelu::Tanh, true))),
        ("mlp.erf", Op::Mlp(gelu(Gelu::Erf, false))),
        ("mlp_grad.swiglu", gradient(swiglu)),
        ("mlp_grad.tanh", gradient(gelu(Gelu::Tanh, true))),
        ("mlp_grad.erf", gradient(gelu(Gelu::Erf, false))),
        ("mlp_grad.adding", gradient(swiglu)),
    ]
}

fn losses() -> Vec<(&'static str, Op)> {
    let head = |bias| Head { ignore_index: -100, bias };
    let gradient = |bias| Op::HeadLossGrad { head: head(bias), weight: true, bias };
    vec![
        ("cross_entropy.plain", Op::CrossEntropy { ignore_index: -100 }),
        ("cross_entropy_grad.plain", Op::CrossEntropyGrad { ignore_index: -100 }),
        ("head_loss.plain", Op::HeadLoss(head(false))),
        ("head_loss.bias", Op::HeadLoss(head(true))),
        ("head_loss_grad.plain", gradient(false)),
        ("head_loss_grad.bias", gradient(true)),
        ("head_loss_grad.adding", gradient(false)),
    ]
}

fn updates() -> Vec<(&'static str, Op)> {
    let stored = Stored::default();
    let (beta2, epsilon) = (1.0 - 1.0 / 1024.0, 1.0 / 1_048_576.0);
    let rates = AdamW { beta1: 0.875, beta2, epsilon, weight_decay: 0.125, stored };
    let sgd = |momentum, nesterov| Op::Sgd(Sgd { momentum, nesterov, weight_decay: 0.125, stored });
    vec![
        ("accumulate.adding", Op::Accumulate { to: DType::F32 }),
        ("sum_squares.two", Op::SumSquares),
        ("clip_scale.above", Op::ClipScale { max_norm: Some(1.0) }),
        ("clip_scale.below", Op::ClipScale { max_norm: Some(100.0) }),
        ("sgd.plain", sgd(0.0, false)),
        ("sgd.momentum", sgd(0.875, false)),
        ("sgd.nesterov", sgd(0.875, true)),
        ("adamw.step1", Op::AdamW(rates)),
        ("adamw.step2", Op::AdamW(rates)),
    ]
}

/// What one case of the file holds, each list in the order of `op.rs`.
#[derive(Default)]
struct Golden {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    state: Vec<Tensor>,
}

fn run(name: &str, op: &Op, case: &Golden) -> Vec<Tensor> {
    let inputs: Vec<&Tensor> = case.inputs.iter().collect();
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let types = infer(op, &types).unwrap_or_else(|why| panic!("{name}: {why}"));
    assert_eq!(types.len(), case.outputs.len(), "outputs of {name}");
    let adding = !case.state.is_empty();
    let accumulate: Vec<bool> = (0..types.len()).map(|output| adding && op.can_accumulate(output)).collect();
    let mut outputs: Vec<Tensor> =
        if adding { case.state.clone() } else { types.into_iter().map(Tensor::zeros).collect() };
    eval(op, &inputs, &mut outputs, &accumulate).unwrap_or_else(|error| panic!("{name}: {error}"));
    outputs
}

fn read() -> BTreeMap<String, Golden> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/ops.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // Ordered by role and index, which has one digit.
    let mut names = file.names();
    names.sort_unstable();
    let mut golden: BTreeMap<String, Golden> = BTreeMap::new();
    for name in names {
        let (case, role) = name.split_once('/').unwrap();
        let view = file.tensor(name).unwrap();
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            Dtype::I32 => DType::I32,
            other => panic!("{name} is {other:?}"),
        };
        let ty = Type { shape: Shape::new(view.shape()).unwrap(), dtype };
        let tensor = Tensor::from_bytes(ty, view.data());
        let entry = golden.entry(case.to_owned()).or_default();
        match role.split_once('.').unwrap().0 {
            "in" => entry.inputs.push(tensor),
            "out" => entry.outputs.push(tensor),
            "state" => entry.state.push(tensor),
            other => panic!("{name} has the role {other}"),
        }
    }
    golden
}

/// The names in the table of `op.rs`.
fn op_names() -> Vec<&'static str> {
    let source = include_str!("../../graph/src/op.rs");
    let arms = source.lines().filter(|line| line.trim_start().starts_with("Op::"));
    let names: Vec<&str> = arms.filter_map(|arm| arm.split_once("=> \"")?.1.strip_suffix("\",")).collect();
    assert!(names.len() > 40, "the table of names in op.rs has another form now");
    names
}
