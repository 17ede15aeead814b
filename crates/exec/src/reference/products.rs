//! Matrix products and convolutions, as their definitions have them.

use plimsoll_graph::Op;
use plimsoll_graph::op::Conv;

use super::Operands;
use super::array::{Array, add_scaled, dot, positions};

/// The results of an op of this family.
pub(super) fn eval(op: &Op, operands: &Operands) -> Vec<Array> {
    let (a, b, bias) = (operands.x(0), operands.x(1), operands.get(2));
    vec![match op {
        Op::Linear { transposed, .. } => linear(a, b, bias, *transposed),
        Op::LinearGradInput { transposed } => linear_grad_input(a, b, *transposed),
        Op::LinearGradWeight { transposed } => linear_grad_weight(a, b, *transposed),
        Op::Matmul { transpose_a, transpose_b } => matmul(a, b, *transpose_a, *transpose_b),
        Op::Conv2d { conv, .. } => conv2d(a, b, bias, *conv),
        Op::Conv2dGradInput { conv, image } => conv2d_grad_input(a, b, *conv, *image),
        Op::Conv2dGradWeight { conv, window } => conv2d_grad_weight(a, b, *conv, *window),
        other => unreachable!("`{}` is of another family", other.name()),
    }]
}

/// `x·wᵀ + b`, or `x·w + b` when `transposed`; `b` is a row for all rows or has its own for each.
/// (…, in) → (…, out)
pub(super) fn linear(x: &Array, w: &Array, bias: Option<&Array>, transposed: bool) -> Array {
    let w = if transposed { flipped(w) } else { w.clone() }; // (out, in)
    let mut data = Vec::new();
    for x in x.rows() {
        for w in w.rows() {
            let bias = bias.map_or(0.0, |bias| bias.data[data.len() % bias.data.len()]);
            data.push(dot(x, w) + bias);
        }
    }
    Array { shape: x.shape.with(x.shape.len() - 1, w.shape[0]), data }
}

/// `dx = dy·w`. (…, out) → (…, in)
pub(super) fn linear_grad_input(w: &Array, dy: &Array, transposed: bool) -> Array {
    let w = if transposed { w.clone() } else { flipped(w) }; // (in, out)
    linear(dy, &w, None, false)
}

/// `dw = dyᵀ·x`, or its transpose when `transposed`.
pub(super) fn linear_grad_weight(x: &Array, dy: &Array, transposed: bool) -> Array {
    let mut dw = Array::zeros([dy.shape.columns(), x.shape.columns()]); // (out, in)
    for (x, dy) in x.rows().zip(dy.rows()) {
        for (out, &dy) in dy.iter().enumerate() {
            add_scaled(dw.row_mut(&[out]), dy, x);
        }
    }
    if transposed { flipped(&dw) } else { dw }
}

/// `a·b` over the last two axes.
fn matmul(a: &Array, b: &Array, transpose_a: bool, transpose_b: bool) -> Array {
    let rank = a.shape.len();
    let order = |(row, column): (usize, usize), flip: bool| if flip { [column, row] } else { [row, column] };
    let [m, inner] = order((a.shape[rank - 2], a.shape[rank - 1]), transpose_a);
    let [_, n] = order((b.shape[rank - 2], b.shape[rank - 1]), transpose_b);
    Array::build(a.shape.with(rank - 2, m).with(rank - 1, n), |at| {
        let (batch, row, column) = (&at[..rank - 2], at[rank - 2], at[rank - 1]);
        let product = |k: usize| {
            let left = [batch, &order((row, k), transpose_a)].concat();
            let right = [batch, &order((k, column), transpose_b)].concat();
            a.at(&left) * b.at(&right)
        };
        (0..inner).map(product).sum()
    })
}

/// `(x[B,C,Y,X], w[O,C,h,w][, b[O]]) → y[B,O,Y',X']`.
fn conv2d(x: &Array, w: &Array, bias: Option<&Array>, conv: Conv) -> Array {
    let extent = |axis| (x.shape[axis] + 2 * conv.padding - w.shape[axis]) / conv.stride + 1;
    let mut y = Array::build([x.shape[0], w.shape[0], extent(2), extent(3)], |at| {
        bias.map_or(0.0, |bias| bias.data[at[1]])
    });
    let (image, window) = ([x.shape[2], x.shape[3]], [w.shape[2], w.shape[3]]);
    for_each_product(
        [y.shape[0], y.shape[1], x.shape[1]],
        [y.shape[2], y.shape[3]],
        image,
        window,
        conv,
        |at| {
            y.add_at(&at.y, x.at(&at.x) * w.at(&at.w));
        },
    );
    y
}

fn conv2d_grad_input(w: &Array, dy: &Array, conv: Conv, image: [usize; 2]) -> Array {
    let mut dx = Array::zeros([dy.shape[0], w.shape[1], image[0], image[1]]);
    let window = [w.shape[2], w.shape[3]];
    let channels = [dy.shape[0], dy.shape[1], w.shape[1]];
    for_each_product(channels, [dy.shape[2], dy.shape[3]], image, window, conv, |at| {
        dx.add_at(&at.x, dy.at(&at.y) * w.at(&at.w));
    });
    dx
}

fn conv2d_grad_weight(x: &Array, dy: &Array, conv: Conv, window: [usize; 2]) -> Array {
    let mut dw = Array::zeros([dy.shape[1], x.shape[1], window[0], window[1]]);
    let image = [x.shape[2], x.shape[3]];
    let channels = [dy.shape[0], dy.shape[1], x.shape[1]];
    for_each_product(channels, [dy.shape[2], dy.shape[3]], image, window, conv, |at| {
        dw.add_at(&at.w, dy.at(&at.y) * x.at(&at.x));
    });
    dw
}

/// The three places that one product of a convolution joins.
struct Product {
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
}

/// Visits every product of a convolution once; those with the padding are left out, being zero.
fn for_each_product(
    [batch, out, channels]: [usize; 3],
    result: [usize; 2],
    image: [usize; 2],
    window: [usize; 2],
    conv: Conv,
    mut visit: impl FnMut(&Product),
) {
    // Result and window index give an image index, unless it lies in the padding.
    let pixel = |axis: usize, y: usize, w: usize| {
        (y * conv.stride + w).checked_sub(conv.padding).filter(|&at| at < image[axis])
    };
    for place in positions([result[0], result[1], window[0], window[1]].into()) {
        let (y, w) = (&place[..2], &place[2..]);
        if let (Some(x0), Some(x1)) = (pixel(0, y[0], w[0]), pixel(1, y[1], w[1])) {
            for (b, o, c) in triples(batch, out, channels) {
                visit(&Product { x: [b, c, x0, x1], w: [o, c, w[0], w[1]], y: [b, o, y[0], y[1]] });
            }
        }
    }
}

/// All `(i, j, k)` below the given extents, the last running fastest.
pub(super) fn triples(i: usize, j: usize, k: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..i * j * k).map(move |flat| (flat / (j * k), flat / k % j, flat % k))
}

fn flipped(matrix: &Array) -> Array {
    Array::build([matrix.shape[1], matrix.shape[0]], |at| matrix.at(&[at[1], at[0]]))
}
