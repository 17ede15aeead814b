//! Contents of a case's inputs.
//!
//! Numbers are drawn from the same generator as weights and masks, one stream per input.

use plimsoll_graph::op::Sorting;
use plimsoll_graph::{DType, Op, Shape, Type};

use crate::random::Stream;
use crate::reference::{self, Tensor};

/// An input: its type and its contents.
#[derive(Clone, Debug)]
pub struct Input {
    /// Shape and element type.
    pub ty: Type,
    /// Its contents.
    pub fill: Fill,
}

/// Contents of an input.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Normal numbers of this standard deviation.
    Normal(f32),
    /// Squares of normal numbers of this standard deviation.
    Squares(f32),
    /// The same number everywhere.
    Number(f32),
    /// Numbers that test rounding: zeros of both signs, ties, subnormals, the largest.
    Edges,
    /// Integers drawn evenly from 0 to below this.
    Below(usize),
    /// In each row, distinct integers below this, drawn at random and in random order.
    Distinct(usize),
    /// Word ids of which about every fifth is `ignore_index`; all of them when `words` is 0.
    Targets {
        /// Size of the vocabulary.
        words: usize,
        /// The id that means "no loss".
        ignore_index: i32,
    },
    /// For each position of each row, the first position of its document; one in this many positions begins a document.
    Documents(usize),
    /// Seed, step and first row of a dropout or a jitter.
    Rng,
    /// Rotary frequencies `10000^(−i/n)`.
    Frequencies,
    /// A matrix that picks rows of another: 1 in one row of each column, and 0 elsewhere.
    Picks,
    /// Output `output` of a sort of token copies by expert. Inputs of a case with equal parameters are results of one sort.
    Sorted {
        /// The sort.
        sorting: Sorting,
        /// Shape of the indices that are sorted.
        indices: Shape,
        /// Whether every token goes to the same experts; otherwise they are drawn.
        same: bool,
        /// Which output.
        output: usize,
    },
    /// Output `output` of `op` on other inputs of the case: a value that the forward pass has stored.
    Forward {
        /// The forward op.
        op: Op,
        /// Indices of the inputs it reads.
        from: Vec<usize>,
        /// Which of its outputs.
        output: usize,
    },
}

/// The tensors of `inputs`, drawn from the numbers of `seed`.
pub(super) fn tensors(inputs: &[Input], seed: u64) -> Vec<Tensor> {
    let mut tensors: Vec<Tensor> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| draw(input, Stream::new(seed, index as u64, 0)))
        .collect();
    // The other inputs follow from the drawn ones, wherever they stand in the list.
    for (index, input) in inputs.iter().enumerate() {
        if let Fill::Forward { op, from, output } = &input.fill {
            let operands: Vec<&Tensor> = from.iter().map(|&index| &tensors[index]).collect();
            let results = reference::apply(op, &operands);
            assert!(results.is_ok(), "{op:?} of a case: {results:?}");
            tensors[index] = results.unwrap_or_default().swap_remove(*output);
        }
    }
    tensors
}

fn draw(input: &Input, stream: Stream) -> Tensor {
    let Input { ty, fill } = input;
    let count = ty.shape.elements();
    let normal = |i: usize| f64::from(stream.normal_pair(0, i as u32)[0]);
    let below = |i: usize, end: usize| (stream.bits(0, i as u32) as usize % end) as f64;
    let each = |number: &dyn Fn(usize) -> f64| (0..count).map(number).collect::<Vec<f64>>();
    let numbers = match fill {
        Fill::Normal(deviation) if matches!(ty.dtype, DType::I32 | DType::I16) => {
            each(&|i| 100.0 * f64::from(*deviation) * normal(i))
        }
        Fill::Normal(deviation) => each(&|i| f64::from(*deviation) * normal(i)),
        Fill::Squares(deviation) => each(&|i| (f64::from(*deviation) * normal(i)).powi(2)),
        Fill::Number(number) => vec![f64::from(*number); count],
        Fill::Edges => each(&|i| EDGES[i % EDGES.len()]),
        Fill::Below(end) => each(&|i| below(i, *end)),
        Fill::Distinct(end) => {
            let row = |row: usize| {
                let mut order: Vec<usize> = (0..*end).collect();
                order.sort_by_key(|&i| (stream.bits(0, (row * end + i) as u32), i));
                order.into_iter().take(ty.shape.columns()).map(|i| i as f64)
            };
            (0..ty.shape.rows()).flat_map(row).collect()
        }
        Fill::Targets { words, ignore_index } => each(&|i| {
            let ignored = *words == 0 || below(i, 5) == 0.0;
            if ignored { f64::from(*ignore_index) } else { below(i + count, *words) }
        }),
        Fill::Documents(mean) => documents(ty.shape.columns(), count, |i| below(i, *mean) == 0.0),
        Fill::Rng => vec![12345.0, -7.0, 3.0, 40.0],
        Fill::Frequencies => each(&|i| 10_000f64.powf(-(i as f64) / count as f64)),
        Fill::Picks => {
            let (rows, columns) = (ty.shape.rows(), ty.shape.columns());
            let row_of = |column: usize| below(column, rows) as usize;
            each(&|i| if row_of(i % columns) == i / columns { 1.0 } else { 0.0 })
        }
        Fill::Sorted { sorting, indices, same, output } => sorted(*sorting, *indices, *same, *output),
        Fill::Forward { .. } => vec![0.0; count],
    };
    Tensor::from_numbers(*ty, &numbers)
}

/// Output `output` of a sort of indices that are drawn from their shape alone.
fn sorted(sorting: Sorting, indices: Shape, same: bool, output: usize) -> Vec<f64> {
    let fill = Fill::Distinct(sorting.experts);
    let mut drawn =
        draw(&Input { ty: Type::i32(indices), fill }, Stream::new(17, indices.elements() as u64, 0));
    if same {
        let first = drawn.numbers()[..indices.columns()].to_vec();
        drawn = Tensor::from_numbers(drawn.ty, &first.repeat(indices.rows()));
    }
    let results = reference::apply(&Op::SortByExpert(sorting), &[&drawn]);
    assert!(results.is_ok(), "{sorting:?} of a case: {results:?}");
    results.unwrap_or_default().swap_remove(output).numbers()
}

fn documents(length: usize, count: usize, begins: impl Fn(usize) -> bool) -> Vec<f64> {
    let mut start = 0;
    let position = |i: usize| {
        if i.is_multiple_of(length) || begins(i) {
            start = i % length;
        }
        start as f64
    };
    (0..count).map(position).collect()
}

/// Around one: ties of bf16 (2⁻⁸) and f16 (2⁻¹¹) that go down and up. Then zeros, numbers too large for
/// f16, numbers subnormal in f16, and both ends of f32.
const EDGES: [f64; 18] = [
    1.0 + 1.0 / 256.0,
    1.0 + 3.0 / 256.0,
    1.0 + 1.0 / 256.0 + 1.0 / 1_048_576.0,
    1.0 + 1.0 / 2048.0,
    1.0 + 3.0 / 2048.0,
    -1.0 - 1.0 / 2048.0 - 1.0 / 4_194_304.0,
    0.0,
    -0.0,
    65504.0,
    65519.0,
    65520.0,
    -1e6,
    6e-5,
    -6e-8,
    2e-8,
    1e-40,
    3.4e38,
    -3.4e38,
];
