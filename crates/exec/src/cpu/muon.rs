//! Muon: a matrix is stepped along its momentum, made nearly orthogonal.
//!
//! ```text
//! scratch   X: the whole parameter | Y: one matrix | A, B: squares of its shorter side | a product's own
//! ```
//!
//! Every round of the iteration takes `X` (or `Y`) to the other one. The shorter side is multiplied: of a matrix with more
//! rows than columns, `Xᵀ` is iterated, which products see as other strides. Products and sums are f32, where the original
//! works in bf16.
#![allow(unsafe_code, reason = "gradients and moments of any element type are reached by address")]

use plimsoll_graph::op::Muon;
use plimsoll_graph::{Op, Shape, Type};
use plimsoll_plan::Workspace;

use super::cast::{load, store};
use super::lanes::PIECE;
use super::matmul::{self, Extents, Start};
use super::pack::View;
use super::stored::update_from;
use super::updates::Descent;
use super::{Call, CpuOperand, reduce, split};
use crate::ExecError;

/// Numbers that are widened at a time.
const CHUNK: usize = 256;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::Muon(rates) => muon(call, *rates),
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::Muon(_) = op else { return None };
    let sides = Sides::of(inputs[0].shape);
    let products = sides.products().map(matmul::workspace);
    let most = |bytes: fn(&Workspace) -> u64| products.iter().map(bytes).max().unwrap_or(0);
    let fixed = 4 * (inputs[0].shape.elements() + sides.numbers()) as u64;
    Some(Workspace {
        least: fixed + most(|product| product.least),
        best: fixed + most(|product| product.best),
    })
}

/// Extents of one matrix, as it is stored.
#[derive(Clone, Copy)]
struct Sides {
    rows: usize,
    columns: usize,
}

impl Sides {
    fn of(shape: Shape) -> Sides {
        Sides { rows: shape[shape.len() - 2], columns: shape.columns() }
    }

    fn shorter(self) -> usize {
        self.rows.min(self.columns)
    }

    /// Numbers of `Y`, `A` and `B`.
    fn numbers(self) -> usize {
        self.rows * self.columns + 2 * self.shorter() * self.shorter()
    }

    /// `X·Xᵀ`, `A·A` and the product that a round ends with.
    fn products(self) -> [Extents; 3] {
        let Sides { rows, columns } = self;
        let (short, long) = (self.shorter(), rows.max(columns));
        let square = |k| Extents { m: short, n: short, k };
        [square(long), square(short), Extents { m: rows, n: columns, k: short }]
    }

    /// The lines of the shorter side.
    fn lines(self, x: &[f32]) -> View<'_> {
        let Sides { rows, columns } = self;
        if rows <= columns {
            View::new(x, rows, columns, columns, 1)
        } else {
            View::new(x, columns, rows, 1, columns)
        }
    }
}

fn muon(call: &Call, rates: Muon) {
    let [lr, scale] = [1, 2].map(|index| call.input(index)[0]);
    if !scale.is_finite() {
        return;
    }
    let shape = call.outputs[0].ty.shape;
    let sides = Sides::of(shape);
    let (x, rest) = call.scratch().split_at_mut(shape.elements());
    let momentum = Momentum {
        grad: call.inputs[0],
        moment: call.outputs[rates.stored.types(shape, 0).len()],
        rate: rates.momentum,
        rest: (1.0 - f64::from(rates.momentum)) as f32,
        scale,
        nesterov: rates.nesterov,
    };
    split::rows(x.len(), PIECE, [&mut *x], |range, [x]| momentum.step(range.start, x));
    for matrix in x.chunks_mut((sides.rows * sides.columns).max(1)) {
        orthogonalise(sides, matrix, rest);
    }
    let (x, factor) = (&*x, Muon::step_size(shape));
    let descent = Descent::along(lr, rates.weight_decay);
    update_from::<0>(call, rates.stored, &descent, |at, numbers| {
        numbers.iter_mut().zip(&x[at..]).for_each(|(number, x)| *number = factor * x);
    });
}

/// The running mean of gradients, and the direction that follows from it.
struct Momentum {
    grad: CpuOperand,
    moment: CpuOperand,
    rate: f32,
    rest: f32,
    scale: f32,
    nesterov: bool,
}

impl Momentum {
    /// Moves elements `first …` of the mean on and writes the direction.
    fn step(&self, first: usize, directions: &mut [f32]) {
        let (mut grad, mut moment) = ([0.0; CHUNK], [0.0; CHUNK]);
        for (at, directions) in (first..).step_by(CHUNK).zip(directions.chunks_mut(CHUNK)) {
            let (grad, moment) = (&mut grad[..directions.len()], &mut moment[..directions.len()]);
            // SAFETY: the chunk lies inside the gradient and the moment, whose shapes the verifier has found equal to the
            // direction's; pieces do not overlap, and nobody else reads the moment.
            unsafe {
                load(&self.grad, at, grad);
                load(&self.moment, at, moment);
            }
            for ((direction, m), g) in directions.iter_mut().zip(&mut *moment).zip(grad) {
                let g = self.rest * (self.scale * *g);
                *m = self.rate * *m + g;
                *direction = if self.nesterov { self.rate * *m + g } else { *m };
            }
            // SAFETY: as above.
            unsafe { store(&self.moment, at, moment) };
        }
    }
}

/// Newton and Schulz's iteration of fifth order, in place; `scratch` begins with `Y`, `A` and `B`.
fn orthogonalise(sides: Sides, x: &mut [f32], scratch: &mut [f32]) {
    let (y, rest) = scratch.split_at_mut(x.len());
    let square = sides.shorter() * sides.shorter();
    let (a, rest) = rest.split_at_mut(square);
    let (b, room) = rest.split_at_mut(square);
    normalise(x);
    let (mut from, mut to) = (&mut *x, y);
    for _ in 0..Muon::ROUNDS {
        round(sides, from, to, [&mut *a, &mut *b], room);
        std::mem::swap(&mut from, &mut to);
    }
    // An odd number of rounds ends in the scratch.
    if Muon::ROUNDS % 2 == 1 {
        to.copy_from_slice(from);
    }
}

/// Divides a matrix by its Frobenius norm.
fn normalise(x: &mut [f32]) {
    let squares: f64 = x.chunks(PIECE).map(|part| f64::from(reduce::dot(part, part))).sum();
    let inverse = (1.0 / squares.sqrt().max(f64::from(Muon::LEAST_NORM))) as f32;
    for x in x {
        *x *= inverse;
    }
}

/// `to ← a·X + (b·A + c·A²)·X` with `A = X·Xᵀ`.
fn round(sides: Sides, x: &[f32], to: &mut [f32], [a, b]: [&mut [f32]; 2], room: &mut [f32]) {
    let [first, second, third] = Muon::COEFFICIENTS;
    let [of_x, of_a, of_both] = sides.products();
    let short = sides.shorter();
    matmul::product(of_x, sides.lines(x), sides.lines(x), Start::Zero, a, room);
    let square = |data| View::new(data, short, short, short, 1);
    // A is symmetric: its columns are its rows.
    matmul::product(of_a, square(a), square(a), Start::Zero, b, room);
    b.iter_mut().zip(&*a).for_each(|(b, a)| *b = second * a + third * *b);
    to.iter_mut().zip(x).for_each(|(to, x)| *to = first * x);
    let Sides { rows, columns } = sides;
    if rows <= columns {
        let by_column = View::new(x, columns, rows, 1, columns);
        matmul::product(of_both, square(b), by_column, Start::Kept, to, room);
    } else {
        let by_row = View::new(x, rows, columns, columns, 1);
        matmul::product(of_both, by_row, square(b), Start::Kept, to, room);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::op::Stored;

    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    #[test]
    fn a_step_has_singular_values_near_one_on_any_number_of_threads_and_in_any_scratch() {
        for [rows, columns] in [[5, 40], [40, 5]] {
            let rates = Muon { momentum: 0.5, nesterov: true, weight_decay: 0.0, stored: Stored::default() };
            let count = rows * columns;
            let trial = Trial::new(Op::Muon(rates)).f32([rows, columns], &numbers(count, 1));
            let trial = trial.f32([], &[-1.0]).f32([], &[1.0]);
            let trial = trial.onto(0, &vec![0.0; count]).onto(1, &vec![0.0; count]);
            let stepped = &trial.run_everywhere()[0];
            let size = Muon::step_size([rows, columns].into());
            // The trace of X·Xᵀ is the sum of the squared singular values, which the iteration leaves in 0.7 … 1.2.
            let trace: f32 = stepped.iter().map(|x| (x / size).powi(2)).sum();
            assert!((5.0 * 0.5..5.0 * 1.45).contains(&trace), "{trace}");
        }
    }
}
