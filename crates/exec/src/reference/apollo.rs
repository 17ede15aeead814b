//! APOLLO, by definition: moments of a random projection say how far each channel of a gradient is scaled.

use plimsoll_graph::op::{Apollo, ApolloScaling};

use super::array::{Array, dot};
use super::{Tensor, stored};
use crate::init;
use crate::random::Stream;

/// One step of the parameter in `ranges`; `scalars` are `lr`, `step` and `scale`.
pub(super) fn apollo(
    rates: Apollo,
    grad: &Array,
    scalars: [f64; 3],
    rng: &[i32],
    ranges: &[Tensor],
) -> Vec<Array> {
    let [lr, step, scale] = scalars;
    if !scale.is_finite() {
        return ranges.iter().map(Array::of).collect();
    }
    let (kept, state) = ranges.split_at(rates.stored.types(grad.shape, 0).len());
    let mut state: Vec<Vec<f64>> = state.iter().map(Tensor::numbers).collect();
    let (rows, columns) = (grad.shape[grad.shape.len() - 2], grad.shape.columns());
    let mut direction = Vec::new();
    for (matrix, g) in grad.data.chunks(rows * columns).enumerate() {
        let stream = Stream::of_projection(rng, rates.stream, matrix, rates.projection(step as f32));
        let channels = channels(g, [rows, columns], scale);
        let low = project(&channels, rates.rank, &stream);
        let scaled = scaled(rates, &channels, &low, matrix, &mut state);
        direction.extend(in_order(&scaled, [rows, columns]));
    }
    let rest = |beta: f32| 1.0 - f64::from(beta).powf(step);
    let size = f64::from(rates.scale).sqrt() * rest(rates.beta2).sqrt() / rest(rates.beta1);
    let mut numbers = stored::read(rates.stored, kept);
    numbers.moments.clear();
    for (p, u) in numbers.parameter.iter_mut().zip(direction) {
        *p = (1.0 - lr * f64::from(rates.weight_decay)) * (*p - lr * size * u);
    }
    let mut written = stored::write(rates.stored, &numbers, rng, kept);
    let of_state = state.into_iter().zip(&ranges[kept.len()..]);
    written.extend(of_state.map(|(data, range)| Array { shape: range.ty.shape, data }));
    written
}

/// The lines of a matrix's longer side.
fn channels(g: &[f64], [rows, columns]: [usize; 2], scale: f64) -> Vec<Vec<f64>> {
    if rows >= columns {
        g.chunks(columns).map(|row| row.iter().map(|g| scale * g).collect()).collect()
    } else {
        let column = |column| (0..rows).map(move |row| scale * g[row * columns + column]);
        (0..columns).map(|at| column(at).collect()).collect()
    }
}

/// The elements of channels in the order of the matrix.
fn in_order(channels: &[Vec<f64>], [rows, columns]: [usize; 2]) -> Vec<f64> {
    let at = |row: usize, column: usize| {
        if rows >= columns { channels[row][column] } else { channels[column][row] }
    };
    (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| at(r, c)).collect()
}

/// The product of each channel with `rank` lines of normal numbers over `√rank`.
fn project(channels: &[Vec<f64>], rank: usize, stream: &Stream) -> Vec<Vec<f64>> {
    let depth = channels[0].len();
    let mut drawn = vec![0.0; rank * depth];
    init::normal(stream, (1.0 / (rank as f64).sqrt()) as f32, 0, &mut drawn);
    let drawn: Vec<f64> = drawn.into_iter().map(f64::from).collect();
    channels.iter().map(|channel| drawn.chunks(depth).map(|line| dot(channel, line)).collect()).collect()
}

/// The scaled gradient of one matrix; moves its part of `state`, both moments and the norm, on.
fn scaled(
    rates: Apollo,
    channels: &[Vec<f64>],
    low: &[Vec<f64>],
    matrix: usize,
    state: &mut [Vec<f64>],
) -> Vec<Vec<f64>> {
    let (beta1, beta2) = (f64::from(rates.beta1), f64::from(rates.beta2));
    let first = matrix * channels.len() * rates.rank;
    let mut stepped = Vec::new();
    for (r, at) in low.iter().flatten().zip(first..) {
        state[0][at] = beta1 * state[0][at] + (1.0 - beta1) * r;
        state[1][at] = beta2 * state[1][at] + (1.0 - beta2) * r * r;
        stepped.push(state[0][at] / (state[1][at].sqrt() + f64::from(rates.epsilon)));
    }
    let norm = |x: &[f64]| dot(x, x).sqrt();
    let factor = |stepped: &[f64], low: &[f64]| norm(stepped) / (norm(low) + f64::from(Apollo::LEAST_NORM));
    let factors: Vec<f64> = match rates.scaling {
        ApolloScaling::Channel => {
            stepped.chunks(rates.rank).zip(low).map(|(stepped, low)| factor(stepped, low)).collect()
        }
        ApolloScaling::Tensor => vec![factor(&stepped, &low.concat()); channels.len()],
    };
    let times = |(channel, factor): (&Vec<f64>, f64)| channel.iter().map(|g| factor * g).collect();
    let mut scaled: Vec<Vec<f64>> = channels.iter().zip(factors).map(times).collect();
    let (now, before) = (norm(&scaled.concat()), &mut state[2][matrix]);
    let growth = f64::from(Apollo::GROWTH);
    let ratio = now / (*before + f64::from(Apollo::LEAST_NORM));
    let limiter = if *before > 0.0 { ratio.max(growth) / growth } else { 1.0 };
    *before = now / limiter;
    scaled.iter_mut().flatten().for_each(|u| *u /= limiter);
    scaled
}
