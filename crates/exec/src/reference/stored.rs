//! How an optimizer's state is kept between steps, by definition: read as numbers, written in its own form.

use plimsoll_graph::op::{BLOCK, Moments, Stored, Weights};

use super::Tensor;
use super::array::Array;
use crate::codes::{Codes, SIGNED, UNSIGNED};
use crate::random::Stream;
use crate::{init, rounding};

/// A parameter and its moments as numbers.
pub(super) struct Numbers {
    pub(super) parameter: Vec<f64>,
    pub(super) moments: Vec<Vec<f64>>,
}

/// Contents of `ranges`, in the order of [`Stored::types`].
pub(super) fn read(stored: Stored, ranges: &[Tensor]) -> Numbers {
    let numbers: Vec<Vec<f64>> = ranges.iter().map(Tensor::numbers).collect();
    let (parameter, rest) = match stored.weights {
        Weights::F32 | Weights::Stochastic { .. } | Weights::StochasticShard { .. } => {
            (numbers[0].clone(), &numbers[1..])
        }
        Weights::Split => {
            let join = |(&upper, &lower): (&f64, &f64)| {
                f64::from(rounding::join(half::bf16::from_f64(upper), lower as i16))
            };
            (numbers[0].iter().zip(&numbers[1]).map(join).collect(), &numbers[2..])
        }
    };
    let moments = match stored.moments {
        Moments::F32 | Moments::Bf16 => rest.to_vec(),
        Moments::Blocks => rest.chunks(2).zip(TABLES).map(|(pair, table)| decode(pair, table())).collect(),
    };
    Numbers { parameter, moments }
}

/// The ranges that hold `numbers`, each rounded once; `rng` is the graph's input where rounding is random.
pub(super) fn write(stored: Stored, numbers: &Numbers, rng: &[i32], ranges: &[Tensor]) -> Vec<Array> {
    let mut written = match stored.weights {
        Weights::F32 => vec![numbers.parameter.clone()],
        Weights::Stochastic { stream } | Weights::StochasticShard { stream } => {
            let shard = matches!(stored.weights, Weights::StochasticShard { .. });
            // The first element of a shard in the whole.
            let first = if shard { rng[3] as usize * numbers.parameter.len() } else { 0 };
            let stream = Stream::of_input(rng, stream);
            let round = |(index, &x): (usize, &f64)| {
                let (row, element) = init::place(first + index);
                f64::from(rounding::stochastic(x as f32, stream.bits(row, element)))
            };
            vec![numbers.parameter.iter().enumerate().map(round).collect()]
        }
        Weights::Split => {
            let halves: Vec<_> = numbers.parameter.iter().map(|&x| rounding::split(x as f32)).collect();
            let upper = halves.iter().map(|&(upper, _)| f64::from(upper)).collect();
            vec![upper, halves.iter().map(|&(_, lower)| f64::from(lower)).collect()]
        }
    };
    for (index, (moment, table)) in numbers.moments.iter().zip(TABLES).enumerate() {
        match stored.moments {
            Moments::F32 | Moments::Bf16 => written.push(moment.clone()),
            Moments::Blocks => written.extend(encode(moment, table(), index == 1)),
        }
    }
    written.into_iter().zip(ranges).map(|(data, range)| Array { shape: range.ty.shape, data }).collect()
}

/// The table of each moment.
const TABLES: [fn() -> &'static Codes; 2] = [|| &SIGNED, || &UNSIGNED];

/// Each code times the largest magnitude of its block.
fn decode(pair: &[Vec<f64>], table: &Codes) -> Vec<f64> {
    let (codes, largest) = (&pair[0], &pair[1]);
    let number =
        |(index, &code): (usize, &f64)| f64::from(table.numbers[code as usize]) * largest[index / BLOCK];
    codes.iter().enumerate().map(number).collect()
}

fn encode(numbers: &[f64], table: &Codes, positive: bool) -> [Vec<f64>; 2] {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in numbers.chunks(BLOCK) {
        let largest = block.iter().fold(0.0f64, |largest, x| largest.max(x.abs())) as f32;
        // A block of zeros has no scale to divide by; all its codes stand for zeros.
        let inverse = if largest > 0.0 { 1.0 / f64::from(largest) } else { 0.0 };
        codes.extend(block.iter().map(|&x| {
            let x = (x * inverse) as f32;
            f64::from(if positive { table.nearest_positive(x) } else { table.nearest(x) })
        }));
        scales.push(f64::from(largest));
    }
    [codes, scales]
}
