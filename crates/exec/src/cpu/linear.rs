//! The linear layer, its two gradients and the batched matrix product: strides for products.
//!
//! A matrix that is used transposed is not copied: packing reads it along its other axis. `N` is the number of
//! rows of `x`, `(out, in)` the extents of the weight.

use half::bf16;
use plimsoll_graph::{DType, Op, Shape, Type};
use plimsoll_plan::Workspace;

use super::element::Element;
use super::matmul::{self, Extents, Factors, Start};
use super::pack::{Numbers, View};
use super::rounded::{self, Begin};
use super::{Call, pieces, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Linear { transposed, .. } => linear(call, *transposed),
        Op::LinearGradInput { transposed } => linear_grad_input(call, *transposed),
        Op::LinearGradWeight { transposed } => linear_grad_weight(call, *transposed),
        Op::Matmul { transpose_a, transpose_b } => matmul(call, *transpose_a, *transpose_b),
        _ => return None,
    })
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], threads: usize) -> Option<Workspace> {
    Some(match op {
        Op::Linear { .. } => linear_workspace(inputs, outputs),
        Op::LinearGradInput { .. } => linear_grad_input_workspace(inputs, outputs),
        Op::LinearGradWeight { .. } => linear_grad_weight_workspace(inputs, outputs),
        Op::Matmul { transpose_a, .. } => matmul_workspace(inputs, outputs, threads, *transpose_a),
        _ => return None,
    })
}

/// A weight and the products with it.
#[derive(Clone, Copy)]
pub(super) struct Weight<'a> {
    numbers: Numbers<'a>,
    /// `(out, in)`, or `(in, out)` when `transposed`.
    shape: Shape,
    transposed: bool,
}

impl<'a> Weight<'a> {
    /// Input `index` of a call.
    pub(super) fn input(call: &'a Call, index: usize, transposed: bool) -> Weight<'a> {
        Weight { numbers: call.numbers(index), shape: call.inputs[index].ty.shape, transposed }
    }

    fn extents(&self) -> (usize, usize) {
        extents_of(self.shape, self.transposed)
    }

    /// `x·wᵀ`, `rows` rows.
    fn times<'b>(&'b self, rows: usize, x: Numbers<'b>) -> Factors<'b> {
        let (out, input) = self.extents();
        let extents = Extents { m: rows, n: out, k: input };
        let (line, depth) = if self.transposed { (1, out) } else { (input, 1) };
        let b = View::of(self.numbers, out, input, line, depth);
        Factors { extents, a: View::of(x, rows, input, input, 1), b }
    }

    /// `dy·w`, `rows` rows.
    fn times_back<'b>(&'b self, rows: usize, dy: Numbers<'b>) -> Factors<'b> {
        let (out, input) = self.extents();
        let extents = Extents { m: rows, n: input, k: out };
        let (line, depth) = if self.transposed { (out, 1) } else { (1, input) };
        let b = View::of(self.numbers, input, out, line, depth);
        Factors { extents, a: View::of(dy, rows, out, out, 1), b }
    }

    /// `y = start + x·wᵀ`, `rows` rows.
    pub(super) fn forward(&self, rows: usize, x: Numbers, start: Start, y: &mut [f32], scratch: &mut [f32]) {
        self.times(rows, x).product(start, y, scratch);
    }

    /// `dx = dy·w`, `rows` rows.
    pub(super) fn backward(&self, rows: usize, dy: Numbers, dx: &mut [f32], scratch: &mut [f32]) {
        self.times_back(rows, dy).product(Start::Zero, dx, scratch);
    }

    /// `dw = start + dyᵀ·x`, or its transpose, over `rows` rows of the operands `x` and `dy`. The sum takes the rows in
    /// order, so several calls, each continuing the last, give the bits of one call.
    pub(super) fn gradient(
        &self,
        rows: usize,
        operands: [Numbers; 2],
        start: Start,
        dw: &mut [f32],
        scratch: &mut [f32],
    ) {
        weight_gradient(self.shape, self.transposed, rows, operands).product(start, dw, scratch);
    }
}

/// `(out, in)` of a weight's shape.
pub(super) fn extents_of(shape: Shape, transposed: bool) -> (usize, usize) {
    if transposed { (shape[1], shape[0]) } else { (shape[0], shape[1]) }
}

/// The gradient of a weight of shape `shape`.
fn weight_gradient(shape: Shape, transposed: bool, rows: usize, [x, dy]: [Numbers<'_>; 2]) -> Factors<'_> {
    let extents = Extents { m: shape[0], n: shape[1], k: rows };
    let (left, right) = if transposed { (x, dy) } else { (dy, x) };
    let a = View::of(left, extents.m, rows, 1, extents.m);
    Factors { extents, a, b: View::of(right, extents.n, rows, 1, extents.n) }
}

/// `(x[N,in], w[, b]) → y[N,out]`, `w` being `(out, in)`, or `(in, out)` when `transposed`.
fn linear(call: &Call, transposed: bool) -> Result<(), ExecError> {
    let precision = call.precision()?;
    let (rows, weight) = (call.inputs[0].ty.shape.rows(), Weight::input(call, 1, transposed));
    let product = weight.times(rows, call.numbers(0));
    match precision {
        DType::Bf16 => product.rounded(rounded_start(call), call.output_as(0), call.scratch()),
        _ => product.product(linear_start(call), call.output(0), call.scratch()),
    }
    Ok(())
}

/// As [`linear_start`], for a result in bf16.
fn rounded_start<'a>(call: &'a Call) -> Begin<'a> {
    let Some(bias) = call.inputs.get(2) else { return Begin::Zero };
    if std::ptr::eq(bias.pointer, call.outputs[0].pointer) {
        Begin::Kept
    } else if bias.ty == call.outputs[0].ty {
        Begin::Matrix(call.elements(2))
    } else {
        Begin::Bias(call.input(2))
    }
}

/// First value of the sums of a linear layer. An addend whose place the result took over is not borrowed.
fn linear_start<'a>(call: &'a Call) -> Start<'a> {
    let Some(bias) = call.inputs.get(2) else { return Start::Zero };
    if std::ptr::eq(bias.pointer, call.outputs[0].pointer) {
        Start::Kept
    } else if bias.ty == call.outputs[0].ty {
        Start::Matrix(call.input(2))
    } else {
        Start::Bias(call.input(2))
    }
}

/// Scratch of [`linear`].
fn linear_workspace(inputs: &[Type], outputs: &[Type]) -> Workspace {
    rounded::workspace(linear_extents(inputs[0].shape, outputs[0].shape), is_half(outputs[0]))
}

fn is_half(ty: Type) -> bool {
    ty.dtype == DType::Bf16
}

/// `(w, dy[N,out]) → dx[N,in]`.
fn linear_grad_input(call: &Call, transposed: bool) -> Result<(), ExecError> {
    let precision = call.precision()?;
    let (rows, weight) = (call.inputs[1].ty.shape.rows(), Weight::input(call, 0, transposed));
    let product = weight.times_back(rows, call.numbers(1));
    match precision {
        DType::Bf16 => product.rounded(Begin::Zero, call.output_as(0), call.scratch()),
        _ => product.product(Start::Zero, call.output(0), call.scratch()),
    }
    Ok(())
}

/// Scratch of [`linear_grad_input`].
fn linear_grad_input_workspace(inputs: &[Type], outputs: &[Type]) -> Workspace {
    rounded::workspace(linear_extents(inputs[1].shape, outputs[0].shape), is_half(outputs[0]))
}

/// `(x[N,in], dy[N,out]) → dw`, of the weight's shape.
fn linear_grad_weight(call: &Call, transposed: bool) -> Result<(), ExecError> {
    call.precision()?;
    let (rows, dw) = (call.inputs[0].ty.shape.rows(), &call.outputs[0]);
    let operands = [call.numbers(0), call.numbers(1)];
    let product = weight_gradient(dw.ty.shape, transposed, rows, operands);
    if is_half(dw.ty) {
        let begin = if dw.accumulate { Begin::Added } else { Begin::Zero };
        product.rounded(begin, call.output_as(0), call.scratch());
    } else {
        product.product(kept_if(dw.accumulate), call.output(0), call.scratch());
    }
    Ok(())
}

/// Scratch of [`linear_grad_weight`].
fn linear_grad_weight_workspace(inputs: &[Type], outputs: &[Type]) -> Workspace {
    rounded::workspace(weight_extents(inputs[0].shape, outputs[0].shape), is_half(outputs[0]))
}

/// `(a, b) → a·b` for each index of the leading axes.
fn matmul(call: &Call, transpose_a: bool, transpose_b: bool) -> Result<(), ExecError> {
    let each =
        |factors: Factors, scratch: &mut [f32], c: &mut [f32]| factors.product(Start::Zero, c, scratch);
    let each_half =
        |factors: Factors, scratch: &mut [f32], c: &mut [bf16]| factors.rounded(Begin::Zero, c, scratch);
    match call.precision()? {
        DType::Bf16 => matmul_as(call, transpose_a, transpose_b, each_half),
        _ => matmul_as(call, transpose_a, transpose_b, each),
    }
    Ok(())
}

/// The products of a batch, each stored by `product`.
fn matmul_as<E: Element>(
    call: &Call,
    transpose_a: bool,
    transpose_b: bool,
    product: impl Fn(Factors, &mut [f32], &mut [E]) + Sync + Send,
) {
    let extents = batch_extents(call.inputs[0].ty.shape, call.outputs[0].ty.shape, transpose_a);
    let Extents { m, n, k } = extents;
    let (row, depth_a) = if transpose_a { (1, m) } else { (k, 1) };
    let (column, depth_b) = if transpose_b { (k, 1) } else { (1, n) };
    let (a, b, c) = (call.numbers(0), call.numbers(1), call.output_as::<E>(0));
    if k == 0 {
        return c.fill(E::ZERO);
    }
    let one = |index: usize, c: &mut [E], scratch: &mut [f32]| {
        let a = View::of(a.from(index * m * k), m, k, row, depth_a);
        let b = View::of(b.from(index * k * n), n, k, column, depth_b);
        product(Factors { extents, a, b }, scratch, c);
    };
    // Large products run one after the other, each shared by all threads. Small ones are dealt out, each share
    // with a part of the scratch to itself.
    let (len, scratch) = ((m * n).max(1), call.scratch());
    let batch = c.len() / len;
    let fitting = scratch.len() / floats(rounded::workspace(extents, !E::WHOLE).least).max(1);
    let shares = if matmul::is_small(extents) { pieces::threads().min(batch).min(fitting).max(1) } else { 1 };
    let share = batch.div_ceil(shares).max(1);
    let room = (scratch.len() / shares).max(1);
    split::chunks_with_scratch((c, share * len), (scratch, room), |dealt, c, scratch| {
        c.chunks_exact_mut(len).enumerate().for_each(|(index, c)| one(dealt * share + index, c, scratch));
    });
}

/// Scratch of [`matmul()`].
fn matmul_workspace(inputs: &[Type], outputs: &[Type], threads: usize, transpose_a: bool) -> Workspace {
    let extents = batch_extents(inputs[0].shape, outputs[0].shape, transpose_a);
    let one = rounded::workspace(extents, is_half(outputs[0]));
    let batch = outputs[0].shape.elements() / (extents.m * extents.n).max(1);
    let shares = if matmul::is_small(extents) { threads.min(batch).max(1) } else { 1 };
    Workspace { least: one.least, best: one.best * shares as u64 }
}

fn floats(bytes: u64) -> usize {
    bytes as usize / 4
}

/// First value of an output that may be added to.
pub(super) fn kept_if(accumulate: bool) -> Start<'static> {
    if accumulate { Start::Kept } else { Start::Zero }
}

/// A product of rows of `from` with columns of `to`, which sums over the columns of `from`.
fn linear_extents(from: Shape, to: Shape) -> Extents {
    Extents { m: from.rows(), n: to.columns(), k: from.columns() }
}

/// The gradient of a weight of shape `weight`: a product that sums over the rows of `x`.
fn weight_extents(x: Shape, weight: Shape) -> Extents {
    Extents { m: weight[0], n: weight[1], k: x.rows() }
}

/// The last two axes of `a` and of the result.
fn batch_extents(a: Shape, c: Shape, transpose_a: bool) -> Extents {
    let rank = c.len();
    Extents { m: c[rank - 2], n: c[rank - 1], k: if transpose_a { a[rank - 2] } else { a[rank - 1] } }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use crate::cpu::trial::{Trial, numbers};

    /// `Σₚ left(i, p) · right(p, j)` in double precision.
    fn expected(
        (m, n, k): (usize, usize, usize),
        left: impl Fn(usize, usize) -> f32,
        right: impl Fn(usize, usize) -> f32,
    ) -> Vec<f64> {
        let element =
            |i: usize, j: usize| (0..k).map(|p| f64::from(left(i, p)) * f64::from(right(p, j))).sum();
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    fn close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 2e-5, "element {at}: {got}, not {want}");
        }
    }

    #[test]
    fn a_linear_layer_multiplies_by_the_weight_however_it_is_stored() {
        let (rows, out, input) = (2 * 7, 37, 29);
        for transposed in [false, true] {
            let weight = if transposed { [input, out] } else { [out, input] };
            let op = Op::Linear { transposed, bias: true };
            let trial = Trial::random(op, &[&[2, 7, input], &weight, &[out]]);
            let (x, w, bias) = (trial.input(0), trial.input(1), trial.input(2));
            let w_at = |o: usize, i: usize| if transposed { w[i * out + o] } else { w[o * input + i] };
            let mut want = expected((rows, out, input), |i, p| x[i * input + p], |p, j| w_at(j, p));
            want.iter_mut().enumerate().for_each(|(at, y)| *y += f64::from(bias[at % out]));
            close(&trial.run_everywhere()[0], &want);

            let op = Op::LinearGradInput { transposed };
            let trial = Trial::random(op, &[&weight, &[2, 7, out]]);
            let (w, dy) = (trial.input(0), trial.input(1));
            let w_at = |o: usize, i: usize| if transposed { w[i * out + o] } else { w[o * input + i] };
            let want = expected((rows, input, out), |i, p| dy[i * out + p], w_at);
            close(&trial.run_everywhere()[0], &want);
        }
    }

    #[test]
    fn a_matrix_that_a_product_is_added_to_may_give_up_its_place() {
        let op = Op::Linear { transposed: false, bias: true };
        let trial = || Trial::random(op.clone(), &[&[7, 29], &[37, 29], &[7, 37]]);
        let (x, w, before) = (trial().input(0), trial().input(1), trial().input(2));
        let mut want = expected((7, 37, 29), |i, p| x[i * 29 + p], |p, j| w[j * 29 + p]);
        want.iter_mut().zip(&before).for_each(|(y, before)| *y += f64::from(*before));
        let apart = trial().run_everywhere();
        close(&apart[0], &want);
        assert_eq!(trial().over(0, 2).run_everywhere(), apart, "in place, the same bits");
    }

    #[test]
    fn the_gradient_of_a_weight_replaces_or_adds() {
        let (rows, out, input) = (61, 19, 23);
        for (transposed, accumulate) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = Op::LinearGradWeight { transposed };
            let mut trial = Trial::random(op, &[&[rows, input], &[rows, out]]);
            let (x, dy, before) = (trial.input(0), trial.input(1), numbers(out * input, 9));
            let (x_at, dy_at) = (|p: usize, i: usize| x[p * input + i], |p: usize, o: usize| dy[p * out + o]);
            let mut want = if transposed {
                expected((input, out, rows), |i, p| x_at(p, i), dy_at)
            } else {
                expected((out, input, rows), |o, p| dy_at(p, o), x_at)
            };
            if accumulate {
                trial = trial.onto(0, &before);
                want.iter_mut().zip(&before).for_each(|(dw, before)| *dw += f64::from(*before));
            }
            close(&trial.run_everywhere()[0], &want);
        }
    }

    #[test]
    fn a_batch_of_products_multiplies_matrix_by_matrix() {
        let (m, n, k) = (9, 35, 21);
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = Op::Matmul { transpose_a, transpose_b };
            let a_shape = if transpose_a { [2, 3, k, m] } else { [2, 3, m, k] };
            let b_shape = if transpose_b { [2, 3, n, k] } else { [2, 3, k, n] };
            let trial = Trial::random(op, &[&a_shape, &b_shape]);
            let (a, b) = (trial.input(0), trial.input(1));
            let a_at =
                |z: usize, i: usize, p: usize| a[z * m * k + if transpose_a { p * m + i } else { i * k + p }];
            let b_at =
                |z: usize, p: usize, j: usize| b[z * k * n + if transpose_b { j * k + p } else { p * n + j }];
            let each = |z: usize| expected((m, n, k), |i, p| a_at(z, i, p), |p, j| b_at(z, p, j));
            let want: Vec<f64> = (0..6).flat_map(each).collect();
            close(&trial.run_everywhere()[0], &want);
        }
    }
}
