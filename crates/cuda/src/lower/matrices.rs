//! Optimizers that take a parameter as matrices: Adafactor and Muon.
//!
//! ```text
//! Muon's scratch   X: the whole parameter | Y: one matrix | A, B: squares of its shorter side
//! ```
//!
//! Each round of Muon's iteration reads the matrix from `Y` and writes it to `X`, or the other way round. It begins in `Y`, so
//! that an odd number of rounds ends in `X`. The iteration works in the type of gradients: in bf16, as the original does, where they are
//! bf16, and in f32 elsewhere.

use plimsoll_exec::ExecError;
use plimsoll_graph::op::{Adafactor, Moments, Muon};
use plimsoll_graph::{DType, Shape};

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64, kind, suffix, unsupported};
use super::place::Place;
use super::product::{Matrix, Plus, product};
use super::sums::{Total, chunks, column_tiles, finish};
use super::updates::{UPDATED, ranges, squares_of, weights_name};

/// A parameter as matrices; a vector is one row.
#[derive(Clone, Copy)]
struct Matrices {
    count: usize,
    rows: usize,
    columns: usize,
    /// Whether there are means of rows beside those of columns.
    factored: bool,
}

impl Matrices {
    fn of(shape: Shape) -> Matrices {
        let (factored, columns) = (shape.len() >= 2, shape.columns());
        let rows = if factored { shape[shape.len() - 2] } else { 1 };
        Matrices { count: shape.elements() / (rows * columns).max(1), rows, columns, factored }
    }
}

pub(super) fn adafactor(to: &mut Lowering, call: &Call, rates: Adafactor) -> Result<(), ExecError> {
    let (grad, [lr, step, scale]) = (&call.inputs[0], [1, 2, 3].map(|index| call.inputs[index].pointer()));
    let matrices = Matrices::of(grad.shape());
    let statistics = &call.outputs[rates.stored.types(grad.shape(), 0).len()..];
    let means = Means { grad, step, scale: scale.clone(), rates };
    if matrices.factored {
        means.rows(to, matrices, &statistics[0]);
    }
    means.columns(to, call, matrices, &statistics[statistics.len() - 1])?;
    let by = factors(to, matrices, statistics);
    let sums = to.take(4 * (matrices.count * matrices.rows) as u64);
    let args = vec![grad.pointer(), grad.kind(), scale.clone(), by.clone(), Arg::Pointer(sums)];
    to.launch("squares_of_steps", matrices.count * matrices.rows, 256, args);
    let squares = Arg::Pointer(to.take(4));
    let args = vec![Arg::Pointer(sums), squares.clone(), i64(matrices.count * matrices.rows)];
    to.launch("finish_squares", 1, 256, args);
    let rule = [rates.clip_threshold, rates.weight_decay].map(Arg::F32);
    let args =
        [ranges(call, grad, rates.stored, 0), lr, scale, by, squares].into_iter().chain(rule).collect();
    let kernel = format!("adafactor_{}", weights_name(rates.stored));
    to.launch(kernel, grad.count().div_ceil(UPDATED), 256, args);
    Ok(())
}

/// How means of squares move on.
struct Means<'a> {
    grad: &'a Operand,
    step: Arg,
    scale: Arg,
    rates: Adafactor,
}

impl Means<'_> {
    fn rows(&self, to: &mut Lowering, matrices: Matrices, means: &Operand) {
        let mark = to.mark();
        let sums = to.take(4 * means.count() as u64);
        let ends = [i64(matrices.columns), Arg::F32(self.rates.epsilon)];
        let begin = [self.grad.pointer(), self.grad.kind(), self.scale.clone(), Arg::Pointer(sums)];
        to.launch("squares_of_rows", means.count(), 256, begin.into_iter().chain(ends).collect());
        self.move_on(to, sums, matrices.columns, means);
        to.release(mark);
    }

    fn columns(
        &self,
        to: &mut Lowering,
        call: &Call,
        matrices: Matrices,
        means: &Operand,
    ) -> Result<(), ExecError> {
        let Matrices { count, rows, columns, .. } = matrices;
        let mark = to.mark();
        let (pieces, chunk) = chunks(rows);
        let partial = to.take(4 * (count * pieces * columns) as u64);
        let begin = [self.grad.pointer(), self.scale.clone(), Arg::Pointer(partial)];
        let ends = [i64(rows), i64(columns), i64(chunk), Arg::F32(self.rates.epsilon)];
        let dtype = self.grad.ty.dtype;
        let grid = [(count * column_tiles(columns, dtype)) as u32, pieces as u32, 1];
        let kernel = format!("squares_of_columns_{}", suffix(call, dtype)?);
        to.launch_grid(kernel, grid, [32, 8], 0, begin.into_iter().chain(ends).collect());
        let sums = to.value(means.shape(), DType::F32);
        finish(to, partial, [count, pieces, columns], Total::of(&sums));
        self.move_on(to, sums.place, rows, means);
        to.release(mark);
        Ok(())
    }

    fn move_on(&self, to: &mut Lowering, sums: Place, terms: usize, means: &Operand) {
        let args = vec![
            Arg::Pointer(sums),
            means.pointer(),
            self.step.clone(),
            self.scale.clone(),
            Arg::F32(self.rates.decay_rate),
            i64(terms),
            i64(means.count()),
        ];
        to.launch("move_means", blocks(means.count(), 1), 256, args);
    }
}

/// The struct `Factors` of `matrices.cu`.
fn factors(to: &mut Lowering, matrices: Matrices, statistics: &[Operand]) -> Arg {
    let Matrices { count, rows, columns, factored } = matrices;
    let extents = [i64(rows), i64(columns)];
    let pointers = if factored {
        let centres = Arg::Pointer(to.take(4 * count as u64));
        let args = vec![statistics[0].pointer(), centres.clone(), i64(rows)];
        to.launch("centres_of_rows", count, 256, args);
        [statistics[0].pointer(), statistics[1].pointer(), centres]
    } else {
        [Arg::Null, statistics[0].pointer(), Arg::Null]
    };
    Arg::Struct(pointers.into_iter().chain(extents).collect())
}

pub(super) fn muon(to: &mut Lowering, call: &Call, rates: Muon) -> Result<(), ExecError> {
    let (grad, lr, scale) = (&call.inputs[0], call.inputs[1].pointer(), call.inputs[2].pointer());
    let (shape, dtype) = (grad.shape(), grad.ty.dtype);
    let steps = to.value(shape, dtype);
    let rest = (1.0 - f64::from(rates.momentum)) as f32;
    let rule = [Arg::F32(rates.momentum), Arg::F32(rest), Arg::I32(i32::from(rates.nesterov))];
    let args =
        vec![ranges(call, grad, rates.stored, 1), scale.clone(), Arg::Struct(rule.into()), steps.pointer()];
    let kernel = format!("muon_direction_{}_{}", moment_name(call, rates)?, suffix(call, dtype)?);
    to.launch(kernel, grad.count().div_ceil(UPDATED), 256, args);
    let Matrices { count, rows, columns, .. } = Matrices::of(shape);
    let whole = Matrix { place: steps.place, dtype, rows: count * rows, columns };
    for matrix in 0..count {
        orthogonalise(to, call, whole.rows_from(matrix * rows, rows))?;
    }
    let numbers = [Muon::step_size(shape), rates.weight_decay].map(Arg::F32);
    let begin = [ranges(call, grad, rates.stored, 1), lr, scale, steps.pointer(), kind(dtype)];
    let kernel = format!("muon_{}", weights_name(rates.stored));
    to.launch(kernel, grad.count().div_ceil(UPDATED), 256, begin.into_iter().chain(numbers).collect());
    Ok(())
}

fn moment_name(call: &Call, rates: Muon) -> Result<&'static str, ExecError> {
    match rates.stored.moments {
        Moments::F32 => Ok("f32"),
        Moments::Bf16 => Ok("bf16"),
        Moments::Blocks => Err(unsupported(call, "has no form with moments of 8 bits")),
    }
}

/// Newton and Schulz's iteration of fifth order, in place.
fn orthogonalise(to: &mut Lowering, call: &Call, x: Matrix) -> Result<(), ExecError> {
    let (mark, suffix, side) = (to.mark(), suffix(call, x.dtype)?, x.rows.min(x.columns));
    let scratch = |to: &mut Lowering, rows: usize, columns: usize| Matrix {
        place: to.take((rows * columns * x.dtype.bytes()) as u64),
        rows,
        columns,
        ..x
    };
    let (y, a, b) = (scratch(to, x.rows, x.columns), scratch(to, side, side), scratch(to, side, side));
    normalise(to, x, y, suffix);
    let (mut from, mut into) = (y, x);
    for _ in 0..Muon::ROUNDS {
        // If a matrix has more rows than columns, its transpose is iterated.
        let tall = x.rows > x.columns;
        product(to, call, [(from, tall), (from, !tall)], a, Plus::Nothing)?;
        product(to, call, [(a, false), (a, false)], b, Plus::Nothing)?;
        let polynomial = Arg::Struct(Muon::COEFFICIENTS.map(Arg::F32).into());
        let args = vec![Arg::Pointer(a.place), Arg::Pointer(b.place), polynomial, i64(side)];
        to.launch(format!("muon_polynomial_{suffix}"), (side * side).div_ceil(UPDATED), 256, args);
        let factors = if tall { [(from, false), (b, false)] } else { [(b, false), (from, false)] };
        product(to, call, factors, into, Plus::Nothing)?;
        std::mem::swap(&mut from, &mut into);
    }
    const { assert!(Muon::ROUNDS % 2 == 1, "the matrix ends where it was read from") };
    to.release(mark);
    Ok(())
}

/// `y ← x` divided by its norm.
fn normalise(to: &mut Lowering, x: Matrix, y: Matrix, suffix: &str) {
    let (mark, count) = (to.mark(), x.rows * x.columns);
    let squares = Arg::Pointer(squares_of(to, &[(x.place, x.dtype, count)]));
    let args =
        vec![Arg::Pointer(x.place), Arg::Pointer(y.place), squares, Arg::F32(Muon::LEAST_NORM), i64(count)];
    to.launch(format!("muon_normalise_{suffix}"), count.div_ceil(UPDATED), 256, args);
    to.release(mark);
}
