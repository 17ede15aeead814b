//! Adafactor: second moments of a matrix as means of its rows and columns.
//!
//! ```text
//! r ← mean of g² + ε over each row            one thread computes a row's mean whole
//! c ← mean of g² + ε over each column         one thread walks down a stripe of columns
//! Σ u² of each row, u = g·√(mean(r)/(r·c))    into scratch, added in the order of rows
//! p ← p − lr·(u/max(1, rms) + decay·p)        u once more, block by block
//! ```
//!
//! `u` is computed twice and never stored. A parameter of more than two axes is several matrices. The gradient may be
//! of any float type.
#![allow(unsafe_code, reason = "gradients of any element type are reached by address")]

use plimsoll_graph::op::Adafactor;
use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use super::cast::load;
use super::stored::update_from;
use super::updates::Descent;
use super::{Call, CpuOperand, split};
use crate::ExecError;

/// Numbers of a gradient that are widened at a time, and columns of a stripe.
const CHUNK: usize = 256;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::Adafactor(rates) => adafactor(call, *rates),
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs: a sum for each row, and the mean of `r` of each matrix.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::Adafactor(_) = op else { return None };
    let Matrices { count, rows, .. } = Matrices::of(inputs[0]);
    Some(Workspace::exactly(4 * (count * rows + count) as u64))
}

/// A parameter as matrices; a vector is one row.
#[derive(Clone, Copy)]
struct Matrices {
    count: usize,
    rows: usize,
    columns: usize,
    /// Whether second moments are kept as means of rows and columns.
    factored: bool,
}

impl Matrices {
    fn of(ty: Type) -> Matrices {
        let (shape, columns) = (ty.shape, ty.shape.columns());
        let factored = shape.len() >= 2;
        let rows = if factored { shape[shape.len() - 2] } else { 1 };
        Matrices { count: shape.elements() / (rows * columns).max(1), rows, columns, factored }
    }
}

/// The gradient after clipping, and the statistics that it is divided by.
#[derive(Clone, Copy)]
struct Gradient {
    grad: CpuOperand,
    scale: f32,
    matrices: Matrices,
}

impl Gradient {
    /// Calls `each` with the position in the row and the numbers of each part of columns `from … to` of `row`.
    fn parts(&self, row: usize, from: usize, to: usize, mut each: impl FnMut(usize, &mut [f32])) {
        let mut numbers = [0.0; CHUNK];
        for at in (from..to).step_by(CHUNK) {
            let numbers = &mut numbers[..CHUNK.min(to - at)];
            // SAFETY: the part lies inside the gradient, which nobody writes during its update.
            unsafe { load(&self.grad, row * self.matrices.columns + at, numbers) };
            for number in &mut *numbers {
                *number *= self.scale;
            }
            each(at, numbers);
        }
    }
}

fn adafactor(call: &Call, rates: Adafactor) {
    let [lr, step, scale] = [1, 2, 3].map(|index| call.input(index)[0]);
    if !scale.is_finite() {
        return;
    }
    let beta = (1.0 - f64::from(step).powf(f64::from(rates.decay_rate))) as f32;
    let gradient = Gradient { grad: call.inputs[0], scale, matrices: Matrices::of(call.inputs[0].ty) };
    let statistics = rates.stored.types(call.outputs[0].ty.shape, 0).len();
    let means = Means { beta, rest: 1.0 - beta, epsilon: rates.epsilon };
    if gradient.matrices.factored {
        means.rows(&gradient, call.output(statistics));
        means.columns(&gradient, call.output(statistics + 1));
    } else {
        means.squares(&gradient, call.output(statistics));
    }
    let Matrices { count, rows, .. } = gradient.matrices;
    let (sums, centres) = call.scratch()[..count * rows + count].split_at_mut(count * rows);
    let held = |index: usize| &*call.output(index);
    let divisors = if gradient.matrices.factored {
        Divisors::factored(held(statistics), held(statistics + 1), centres)
    } else {
        Divisors { rows: &[], columns: held(statistics), centres: &[] }
    };
    let steps = Steps { gradient, divisors };
    let root = steps.root_mean_square(sums);
    let factor = 1.0 / (root / f64::from(rates.clip_threshold)).max(1.0);
    let descent = Descent::along(lr, rates.weight_decay);
    update_from::<0>(call, rates.stored, &descent, |at, numbers| steps.write(at, factor as f32, numbers));
}

/// How means of squares move on.
struct Means {
    beta: f32,
    rest: f32,
    epsilon: f32,
}

impl Means {
    fn rows(&self, gradient: &Gradient, means: &mut [f32]) {
        let columns = gradient.matrices.columns;
        split::rows(means.len(), 1, [means], |range, [mean]| {
            let mut total = 0.0f64;
            gradient.parts(range.start, 0, columns, |_, numbers| {
                total += numbers.iter().map(|g| f64::from(g * g + self.epsilon)).sum::<f64>();
            });
            mean[0] = self.beta * mean[0] + self.rest * (total / columns as f64) as f32;
        });
    }

    fn columns(&self, gradient: &Gradient, means: &mut [f32]) {
        let Matrices { rows, columns, .. } = gradient.matrices;
        for (matrix, means) in means.chunks_mut(columns).enumerate() {
            split::rows(columns, CHUNK, [means], |range, [means]| {
                let mut totals = [0.0f64; CHUNK];
                for row in matrix * rows..(matrix + 1) * rows {
                    gradient.parts(row, range.start, range.end, |_, numbers| {
                        for (total, g) in totals.iter_mut().zip(numbers) {
                            *total += f64::from(*g * *g + self.epsilon);
                        }
                    });
                }
                for (mean, total) in means.iter_mut().zip(totals) {
                    *mean = self.beta * *mean + self.rest * (total / rows as f64) as f32;
                }
            });
        }
    }

    fn squares(&self, gradient: &Gradient, means: &mut [f32]) {
        split::rows(means.len(), CHUNK, [means], |range, [means]| {
            gradient.parts(0, range.start, range.end, |at, numbers| {
                for (mean, g) in means[at - range.start..].iter_mut().zip(numbers) {
                    *mean = self.beta * *mean + self.rest * (*g * *g + self.epsilon);
                }
            });
        });
    }
}

/// Roots by which a gradient is divided: of its row over the mean of all rows, and of its column.
#[derive(Clone, Copy)]
struct Divisors<'a> {
    rows: &'a [f32],
    columns: &'a [f32],
    /// The mean of `rows` of each matrix.
    centres: &'a [f32],
}

impl<'a> Divisors<'a> {
    fn factored(rows: &'a [f32], columns: &'a [f32], centres: &'a mut [f32]) -> Divisors<'a> {
        let each = rows.len() / centres.len().max(1);
        for (centre, rows) in centres.iter_mut().zip(rows.chunks(each.max(1))) {
            *centre = (rows.iter().map(|&r| f64::from(r)).sum::<f64>() / each as f64) as f32;
        }
        Divisors { rows, columns, centres }
    }
}

/// The direction of a step, made anew for each reader.
#[derive(Clone, Copy)]
struct Steps<'a> {
    gradient: Gradient,
    divisors: Divisors<'a>,
}

impl Steps<'_> {
    /// Replaces columns `at …` of a row of the gradient by those of the direction.
    fn divide(&self, row: usize, at: usize, numbers: &mut [f32]) {
        let Matrices { rows, columns, factored, .. } = self.gradient.matrices;
        let Divisors { rows: of_rows, columns: of_columns, centres } = self.divisors;
        let matrix = row / rows;
        let of_row = if factored { 1.0 / (of_rows[row] / centres[matrix]).sqrt() } else { 1.0 };
        for (number, column) in numbers.iter_mut().zip(&of_columns[matrix * columns + at..]) {
            *number *= of_row * (1.0 / column.sqrt());
        }
    }

    fn root_mean_square(&self, sums: &mut [f32]) -> f64 {
        let Matrices { columns, .. } = self.gradient.matrices;
        let elements = sums.len() * columns;
        split::rows(sums.len(), 1, [&mut *sums], |range, [sum]| {
            let mut total = 0.0f64;
            self.gradient.parts(range.start, 0, columns, |at, numbers| {
                self.divide(range.start, at, numbers);
                total += numbers.iter().map(|&u| f64::from(u) * f64::from(u)).sum::<f64>();
            });
            sum[0] = total as f32;
        });
        (sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() / elements.max(1) as f64).sqrt()
    }

    /// Elements `first …` of the direction times `factor`; they may lie in several rows.
    fn write(&self, first: usize, factor: f32, numbers: &mut [f32]) {
        let columns = self.gradient.matrices.columns;
        let mut done = 0;
        while done < numbers.len() {
            let (row, column) = ((first + done) / columns, (first + done) % columns);
            let count = (columns - column).min(numbers.len() - done);
            let part = &mut numbers[done..done + count];
            self.gradient.parts(row, column, column + count, |at, u| {
                self.divide(row, at, u);
                for (to, u) in part[at - column..].iter_mut().zip(u) {
                    *to = factor * *u;
                }
            });
            done += count;
        }
    }
}
