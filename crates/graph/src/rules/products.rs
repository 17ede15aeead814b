//! Matrix products: linear layers, batched products and convolutions.

use super::{Cotangents, columns, float, no_derivative, no_types, operands, rank4, vector};
use crate::graph::{Graph, Node};
use crate::op::Conv;
use crate::tape::Tape;
use crate::{Axes, DType, GraphError, Op, Shape, Type, Value};

impl Graph {
    /// `x·wᵀ + bias` with `w (out, in)`; the bias is `[out]`, or a value of the result's shape.
    #[track_caller]
    pub fn linear(&mut self, x: Value, w: Value, bias: Option<Value>) -> Value {
        self.linear_op(x, w, bias, false)
    }

    /// `x·w + bias` with `w (in, out)`, as GPT-2 stores its weights.
    #[track_caller]
    pub fn linear_transposed(&mut self, x: Value, w: Value, bias: Option<Value>) -> Value {
        self.linear_op(x, w, bias, true)
    }

    #[track_caller]
    fn linear_op(&mut self, x: Value, w: Value, bias: Option<Value>, transposed: bool) -> Value {
        let inputs: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.apply(Op::Linear { transposed, bias: bias.is_some() }, &inputs)
    }

    /// `a·b` over the last two axes.
    #[track_caller]
    pub fn matmul(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Matmul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// `a·bᵀ` over the last two axes.
    #[track_caller]
    pub fn matmul_transposed(&mut self, a: Value, b: Value) -> Value {
        self.apply(Op::Matmul { transpose_a: false, transpose_b: true }, &[a, b])
    }

    /// Two-dimensional convolution of `x[B,C,Y,X]` with `w[O,C,h,w]`.
    #[track_caller]
    pub fn conv2d(&mut self, x: Value, w: Value, bias: Option<Value>, conv: Conv) -> Value {
        let inputs: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.apply(Op::Conv2d { conv, bias: bias.is_some() }, &inputs)
    }
}

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let ty = match op {
        Op::Linear { transposed, .. } => linear(inputs, *transposed)?,
        Op::LinearGradInput { transposed } => {
            let [w, dy] = operands(inputs)?;
            let (out, input) = weight_extents(w.shape, *transposed)?;
            columns(dy.shape, out, "gradient")?;
            Type { shape: dy.shape.with(dy.shape.len() - 1, input), ..dy }
        }
        Op::LinearGradWeight { transposed } => {
            let [x, dy] = operands(inputs)?;
            if x.shape.rows() != dy.shape.rows() {
                return Err(format!("input {} and gradient {} differ in rows", x.shape, dy.shape));
            }
            let (out, input) = (dy.shape.columns(), x.shape.columns());
            let shape = if *transposed { [input, out] } else { [out, input] };
            Type { shape: shape.into(), ..dy }
        }
        Op::Matmul { transpose_a, transpose_b } => {
            let [a, b] = operands(inputs)?;
            matmul(a, b, *transpose_a, *transpose_b)?
        }
        Op::Conv2d { conv, bias } => conv2d(inputs, *conv, *bias)?,
        Op::Conv2dGradInput { image, .. } => {
            let [w, dy] = operands(inputs)?;
            let [_, channels, _, _] = rank4(w.shape, "weight")?;
            let [batch, ..] = rank4(dy.shape, "gradient")?;
            Type { shape: [batch, channels, image[0], image[1]].into(), ..dy }
        }
        Op::Conv2dGradWeight { window, .. } => {
            let [x, dy] = operands(inputs)?;
            let [_, channels, _, _] = rank4(x.shape, "input")?;
            let [_, out, _, _] = rank4(dy.shape, "gradient")?;
            Type { shape: [out, channels, window[0], window[1]].into(), ..x }
        }
        other => return no_types(other),
    };
    Ok(vec![ty])
}

pub(super) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    let Some(dy) = dys[0] else { return Ok(()) };
    let (inputs, x) = (&node.inputs, node.inputs[0]);
    match &node.op {
        // The weight comes first: its gradient is the last reader of `x`, whose bytes are then free
        // for the gradient of `x`.
        Op::Linear { transposed, bias } => {
            tape.emit(inputs[1], Op::LinearGradWeight { transposed: *transposed }, &[x, dy]);
            if *bias {
                tape.emit_summed(inputs[2], dy);
            }
            tape.emit(x, Op::LinearGradInput { transposed: *transposed }, &[inputs[1], dy]);
        }
        Op::Matmul { transpose_a, transpose_b } => {
            matmul_rule(tape, inputs, dy, *transpose_a, *transpose_b);
        }
        Op::Conv2d { conv, bias } => {
            let (image, window) = (tape.graph.shape(x), tape.graph.shape(inputs[1]));
            let (image, window) = ([image[2], image[3]], [window[2], window[3]]);
            tape.emit(inputs[1], Op::Conv2dGradWeight { conv: *conv, window }, &[x, dy]);
            if *bias {
                tape.emit(inputs[2], Op::Sum { axes: Axes::of([0, 2, 3]) }, &[dy]);
            }
            tape.emit(x, Op::Conv2dGradInput { conv: *conv, image }, &[inputs[1], dy]);
        }
        other => return no_derivative(other),
    }
    Ok(())
}

pub(super) fn flops(op: &Op, inputs: &[Type], outputs: &[Type]) -> f64 {
    let elements = |ty: &Type| ty.shape.elements() as f64;
    let window = |weight: &Type| weight.shape[1..].iter().product::<usize>() as f64;
    2.0 * match op {
        Op::Linear { .. } => elements(&outputs[0]) * inputs[0].shape.columns() as f64,
        Op::LinearGradInput { .. } => elements(&outputs[0]) * inputs[1].shape.columns() as f64,
        Op::LinearGradWeight { .. } => elements(&outputs[0]) * inputs[0].shape.rows() as f64,
        Op::Matmul { transpose_a, .. } => {
            let shape = inputs[0].shape;
            let inner = if *transpose_a { shape[shape.len() - 2] } else { shape.columns() };
            elements(&outputs[0]) * inner as f64
        }
        Op::Conv2d { .. } => elements(&outputs[0]) * window(&inputs[1]),
        Op::Conv2dGradInput { .. } => elements(&inputs[1]) * window(&inputs[0]),
        Op::Conv2dGradWeight { .. } => elements(&inputs[1]) * window(&outputs[0]),
        _ => 0.0,
    }
}

/// The result of a linear layer: its operands are `x`, a weight and perhaps a bias.
pub(super) fn linear(inputs: &[Type], transposed: bool) -> Result<Type, String> {
    let ([x, w] | [x, w, _]) = *inputs else {
        return Err(format!("takes 2 inputs, and 3 with a bias, got {}", inputs.len()));
    };
    float(x)?;
    if x.shape.is_empty() {
        return Err("the input is a scalar".into());
    }
    let either = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
    if w.dtype != x.dtype && !(either(x.dtype) && either(w.dtype)) {
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
    match inputs.get(2) {
        Some(bias) if *bias != result => vector(*bias, out, "bias").map(|()| result),
        _ => Ok(result),
    }
}

/// `(out, in)` of a weight matrix.
fn weight_extents(weight: Shape, transposed: bool) -> Result<(usize, usize), String> {
    match (&weight[..], transposed) {
        (&[out, input], false) | (&[input, out], true) => Ok((out, input)),
        _ => Err(format!("the weight must be a matrix, got {weight}")),
    }
}

fn matmul(a: Type, b: Type, transpose_a: bool, transpose_b: bool) -> Result<Type, String> {
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
    Ok(Type { shape: a.shape.with(rank - 2, m).with(rank - 1, n), ..a })
}

/// `c = a·b`: `da = dc·bᵀ`, `db = aᵀ·dc`, with each operand read the other way round where the
/// product read it transposed.
fn matmul_rule(tape: &mut Tape, inputs: &[Value], dc: Value, transpose_a: bool, transpose_b: bool) {
    let (a, b) = (inputs[0], inputs[1]);
    let product = |transpose_a, transpose_b| Op::Matmul { transpose_a, transpose_b };
    if transpose_a {
        tape.emit(a, product(transpose_b, true), &[b, dc]);
    } else {
        tape.emit(a, product(false, !transpose_b), &[dc, b]);
    }
    if transpose_b {
        tape.emit(b, product(true, transpose_a), &[dc, a]);
    } else {
        tape.emit(b, product(!transpose_a, false), &[a, dc]);
    }
}

fn conv2d(inputs: &[Type], conv: Conv, bias: bool) -> Result<Type, String> {
    let &[image, weight, ..] = inputs else {
        return Err(format!("takes 2 inputs, and 3 with a bias, got {}", inputs.len()));
    };
    let [batch, channels, height, width] = rank4(image.shape, "input")?;
    let [out, weight_channels, window_y, window_x] = rank4(weight.shape, "weight")?;
    if channels != weight_channels {
        return Err(format!("input has {channels} channels, weight wants {weight_channels}"));
    }
    if bias {
        let [_, _, bias] = operands(inputs)?;
        vector(bias, out, "bias")?;
    }
    let extent = |image: usize, window: usize| {
        let span = (image + 2 * conv.padding).checked_sub(window);
        span.filter(|_| conv.stride > 0).map(|span| span / conv.stride + 1)
    };
    match (extent(height, window_y), extent(width, window_x)) {
        (Some(y), Some(x)) => Ok(Type { shape: [batch, out, y, x].into(), ..image }),
        _ => Err(format!("a {window_y}x{window_x} window does not fit {height}x{width} with {conv:?}")),
    }
}
