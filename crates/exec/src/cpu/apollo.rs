//! APOLLO: a gradient is scaled as `AdamW` would scale it, by moments of its random projection.
//!
//! ```text
//! scratch   factors of all channels | of one matrix: ‖R‖² and ‖g‖² of each channel, P, R | the product's own
//! ```
//!
//! A channel is a line of the longer side: a row, or a column of a matrix with more columns than rows. The projection is
//! drawn again in every step and never stored; the gradient is read where it lies. One thread computes a channel whole.
#![allow(unsafe_code, reason = "gradients and moments of any element type are reached by address")]

use plimsoll_graph::op::{Apollo, ApolloScaling};
use plimsoll_graph::{Op, Shape, Type};
use plimsoll_plan::Workspace;

use super::cast::{load, store};
use super::lanes::PIECE;
use super::matmul::{self, Extents, Start};
use super::pack::{Numbers, View};
use super::simd::widest;
use super::stored::update_from;
use super::updates::Descent;
use super::{Call, CpuOperand, split};
use crate::ExecError;
use crate::random::Stream;

/// Numbers that are widened at a time, and columns of a stripe.
const CHUNK: usize = 256;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::Apollo(rates) => apollo(call, *rates),
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::Apollo(rates) = op else { return None };
    let sides = Sides::of(inputs[0].shape);
    let product = matmul::workspace(sides.projection(rates.rank));
    let numbers = (sides.matrices + 2) * sides.longer() + sides.shorter() * rates.rank;
    let fixed = 4 * (numbers + sides.longer() * rates.rank) as u64;
    Some(Workspace { least: fixed + product.least, best: fixed + product.best })
}

/// Extents of a parameter as matrices.
#[derive(Clone, Copy)]
struct Sides {
    matrices: usize,
    rows: usize,
    columns: usize,
}

impl Sides {
    fn of(shape: Shape) -> Sides {
        let [rows, columns] = [shape[shape.len() - 2], shape.columns()];
        Sides { matrices: shape.elements() / (rows * columns).max(1), rows, columns }
    }

    /// Whether channels are rows.
    fn tall(self) -> bool {
        self.rows >= self.columns
    }

    fn longer(self) -> usize {
        self.rows.max(self.columns)
    }

    fn shorter(self) -> usize {
        self.rows.min(self.columns)
    }

    fn projection(self, rank: usize) -> Extents {
        Extents { m: self.longer(), n: rank, k: self.shorter() }
    }

    /// The channels of a matrix that begins where `gradient` does.
    fn channels(self, gradient: Numbers<'_>) -> View<'_> {
        let Sides { rows, columns, .. } = self;
        if self.tall() {
            View::of(gradient, rows, columns, columns, 1)
        } else {
            View::of(gradient, columns, rows, 1, columns)
        }
    }
}

fn apollo(call: &Call, rates: Apollo) {
    let [lr, step, scale] = [1, 2, 3].map(|index| call.input(index)[0]);
    if !scale.is_finite() {
        return;
    }
    let shape = call.outputs[0].ty.shape;
    let (sides, gradient) = (Sides::of(shape), Gradient { grad: call.inputs[0], scale });
    let (factors, rest) = call.scratch().split_at_mut(sides.matrices * sides.longer());
    let first = rates.stored.types(shape, 0).len();
    let moments = Moments::new(rates, [call.outputs[first], call.outputs[first + 1]]);
    for (matrix, factors) in factors.chunks_mut(sides.longer()).enumerate() {
        let stream = Stream::of_projection(call.integers(4), rates.stream, matrix, rates.projection(step));
        let numbers = call.numbers(0).from(matrix * sides.rows * sides.columns);
        let (of_low, rest) = rest.split_at_mut(sides.longer());
        let (of_gradient, rest) = rest.split_at_mut(sides.longer());
        let low = project(sides, rates.rank, numbers, &stream, rest);
        moments.step(matrix, [low, factors, of_low], scale);
        scale_factors(rates.scaling, factors, of_low);
        gradient.squares(sides, matrix, of_gradient);
        limit(factors, of_gradient, &mut call.output(first + 2)[matrix]);
    }
    let (factors, whole) = (&*factors, step_size(rates, lr, step));
    let descent = Descent::along(lr, rates.weight_decay);
    update_from::<0>(call, rates.stored, &descent, |at, numbers| {
        gradient.scaled(sides, whole, factors, at, numbers);
    });
}

/// The factor of every scaled gradient, per unit of learning rate. The decay that follows a step here comes before the step
/// in [`Descent`], so the step takes its share of it.
fn step_size(rates: Apollo, lr: f32, step: f32) -> f32 {
    let Apollo { beta1, beta2, scale, weight_decay, .. } = rates;
    let rest = |beta: f32| 1.0 - f64::from(beta).powf(step.into());
    let size = f64::from(scale).sqrt() * rest(beta2).sqrt() / rest(beta1);
    (size * (1.0 - f64::from(lr) * f64::from(weight_decay))) as f32
}

/// The projection of a matrix: `rank` numbers for each channel.
fn project<'a>(
    sides: Sides,
    rank: usize,
    gradient: Numbers,
    stream: &Stream,
    scratch: &'a mut [f32],
) -> &'a mut [f32] {
    let (p, rest) = scratch.split_at_mut(rank * sides.shorter()); // (rank, shorter)
    let (low, room) = rest.split_at_mut(sides.longer() * rank);
    let deviation = (1.0 / (rank as f64).sqrt()) as f32;
    split::rows(p.len(), PIECE, [&mut *p], |range, [part]| draw(stream, range.start, deviation, part));
    let lines = View::new(p, rank, sides.shorter(), sides.shorter(), 1);
    matmul::product(sides.projection(rank), sides.channels(gradient), lines, Start::Zero, low, room);
    low
}

widest! {
    /// Elements `first …` of a projection.
    fn draw(stream: &Stream, first: usize, deviation: f32, numbers: &mut [f32]) {
        stream.normals(first, numbers);
        for number in numbers {
            *number *= deviation;
        }
    }
}

/// The moments of a projection and their rates.
struct Moments {
    rank: usize,
    /// `β` and `1 − β` of each moment.
    first: [f32; 2],
    second: [f32; 2],
    epsilon: f32,
    ranges: [CpuOperand; 2],
}

impl Moments {
    fn new(rates: Apollo, ranges: [CpuOperand; 2]) -> Moments {
        let both = |beta: f32| [beta, (1.0 - f64::from(beta)) as f32];
        let (first, second) = (both(rates.beta1), both(rates.beta2));
        Moments { rank: rates.rank, first, second, epsilon: rates.epsilon, ranges }
    }

    /// Moves the moments of one matrix on; writes the squared norm of each channel as `AdamW` would step it, and of its
    /// projection.
    fn step(&self, matrix: usize, [low, stepped, of_low]: [&mut [f32]; 3], scale: f32) {
        let channels = stepped.len();
        split::rows(channels, 1, [low, stepped, of_low], |range, [low, stepped, of_low]| {
            [stepped[0], of_low[0]] = self.channel(matrix * channels + range.start, low, scale);
        });
    }

    fn channel(&self, channel: usize, low: &[f32], scale: f32) -> [f32; 2] {
        let (mut m, mut v, mut totals) = ([0.0; CHUNK], [0.0; CHUNK], [0.0f64; 2]);
        for (at, low) in (channel * self.rank..).step_by(CHUNK).zip(low.chunks(CHUNK)) {
            let (m, v) = (&mut m[..low.len()], &mut v[..low.len()]);
            // SAFETY: the chunk lies inside both moments, which have `rank` numbers for each channel; channels do not
            // overlap, and nobody else uses the moments.
            unsafe {
                load(&self.ranges[0], at, m);
                load(&self.ranges[1], at, v);
            }
            for ((m, v), low) in m.iter_mut().zip(&mut *v).zip(low) {
                let r = scale * low;
                *m = self.first[0] * *m + self.first[1] * r;
                *v = self.second[0] * *v + self.second[1] * (r * r);
                let stepped = *m / (v.sqrt() + self.epsilon);
                totals[0] += f64::from(stepped) * f64::from(stepped);
                totals[1] += f64::from(r) * f64::from(r);
            }
            // SAFETY: as above.
            unsafe {
                store(&self.ranges[0], at, m);
                store(&self.ranges[1], at, v);
            }
        }
        totals.map(|total| total as f32)
    }
}

/// Turns squared norms of channels into the factors of their gradients.
fn scale_factors(scaling: ApolloScaling, stepped: &mut [f32], of_low: &[f32]) {
    let factor =
        |stepped: f64, low: f64| (stepped.sqrt() / (low.sqrt() + f64::from(Apollo::LEAST_NORM))) as f32;
    match scaling {
        ApolloScaling::Channel => {
            for (stepped, low) in stepped.iter_mut().zip(of_low) {
                *stepped = factor(f64::from(*stepped), f64::from(*low));
            }
        }
        ApolloScaling::Tensor => {
            let total = |squares: &[f32]| squares.iter().map(|&x| f64::from(x)).sum::<f64>();
            let whole = factor(total(stepped), total(of_low));
            stepped.fill(whole);
        }
    }
}

/// Lowers the factors of a matrix where its scaled gradient has grown by more than it may; `norm` becomes the new one.
fn limit(factors: &mut [f32], squares: &[f32], norm: &mut f32) {
    let of_channel = |(factor, square): (&f32, &f32)| f64::from(*factor).powi(2) * f64::from(*square);
    let now = factors.iter().zip(squares).map(of_channel).sum::<f64>().sqrt();
    let growth = f64::from(Apollo::GROWTH);
    let ratio = now / (f64::from(*norm) + f64::from(Apollo::LEAST_NORM));
    // The growth of the norm is not limited in the first step, which has no norm before it.
    let limiter = if *norm > 0.0 { ratio.max(growth) / growth } else { 1.0 };
    *norm = (now / limiter) as f32;
    for factor in factors.iter_mut() {
        *factor = (f64::from(*factor) / limiter) as f32;
    }
}

/// A gradient, and the factor that clips it.
#[derive(Clone, Copy)]
struct Gradient {
    grad: CpuOperand,
    scale: f32,
}

impl Gradient {
    /// Calls `each` with the position and the clipped numbers of each part of elements `from … to`.
    fn parts(&self, from: usize, to: usize, mut each: impl FnMut(usize, &mut [f32])) {
        let mut numbers = [0.0; CHUNK];
        for at in (from..to).step_by(CHUNK) {
            let numbers = &mut numbers[..CHUNK.min(to - at)];
            // SAFETY: the part lies inside the gradient, which nobody writes during its update.
            unsafe { load(&self.grad, at, numbers) };
            for number in numbers.iter_mut() {
                *number *= self.scale;
            }
            each(at, numbers);
        }
    }

    /// The squared norm of each channel of a matrix.
    fn squares(&self, sides: Sides, matrix: usize, squares: &mut [f32]) {
        let Sides { rows, columns, .. } = sides;
        let first = matrix * rows * columns;
        if sides.tall() {
            split::rows(rows, 1, [squares], |range, [square]| {
                let (from, mut total) = (first + range.start * columns, 0.0f64);
                self.parts(from, from + columns, |_, numbers| {
                    total += numbers.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
                });
                square[0] = total as f32;
            });
        } else {
            split::rows(columns, CHUNK, [squares], |range, [squares]| {
                let mut totals = [0.0f64; CHUNK];
                for row in 0..rows {
                    let from = first + row * columns;
                    self.parts(from + range.start, from + range.end, |_, numbers| {
                        for (total, &g) in totals.iter_mut().zip(&*numbers) {
                            *total += f64::from(g) * f64::from(g);
                        }
                    });
                }
                squares.iter_mut().zip(totals).for_each(|(square, total)| *square = total as f32);
            });
        }
    }

    /// Elements `first …` of the gradient, each times `whole` and the factor of its channel.
    fn scaled(&self, sides: Sides, whole: f32, factors: &[f32], first: usize, to: &mut [f32]) {
        let Sides { rows, columns, .. } = sides;
        self.parts(first, first + to.len(), |at, numbers| {
            let to = &mut to[at - first..];
            for ((index, number), to) in (at..).zip(numbers).zip(to) {
                let row = index / columns;
                let channel = if sides.tall() { row } else { row / rows * columns + index % columns };
                *to = whole * factors[channel] * *number;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::op::Stored;

    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    fn rates(scaling: ApolloScaling) -> Apollo {
        Apollo {
            rank: 3,
            gap: 2,
            scale: 4.0,
            scaling,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            stream: 7,
            stored: Stored::default(),
        }
    }

    /// The parameter and its state after one step.
    fn step(rates: Apollo, [rows, columns]: [usize; 2], number: f32, norm: f32) -> Vec<Vec<f32>> {
        let (count, low) = (rows * columns, rows.max(columns) * rates.rank);
        let trial = Trial::new(Op::Apollo(rates)).f32([rows, columns], &numbers(count, 1));
        let trial = trial.f32([], &[0.01]).f32([], &[number]).f32([], &[0.5]).i32([4], &[5, 6, 7, 8]);
        let trial = trial.onto(0, &vec![0.0; count]).onto(1, &vec![0.0; low]).onto(2, &vec![0.0; low]);
        trial.onto(3, &[norm]).run_everywhere()
    }

    #[test]
    fn a_step_is_the_gradient_times_a_factor_of_each_channel_on_any_number_of_threads_and_in_any_scratch() {
        for [rows, columns] in [[5, 600], [600, 5]] {
            let stepped = &step(rates(ApolloScaling::Channel), [rows, columns], 1.0, 0.0)[0];
            let gradient = numbers(rows * columns, 1);
            let factor = |row: usize, column: usize| {
                f64::from(stepped[row * columns + column]) / f64::from(gradient[row * columns + column])
            };
            let long = rows.max(columns);
            let of = |channel: usize, other: usize| {
                if rows > columns { factor(channel, other) } else { factor(other, channel) }
            };
            for channel in 0..long {
                for other in 1..5 {
                    assert!((of(channel, 0) / of(channel, other) - 1.0).abs() < 1e-5, "{channel} {other}");
                }
            }
            assert!((of(0, 0) / of(1, 0) - 1.0).abs() > 1e-4, "channels differ");
        }
    }

    #[test]
    fn a_scaled_gradient_grows_by_a_hundredth_at_most_and_projections_change_after_the_gap() {
        let of = |number, norm| step(rates(ApolloScaling::Tensor), [6, 9], number, norm);
        let free = of(1.0, 0.0)[3][0];
        assert!((of(1.0, free / 2.0)[3][0] / (free / 2.0) - 1.01).abs() < 1e-5);
        assert!((of(1.0, 2.0 * free)[3][0] - free).abs() < 1e-6 * free, "a smaller norm is no growth");
        let moments = |number| of(number, 0.0)[1].clone();
        assert_eq!(moments(1.0), moments(2.0));
        assert_ne!(moments(2.0), moments(3.0));
    }
}
