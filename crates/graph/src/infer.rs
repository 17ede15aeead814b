//! The shapes and element types an op yields, and what it demands of its inputs.
//!
//! One function serves the builder, which reports a mistake where the user made it, and the verifier,
//! which repeats the check on every graph a pass has produced.

use crate::op::{Conv, Head, Mask, Mlp, Stored};
use crate::{Axes, DType, Op, Shape, Type};

/// Types of the outputs of `op` on inputs of these types. State updates (`accumulate`, `adamw`) yield
/// the types of the ranges they write, which the caller checks against the state.
///
/// # Errors
///
/// A sentence that names both sides of the disagreement.
#[allow(clippy::too_many_lines, reason = "a flat table, one arm per op")]
pub fn infer(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let (least, most) = arity(op);
    if inputs.len() < least || inputs.len() > most {
        let wanted = if least == most { least.to_string() } else { format!("at least {least}") };
        return Err(format!("takes {wanted} inputs, got {}", inputs.len()));
    }
    let x = inputs[0];
    match op {
        Op::Reshape { shape } => {
            same_count(x.shape.elements(), shape.elements(), x.shape, *shape)?;
            Ok(vec![Type { shape: *shape, ..x }])
        }
        Op::Transpose { permutation } => transpose(x, permutation),
        Op::Slice { axis, start, len } => {
            let extent = axis_extent(x.shape, *axis)?;
            if start + len > extent || *len == 0 {
                return Err(format!("{start}..{} is outside axis {axis} of {}", start + len, x.shape));
            }
            Ok(vec![Type { shape: x.shape.with(*axis, *len), ..x }])
        }
        Op::Pad { axis, start, len } => {
            let extent = axis_extent(x.shape, *axis)?;
            if start + extent > *len {
                return Err(format!("{} does not fit at {start} of {len} on axis {axis}", x.shape));
            }
            Ok(vec![Type { shape: x.shape.with(*axis, *len), ..x }])
        }
        Op::Concat { axis } => concat(inputs, *axis),
        Op::Cast { to } => Ok(vec![Type { dtype: *to, ..x }]),
        Op::Broadcast { shape, axes } => {
            if shape.without(*axes) != x.shape {
                return Err(format!("{} is not {shape} without the broadcast axes", x.shape));
            }
            Ok(vec![Type { shape: *shape, ..x }])
        }
        Op::Add | Op::Mul => {
            float(x)?;
            if inputs[1].dtype != x.dtype || !x.shape.ends_with_shape(&inputs[1].shape) {
                return Err(format!(
                    "{} and {x} do not go together; the second shape must be a suffix of the first",
                    inputs[1]
                ));
            }
            Ok(vec![x])
        }
        Op::Scale { .. } | Op::Silu | Op::Gelu(_) | Op::Tanh | Op::Softmax => float(x).map(|()| vec![x]),
        Op::SiluGrad | Op::GeluGrad(_) | Op::TanhGrad | Op::SoftmaxGrad | Op::Swiglu => {
            equal(x, inputs[1], "first and second input")?;
            Ok(vec![x])
        }
        Op::SwigluGrad => {
            equal(x, inputs[1], "gate and up")?;
            equal(x, inputs[2], "gate and gradient")?;
            Ok(vec![x, x])
        }
        Op::Dropout { .. } => {
            float(x)?;
            equal(inputs[1], Type::i32([4]), "rng")?;
            Ok(vec![x])
        }
        Op::Linear { transposed, bias } => linear(inputs, *transposed, *bias),
        Op::LinearGradInput { transposed } => {
            let (out, input) = weight_extents(x.shape, *transposed)?;
            columns(inputs[1].shape, out, "gradient")?;
            let last = inputs[1].shape.len() - 1;
            Ok(vec![Type { shape: inputs[1].shape.with(last, input), ..inputs[1] }])
        }
        Op::LinearGradWeight { transposed } => {
            let dy = inputs[1];
            if x.shape.rows() != dy.shape.rows() {
                return Err(format!("input {} and gradient {} differ in rows", x.shape, dy.shape));
            }
            let (out, input) = (dy.shape.columns(), x.shape.columns());
            let shape = if *transposed { [input, out] } else { [out, input] };
            Ok(vec![Type { shape: shape.into(), ..dy }])
        }
        Op::Matmul { transpose_a, transpose_b } => matmul(x, inputs[1], *transpose_a, *transpose_b),
        Op::Conv2d { conv, bias } => conv2d(inputs, *conv, *bias),
        Op::Conv2dGradInput { image, .. } => {
            let [_, channels, _, _] = rank4(x.shape, "weight")?;
            let [batch, ..] = rank4(inputs[1].shape, "gradient")?;
            Ok(vec![Type { shape: [batch, channels, image[0], image[1]].into(), ..x }])
        }
        Op::Conv2dGradWeight { window, .. } => {
            let [_, channels, _, _] = rank4(x.shape, "input")?;
            let [_, out, _, _] = rank4(inputs[1].shape, "gradient")?;
            Ok(vec![Type { shape: [out, channels, window[0], window[1]].into(), ..x }])
        }
        Op::Sum { axes } => {
            float(x)?;
            if axes.iter().any(|axis| axis >= x.shape.len()) {
                return Err(format!("{} has no such axis to sum over", x.shape));
            }
            Ok(vec![Type { shape: x.shape.without(*axes), ..x }])
        }
        Op::LayerNorm { .. } => {
            vector(inputs[1], x.shape.columns(), "weight")?;
            vector(inputs[2], x.shape.columns(), "bias")?;
            Ok(vec![x, statistics(x), statistics(x)])
        }
        Op::LayerNormGradInput => norm_gradient(x, &inputs[2..]).map(|()| vec![x]),
        Op::LayerNormGradWeight => {
            norm_gradient(x, &inputs[1..]).map(|()| vec![Type { shape: [x.shape.columns()].into(), ..x }])
        }
        Op::RmsNorm { .. } => {
            vector(inputs[1], x.shape.columns(), "weight")?;
            Ok(vec![x, statistics(x)])
        }
        Op::RmsNormGradInput => norm_gradient(x, &inputs[2..]).map(|()| vec![x]),
        Op::RmsNormGradWeight => {
            norm_gradient(x, &inputs[1..]).map(|()| vec![Type { shape: [x.shape.columns()].into(), ..x }])
        }
        Op::Embedding => {
            let &[_, width] = &x.shape[..] else {
                return Err(format!("the table must be a matrix, got {}", x.shape));
            };
            integers(inputs[1], "ids")?;
            let extents: Vec<usize> = inputs[1].shape.iter().copied().chain([width]).collect();
            let shape = Shape::new(&extents).ok_or("the ids have too many axes")?;
            Ok(vec![Type { shape, ..x }])
        }
        Op::EmbeddingGrad { rows } => {
            integers(x, "ids")?;
            if inputs[1].shape.rows() != x.shape.elements() {
                return Err(format!("gradient {} does not match ids {}", inputs[1].shape, x.shape));
            }
            Ok(vec![Type { shape: [*rows, inputs[1].shape.columns()].into(), ..inputs[1] }])
        }
        Op::Rope { positions, .. } => rope(inputs, *positions),
        Op::Attention { mask, .. } => {
            attention(&inputs[..3], inputs.get(3), *mask)?;
            let [batch, length, heads, _] = rank4(x.shape, "queries")?;
            Ok(vec![x, Type::f32([batch, heads, length])])
        }
        Op::AttentionGrad { mask, .. } => {
            attention(&inputs[..3], inputs.get(6), *mask)?;
            equal(x, inputs[3], "queries and output")?;
            equal(x, inputs[5], "queries and gradient")?;
            Ok(inputs[..3].to_vec())
        }
        Op::Mlp(form) => Ok(vec![mlp(x, &inputs[1..], *form)?]),
        Op::MlpGrad { mlp: form, weights, biases } => {
            equal(mlp(x, &inputs[2..], *form)?, inputs[1], "output and gradient")?;
            let parameters = inputs[2..].split_at(form.products());
            let wanted = [(parameters.0, *weights), (parameters.1, *biases)];
            let gradients = wanted.iter().filter(|(_, wanted)| *wanted).flat_map(|(of, _)| of.iter());
            let gradients = gradients.map(|ty| Type { dtype: x.dtype, ..*ty });
            Ok([x].into_iter().chain(gradients).collect())
        }
        Op::CrossEntropy { .. } => {
            cross_entropy(inputs)?;
            Ok(vec![Type::f32([])])
        }
        Op::CrossEntropyGrad { .. } => cross_entropy(inputs).map(|()| vec![x]),
        Op::HeadLoss(head) => {
            head_loss(inputs, *head)?;
            Ok(vec![Type::f32([])])
        }
        Op::HeadLossGrad { head, weight, bias } => {
            head_loss(inputs, *head)?;
            let mut outputs = vec![Type::f32([]), x];
            if *weight {
                outputs.push(Type { dtype: x.dtype, ..inputs[1] });
            }
            if *bias {
                outputs.push(*inputs.get(4).ok_or("a bias gradient needs a bias")?);
            }
            Ok(outputs)
        }
        Op::Accumulate { to } => float(x).map(|()| vec![Type { dtype: *to, ..x }]),
        Op::SumSquares => Ok(vec![Type::f32([])]),
        Op::ClipScale { .. } => {
            for sum in inputs {
                equal(*sum, Type::f32([]), "sum of squares")?;
            }
            Ok(vec![Type::f32([]), Type::f32([])])
        }
        Op::Sgd(sgd) => update(inputs, 2, sgd.stored, sgd.moments()),
        Op::AdamW(adamw) => update(inputs, 3, adamw.stored, 2),
    }
}

/// Fewest and most inputs.
fn arity(op: &Op) -> (usize, usize) {
    let exactly = |n| (n, n);
    match op {
        Op::Concat { .. } | Op::SumSquares | Op::ClipScale { .. } => (1, usize::MAX),
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Scale { .. }
        | Op::Silu
        | Op::Gelu(_)
        | Op::Tanh
        | Op::Sum { .. }
        | Op::Softmax
        | Op::Accumulate { .. } => exactly(1),
        Op::Add
        | Op::Mul
        | Op::SiluGrad
        | Op::GeluGrad(_)
        | Op::TanhGrad
        | Op::Swiglu
        | Op::Dropout { .. }
        | Op::LinearGradInput { .. }
        | Op::LinearGradWeight { .. }
        | Op::Matmul { .. }
        | Op::Conv2dGradInput { .. }
        | Op::Conv2dGradWeight { .. }
        | Op::SoftmaxGrad
        | Op::RmsNorm { .. }
        | Op::Embedding
        | Op::EmbeddingGrad { .. } => exactly(2),
        Op::Linear { bias, .. } | Op::Conv2d { bias, .. } => exactly(2 + usize::from(*bias)),
        Op::Rope { positions, .. } => exactly(2 + usize::from(*positions)),
        Op::SwigluGrad
        | Op::LayerNorm { .. }
        | Op::RmsNormGradWeight
        | Op::CrossEntropy { .. }
        | Op::CrossEntropyGrad { .. } => exactly(3),
        Op::LayerNormGradWeight | Op::RmsNormGradInput => exactly(4),
        Op::Sgd(sgd) => exactly(3 + usize::from(sgd.stored.is_random())),
        Op::AdamW(adamw) => exactly(4 + usize::from(adamw.stored.is_random())),
        Op::LayerNormGradInput => exactly(5),
        Op::Attention { mask, .. } => exactly(3 + usize::from(mask.documents)),
        Op::AttentionGrad { mask, .. } => exactly(6 + usize::from(mask.documents)),
        Op::Mlp(mlp) => exactly(1 + mlp.parameters()),
        Op::MlpGrad { mlp, .. } => exactly(2 + mlp.parameters()),
        Op::HeadLoss(head) | Op::HeadLossGrad { head, .. } => exactly(4 + usize::from(head.bias)),
    }
}

fn transpose(x: Type, permutation: &[usize]) -> Result<Vec<Type>, String> {
    let mut seen = permutation.to_vec();
    seen.sort_unstable();
    if seen.len() != x.shape.len() || seen.iter().enumerate().any(|(i, &axis)| i != axis) {
        return Err(format!("{permutation:?} is not a permutation of the axes of {}", x.shape));
    }
    let extents: Vec<usize> = permutation.iter().map(|&axis| x.shape[axis]).collect();
    let shape = Shape::new(&extents).ok_or("too many axes")?;
    Ok(vec![Type { shape, ..x }])
}

fn concat(inputs: &[Type], axis: usize) -> Result<Vec<Type>, String> {
    let first = inputs[0];
    axis_extent(first.shape, axis)?;
    let mut total = 0;
    for input in inputs {
        let extent = axis_extent(input.shape, axis)?;
        equal(Type { shape: input.shape.with(axis, first.shape[axis]), ..*input }, first, "parts")?;
        total += extent;
    }
    Ok(vec![Type { shape: first.shape.with(axis, total), ..first }])
}

fn linear(inputs: &[Type], transposed: bool, bias: bool) -> Result<Vec<Type>, String> {
    let (x, w) = (inputs[0], inputs[1]);
    float(x)?;
    if x.shape.is_empty() {
        return Err("the input is a scalar".into());
    }
    let narrower = (x.dtype, w.dtype) == (DType::F32, DType::Bf16);
    if w.dtype != x.dtype && !narrower {
        return Err(format!("input is {}, weight is {}; cast one of them", x.dtype, w.dtype));
    }
    let (out, input) = weight_extents(w.shape, transposed)?;
    if x.shape.columns() != input {
        let hint = if x.shape.columns() == out { "; is the weight stored the other way round?" } else { "" };
        return Err(format!(
            "input {} has {} columns, weight {} wants {input}{hint}",
            x.shape,
            x.shape.columns(),
            w.shape
        ));
    }
    let result = Type { shape: x.shape.with(x.shape.len() - 1, out), ..x };
    if bias && inputs[2] != result {
        vector(inputs[2], out, "bias")?;
    }
    Ok(vec![result])
}

/// `(out, in)` of a weight matrix.
fn weight_extents(weight: Shape, transposed: bool) -> Result<(usize, usize), String> {
    match (&weight[..], transposed) {
        (&[out, input], false) | (&[input, out], true) => Ok((out, input)),
        _ => Err(format!("the weight must be a matrix, got {weight}")),
    }
}

fn matmul(a: Type, b: Type, transpose_a: bool, transpose_b: bool) -> Result<Vec<Type>, String> {
    float(a)?;
    let rank = a.shape.len();
    if rank < 2 || b.shape.len() != rank || a.shape[..rank - 2] != b.shape[..rank - 2] || a.dtype != b.dtype {
        return Err(format!("{a} and {b} must have equal leading axes and element types"));
    }
    let matrix = |shape: Shape, transposed: bool| {
        let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
        if transposed { (columns, rows) } else { (rows, columns) }
    };
    let ((m, k), (k2, n)) = (matrix(a.shape, transpose_a), matrix(b.shape, transpose_b));
    if k != k2 {
        return Err(format!("({m}, {k}) times ({k2}, {n}): the inner extents differ"));
    }
    Ok(vec![Type { shape: a.shape.with(rank - 2, m).with(rank - 1, n), ..a }])
}

fn conv2d(inputs: &[Type], conv: Conv, bias: bool) -> Result<Vec<Type>, String> {
    let [batch, channels, height, width] = rank4(inputs[0].shape, "input")?;
    let [out, weight_channels, window_y, window_x] = rank4(inputs[1].shape, "weight")?;
    if channels != weight_channels {
        return Err(format!("input has {channels} channels, weight wants {weight_channels}"));
    }
    if bias {
        vector(inputs[2], out, "bias")?;
    }
    let extent = |image: usize, window: usize| {
        let span = (image + 2 * conv.padding).checked_sub(window);
        span.filter(|_| conv.stride > 0).map(|span| span / conv.stride + 1)
    };
    match (extent(height, window_y), extent(width, window_x)) {
        (Some(y), Some(x)) => Ok(vec![Type { shape: [batch, out, y, x].into(), ..inputs[0] }]),
        _ => Err(format!("a {window_y}x{window_x} window does not fit {height}x{width} with {conv:?}")),
    }
}

fn rope(inputs: &[Type], positions: bool) -> Result<Vec<Type>, String> {
    let [batch, length, _, width] = rank4(inputs[0].shape, "input")?;
    float(inputs[0])?;
    if width % 2 != 0 {
        return Err(format!("the head width must be even, got {width}"));
    }
    vector(inputs[1], width / 2, "frequencies")?;
    if positions {
        equal(inputs[2], Type::i32([batch, length]), "positions")?;
    }
    Ok(vec![inputs[0]])
}

fn attention(qkv: &[Type], doc_start: Option<&Type>, mask: Mask) -> Result<(), String> {
    let [batch, length, heads, width] = rank4(qkv[0].shape, "queries")?;
    let [_, _, key_heads, _] = rank4(qkv[1].shape, "keys")?;
    equal(qkv[1], Type { shape: [batch, length, key_heads, width].into(), ..qkv[0] }, "keys")?;
    equal(qkv[1], qkv[2], "keys and values")?;
    if key_heads == 0 || heads % key_heads != 0 {
        return Err(format!("{heads} query heads cannot share {key_heads} key heads evenly"));
    }
    if mask.window == Some(0) {
        return Err("a window of 0 hides every position".into());
    }
    match doc_start {
        Some(starts) => equal(*starts, Type::i32([batch, length]), "doc_start"),
        None => Ok(()),
    }
}

/// The result of a feed-forward network with these weights, then biases.
fn mlp(x: Type, parameters: &[Type], mlp: Mlp) -> Result<Type, String> {
    if mlp.rows == 0 {
        return Err("a tile of no rows".into());
    }
    let (weights, biases) = parameters.split_at(mlp.products());
    let layer = |x: Type, index: usize| {
        let operands: Vec<Type> = [x, weights[index]].into_iter().chain(biases.get(index).copied()).collect();
        let y = linear(&operands, mlp.transposed, mlp.bias)?[0];
        biases.get(index).map_or(Ok(()), |bias| vector(*bias, y.shape.columns(), "bias"))?;
        Ok::<Type, String>(y)
    };
    let last = weights.len() - 1;
    let hidden = layer(x, 0)?;
    for index in 1..last {
        equal(hidden, layer(x, index)?, "gate and up")?;
    }
    layer(hidden, last)
}

fn cross_entropy(inputs: &[Type]) -> Result<(), String> {
    let &[rows, _] = &inputs[0].shape[..] else {
        return Err(format!("logits must be [rows, words], got {}", inputs[0].shape));
    };
    float(inputs[0])?;
    equal(inputs[1], Type::i32([rows]), "targets")?;
    equal(inputs[2], Type::f32([]), "scale")
}

fn head_loss(inputs: &[Type], head: Head) -> Result<(), String> {
    let (&[rows, width], &[words, weight_width]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
        return Err(format!("input {} and weight {} must be matrices", inputs[0].shape, inputs[1].shape));
    };
    float(inputs[0])?;
    if width != weight_width {
        return Err(format!("input has {width} columns, weight wants {weight_width}"));
    }
    equal(inputs[2], Type::i32([rows]), "targets")?;
    equal(inputs[3], Type::f32([]), "scale")?;
    if head.bias { vector(inputs[4], words, "bias") } else { Ok(()) }
}

/// Checks a gradient, its `scalars` and what the update draws random numbers from.
fn update(inputs: &[Type], scalars: usize, stored: Stored, moments: usize) -> Result<Vec<Type>, String> {
    float(inputs[0])?;
    for scalar in &inputs[1..=scalars] {
        equal(*scalar, Type::f32([]), "learning rate, step and scale")?;
    }
    if let Some(rng) = inputs.get(scalars + 1) {
        equal(*rng, Type::i32([4]), "rng")?;
    }
    Ok(stored.types(inputs[0].shape, moments))
}

/// Checks the statistics and the gradient of a norm: all but the last of `rest` are statistics of `x`.
fn norm_gradient(x: Type, rest: &[Type]) -> Result<(), String> {
    let Some((gradient, statistics)) = rest.split_last() else {
        return Err("the gradient is missing".into());
    };
    for one in statistics {
        vector(*one, x.shape.rows(), "statistics")?;
    }
    equal(x, *gradient, "input and gradient")
}

/// The type of one number per row.
fn statistics(x: Type) -> Type {
    Type::f32([x.shape.rows()])
}

fn rank4(shape: Shape, what: &str) -> Result<[usize; 4], String> {
    <[usize; 4]>::try_from(&shape[..]).map_err(|_| format!("{what} must have four axes, got {shape}"))
}

fn axis_extent(shape: Shape, axis: usize) -> Result<usize, String> {
    shape.get(axis).copied().ok_or_else(|| format!("{shape} has no axis {axis}"))
}

fn columns(shape: Shape, wanted: usize, what: &str) -> Result<(), String> {
    if shape.is_empty() || shape.columns() != wanted {
        return Err(format!("{what} {shape} must have {wanted} columns"));
    }
    Ok(())
}

fn vector(ty: Type, length: usize, what: &str) -> Result<(), String> {
    if ty.shape != Shape::from([length]) || !ty.dtype.is_float() {
        return Err(format!("{what} must be a float vector of {length}, got {ty}"));
    }
    Ok(())
}

fn integers(ty: Type, what: &str) -> Result<(), String> {
    if ty.dtype == DType::I32 { Ok(()) } else { Err(format!("{what} must be i32, got {ty}")) }
}

fn float(ty: Type) -> Result<(), String> {
    if ty.dtype.is_float() { Ok(()) } else { Err(format!("wants floats, got {ty}")) }
}

fn equal(a: Type, b: Type, what: &str) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a} is not {b}")) }
}

fn same_count(a: usize, b: usize, from: Shape, to: Shape) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{from} has {a} elements, {to} has {b}")) }
}

/// The leading axes that suffix-broadcasting adds to `b` to reach `a`.
pub(crate) fn broadcast_axes(a: Shape, b: Shape) -> Axes {
    Axes::of(0..a.len() - b.len())
}
