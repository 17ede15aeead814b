//! The definition of every op: readable kernels that all others are judged against.
//!
//! Nothing here is fast, and nothing should be: loops follow the equations of `op.rs`, arithmetic is
//! `f64` throughout and each result is rounded once, to the element type it is stored in. Kernels see
//! only shapes that [`infer`] has accepted. [`interpret`] runs a whole graph that way, without a plan:
//! the slow, obvious twin of the engine.
//!
//! Absent on purpose: threads, arenas, reuse of memory.

mod array;
mod elementwise;
mod interpret;
mod losses;
mod mlp;
mod movement;
mod norms;
mod products;
mod stored;
mod tensor;
mod transformer;
mod updates;

use plimsoll_graph::{Op, State, Type, infer};

use crate::{ExecError, init as drawing};
use array::Array;
pub use interpret::interpret;
use losses::Targets;
use mlp::Network;
pub use tensor::{Data, Tensor};
use transformer::Attention;

/// Computes `op`. Where `accumulate` is set the result is added to what the output holds; an op that
/// updates state in place reads its outputs first.
///
/// # Errors
///
/// When types do not fit the op, or ids lie outside their table.
pub fn eval(
    op: &Op,
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
    accumulate: &[bool],
) -> Result<(), ExecError> {
    check(op, inputs, outputs, accumulate)?;
    let results = compute(op, inputs, outputs)?;
    for ((output, result), &add) in outputs.iter_mut().zip(results).zip(accumulate) {
        let mut numbers = result.data;
        if add {
            array::add_scaled(&mut numbers, 1.0, &output.numbers());
        }
        *output = Tensor::from_numbers(output.ty, &numbers);
    }
    Ok(())
}

/// The results of `op` in tensors of their own; for ops that do not update state in place.
///
/// # Errors
///
/// As for [`eval`].
pub fn apply(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ExecError> {
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let types = infer(op, &types).map_err(|why| mismatch(op, &why))?;
    let mut outputs: Vec<Tensor> = types.into_iter().map(Tensor::zeros).collect();
    let accumulate = vec![false; outputs.len()];
    eval(op, inputs, &mut outputs, &accumulate)?;
    Ok(outputs)
}

/// What a range of state holds before the first step of the run seeded with `seed`.
pub fn init(state: &State, seed: u64) -> Tensor {
    let mut elements = vec![0.0; state.ty.shape.elements()];
    drawing::fill(&state.init, &state.name, seed, 0, &mut elements);
    Tensor::from_numbers(state.ty, &Array::of(&Tensor::f32(state.ty.shape, elements)).data)
}

fn check(op: &Op, inputs: &[&Tensor], outputs: &[Tensor], accumulate: &[bool]) -> Result<(), ExecError> {
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let wanted = infer(op, &types).map_err(|why| mismatch(op, &why))?;
    let given: Vec<Type> = outputs.iter().map(|output| output.ty).collect();
    if wanted != given || accumulate.len() != given.len() {
        return Err(mismatch(op, &format!("yields {wanted:?}, not {given:?}")));
    }
    match (0..given.len()).find(|&output| accumulate[output] && !op.can_accumulate(output)) {
        Some(output) => Err(mismatch(op, &format!("cannot add to its output {output}"))),
        None => Ok(()),
    }
}

fn mismatch(op: &Op, why: &str) -> ExecError {
    ExecError::Mismatch(format!("{}: {why}", op.name()))
}

#[allow(
    clippy::too_many_lines,
    clippy::match_same_arms,
    reason = "a flat table, one line per op, in the order of op.rs"
)]
fn compute(op: &Op, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Vec<Array>, ExecError> {
    let arrays: Vec<Array> = inputs.iter().map(|input| Array::of(input)).collect();
    let x: Vec<&Array> = arrays.iter().collect();
    let integers = |index: usize| inputs[index].as_i32().unwrap_or_default();
    let random = |index: usize| inputs.get(index).and_then(|rng| rng.as_i32()).unwrap_or_default();
    let scalar = |index: usize| arrays[index].only();
    let one = |result: Array| Ok(vec![result]);
    match op {
        Op::Reshape { shape } => one(movement::reshape(x[0], *shape)),
        Op::Transpose { permutation } => one(movement::transpose(x[0], permutation)),
        Op::Slice { axis, start, len } => one(movement::slice(x[0], *axis, *start, *len)),
        Op::Pad { axis, start, len } => one(movement::pad(x[0], *axis, *start, *len)),
        Op::Concat { axis } => one(movement::concat(&arrays, *axis)),
        // Storing the result rounds it to the new type.
        Op::Cast { .. } => one(arrays[0].clone()),
        Op::Broadcast { shape, axes } => one(movement::broadcast(x[0], *shape, *axes)),
        Op::Add => one(elementwise::add(x[0], x[1])),
        Op::Mul => one(elementwise::mul(x[0], x[1])),
        Op::Scale { factor } => one(x[0].map(|x| f64::from(*factor) * x)),
        Op::Silu => one(elementwise::silu(x[0])),
        Op::SiluGrad => one(elementwise::silu_grad(x[0], x[1])),
        Op::Gelu(form) => one(elementwise::gelu(x[0], *form)),
        Op::GeluGrad(form) => one(elementwise::gelu_grad(x[0], x[1], *form)),
        Op::Tanh => one(x[0].map(f64::tanh)),
        Op::TanhGrad => one(elementwise::tanh_grad(x[0], x[1])),
        Op::Swiglu => one(elementwise::swiglu(x[0], x[1])),
        Op::SwigluGrad => Ok(elementwise::swiglu_grad(x[0], x[1], x[2]).into()),
        Op::Dropout { p, stream } => one(elementwise::dropout(x[0], integers(1), *p, *stream)),
        Op::Linear { transposed, bias } => one(products::linear(x[0], x[1], bias.then(|| x[2]), *transposed)),
        Op::LinearGradInput { transposed } => one(products::linear_grad_input(x[0], x[1], *transposed)),
        Op::LinearGradWeight { transposed } => one(products::linear_grad_weight(x[0], x[1], *transposed)),
        Op::Matmul { transpose_a, transpose_b } => {
            one(products::matmul(x[0], x[1], *transpose_a, *transpose_b))
        }
        Op::Conv2d { conv, bias } => one(products::conv2d(x[0], x[1], bias.then(|| x[2]), *conv)),
        Op::Conv2dGradInput { conv, image } => one(products::conv2d_grad_input(x[0], x[1], *conv, *image)),
        Op::Conv2dGradWeight { conv, window } => {
            one(products::conv2d_grad_weight(x[0], x[1], *conv, *window))
        }
        Op::Sum { axes } => one(movement::sum(x[0], *axes)),
        Op::Softmax => one(norms::softmax(x[0])),
        Op::SoftmaxGrad => one(norms::softmax_grad(x[0], x[1])),
        Op::LayerNorm { epsilon } => Ok(norms::layer_norm(x[0], x[1], x[2], *epsilon).into()),
        Op::LayerNormGradInput => one(norms::layer_norm_grad_input(x[0], x[1], x[2], x[3], x[4])),
        Op::LayerNormGradWeight => one(norms::layer_norm_grad_weight(x[0], x[1], x[2], x[3])),
        Op::RmsNorm { epsilon } => Ok(norms::rms_norm(x[0], x[1], *epsilon).into()),
        Op::RmsNormGradInput => one(norms::rms_norm_grad_input(x[0], x[1], x[2], x[3])),
        Op::RmsNormGradWeight => one(norms::rms_norm_grad_weight(x[0], x[1], x[2])),
        Op::Embedding => {
            let shape = outputs[0].ty.shape;
            transformer::embedding(x[0], integers(1), shape).and_then(one)
        }
        Op::EmbeddingGrad { rows } => transformer::embedding_grad(integers(0), x[1], *rows).and_then(one),
        Op::Rope { inverse, positions } => {
            one(transformer::rope(x[0], x[1], positions.then(|| x[2]), *inverse))
        }
        Op::Attention { mask, scale } => {
            let (doc_start, scale) = (x.get(3).copied(), f64::from(*scale));
            Ok(Attention { q: x[0], k: x[1], v: x[2], doc_start, mask: *mask, scale }.forward().into())
        }
        Op::AttentionGrad { mask, scale } => {
            let (doc_start, scale) = (x.get(6).copied(), f64::from(*scale));
            let attention = Attention { q: x[0], k: x[1], v: x[2], doc_start, mask: *mask, scale };
            Ok(attention.backward(x[3], x[4], x[5]).into())
        }
        Op::Mlp(form) => {
            let (weights, biases) = x[1..].split_at(form.products());
            one(Network { form: *form, weights, biases }.forward(x[0]))
        }
        Op::MlpGrad { mlp: form, weights: any_weight, biases: any_bias } => {
            let (weights, biases) = x[2..].split_at(form.products());
            Ok(Network { form: *form, weights, biases }.backward(x[0], x[1], [*any_weight, *any_bias]))
        }
        Op::CrossEntropy { ignore_index } => {
            let targets = Targets { ids: integers(1), ignore_index: *ignore_index, scale: scalar(2) };
            losses::cross_entropy(x[0], targets).and_then(one)
        }
        Op::CrossEntropyGrad { ignore_index } => {
            let targets = Targets { ids: integers(1), ignore_index: *ignore_index, scale: scalar(2) };
            losses::cross_entropy_grad(x[0], targets).and_then(one)
        }
        Op::HeadLoss(head) => {
            let targets = Targets { ids: integers(2), ignore_index: head.ignore_index, scale: scalar(3) };
            losses::head_loss(x[0], x[1], x.get(4).copied(), targets).and_then(one)
        }
        Op::HeadLossGrad { head, weight, bias } => {
            let targets = Targets { ids: integers(2), ignore_index: head.ignore_index, scale: scalar(3) };
            losses::head_loss_grad(x[0], x[1], x.get(4).copied(), targets, [*weight, *bias])
        }
        // The sum itself is the storing of a result that accumulates.
        Op::Accumulate { .. } => one(arrays[0].clone()),
        Op::SumSquares => one(updates::sum_squares(&arrays)),
        Op::ClipScale { max_norm } => {
            Ok(updates::clip_scale(arrays.iter().map(Array::only), *max_norm).into())
        }
        Op::Sgd(rates) => Ok(updates::sgd(*rates, x[0], [1, 2].map(scalar), random(3), outputs)),
        Op::AdamW(rates) => Ok(updates::adamw(*rates, x[0], [1, 2, 3].map(scalar), random(4), outputs)),
    }
}
