//! The arithmetic of merging: `W + s·B·A`, a few rows of the stored weight at a time.
//!
//! A caller that streams a file holds one block of rows and the two small matrices; the product `B·A`, as large as
//! the weight, never exists. Sums run over the rank in order, so blocks of any size give the same bits.
//!
//! Where rows of the sum have a trained length, the caller goes over the weight twice: see [`RowLengths`].

use plimsoll_graph::GraphError;

use super::Adapter;
use crate::language::refuse;

/// The matrix that an adapter adds to its weight.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a> {
    /// One element of `rank` for each row of the stored weight, and how to step.
    left: Strided<'a>,
    /// One element of `rank` for each column of the stored weight.
    right: Strided<'a>,
    rank: usize,
    scale: f32,
    rows: usize,
    columns: usize,
}

/// A matrix `(line, r)` however it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided<'a> {
    /// The numbers, beginning with the first element of the matrix.
    pub(super) data: &'a [f32],
    /// Distance between lines.
    pub(super) line: usize,
    /// Distance between elements of one line.
    pub(super) depth: usize,
}

impl Strided<'_> {
    fn at(&self, line: usize, depth: usize) -> f32 {
        self.data[line * self.line + depth * self.depth]
    }
}

/// Columns whose sums are gathered at a time, on the stack.
const COLUMNS: usize = 64;

impl<'a> Delta<'a> {
    /// From the numbers of `A (r, in)` and `B (out, r)` of a layer.
    ///
    /// # Errors
    ///
    /// When they have another size.
    pub fn new(layer: &Adapter, a: &'a [f32], b: &'a [f32]) -> Result<Delta<'a>, GraphError> {
        let (rank, scale) = (layer.rank, layer.scale);
        check_size(&layer.a(), rank, a.len(), rank * layer.input)?;
        check_size(&layer.b(), rank, b.len(), layer.output * rank)?;
        let a = Strided { data: a, line: 1, depth: layer.input };
        let b = Strided { data: b, line: rank, depth: 1 };
        Ok(if layer.rows_are_inputs() {
            Delta { left: a, right: b, rank, scale, rows: layer.input, columns: layer.output }
        } else {
            Delta { left: b, right: a, rank, scale, rows: layer.output, columns: layer.input }
        })
    }

    /// From two factors of the stored weight's rows and columns, whose number is `[rows, columns]`.
    pub(super) fn of_factors(
        [left, right]: [Strided<'a>; 2],
        [rows, columns]: [usize; 2],
        rank: usize,
        scale: f32,
    ) -> Delta<'a> {
        Delta { left, right, rank, scale, rows, columns }
    }

    /// Adds to rows `first_row …` of the weight as it is stored.
    ///
    /// # Errors
    ///
    /// When `rows` is no whole number of rows, or reaches beyond the weight.
    pub fn merge_rows(&self, first_row: usize, rows: &mut [f32]) -> Result<(), GraphError> {
        let count = rows.len() / self.columns.max(1);
        if count * self.columns != rows.len() || first_row + count > self.rows {
            let why = format!(
                "{} numbers from row {first_row} on are no whole rows of a weight of {} × {}",
                rows.len(),
                self.rows,
                self.columns
            );
            return Err(refuse("lora", why));
        }
        for (row, numbers) in (first_row..).zip(rows.chunks_exact_mut(self.columns.max(1))) {
            for (block, numbers) in numbers.chunks_mut(COLUMNS).enumerate() {
                self.merge_block(row, block * COLUMNS, numbers);
            }
        }
        Ok(())
    }

    fn merge_block(&self, row: usize, first_column: usize, numbers: &mut [f32]) {
        let mut sums = [0.0f32; COLUMNS];
        for depth in 0..self.rank {
            let left = self.left.at(row, depth);
            for (column, sum) in (first_column..).zip(&mut sums[..numbers.len()]) {
                *sum += left * self.right.at(column, depth);
            }
        }
        for (number, sum) in numbers.iter_mut().zip(sums) {
            *number += self.scale * sum;
        }
    }
}

/// The trained lengths of the rows of `W + s·B·A`. The first pass over the stored weight gathers the squares of the rows, the
/// second scales them; a weight that is stored `(in, out)` has those rows as its columns.
#[derive(Clone, Debug)]
pub struct RowLengths {
    squares: Vec<f64>,
    by_column: bool,
}

impl RowLengths {
    /// Row lengths of a layer's weight, not yet filled.
    pub fn new(layer: &Adapter) -> RowLengths {
        RowLengths { squares: vec![0.0; layer.output], by_column: layer.rows_are_inputs() }
    }

    /// For a weight of `outputs` rows that is stored `(out, in)`.
    pub fn by_row(outputs: usize) -> RowLengths {
        RowLengths { squares: vec![0.0; outputs], by_column: false }
    }

    /// Adds rows `first_row …` of the weight as it is stored, after the adapter was added to them.
    pub fn add(&mut self, first_row: usize, rows: &[f32], columns: usize) {
        for (row, numbers) in (first_row..).zip(rows.chunks_exact(columns.max(1))) {
            for (column, &number) in numbers.iter().enumerate() {
                self.squares[if self.by_column { column } else { row }] +=
                    f64::from(number) * f64::from(number);
            }
        }
    }

    /// Gives rows `first_row …` of the weight as it is stored the lengths `magnitudes`, one for each column of the layer's
    /// result.
    pub fn scale(&self, first_row: usize, rows: &mut [f32], columns: usize, magnitudes: &[f32]) {
        for (row, numbers) in (first_row..).zip(rows.chunks_exact_mut(columns.max(1))) {
            for (column, number) in numbers.iter_mut().enumerate() {
                let output = if self.by_column { column } else { row };
                let factor = f64::from(magnitudes[output]) / self.squares[output].sqrt();
                *number = (f64::from(*number) * factor) as f32;
            }
        }
    }

    /// The lengths that the rows have.
    pub fn lengths(&self) -> impl Iterator<Item = f32> {
        self.squares.iter().map(|square| square.sqrt() as f32)
    }

    /// The squared lengths of the rows.
    pub fn squares(&self) -> impl Iterator<Item = f32> {
        self.squares.iter().map(|&square| square as f32)
    }
}

/// Multiplies rows `first_row …` of a stored parameter by the factors of IA³, one for each row or for each column.
pub fn scale_rows(first_row: usize, rows: &mut [f32], columns: usize, factors: &[f32], by_column: bool) {
    for (row, numbers) in (first_row..).zip(rows.chunks_exact_mut(columns.max(1))) {
        for (column, number) in numbers.iter_mut().enumerate() {
            *number *= factors[if by_column { column } else { row }];
        }
    }
}

/// Refuses a matrix of an adapter that has another number of elements.
pub(super) fn check_size(name: &str, rank: usize, size: usize, wanted: usize) -> Result<(), GraphError> {
    if size == wanted {
        return Ok(());
    }
    Err(refuse("lora", format!("`{name}` has {size} numbers, but at rank {rank} it has {wanted}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::Form;
    use super::*;

    fn layer(form: Form) -> Adapter {
        Adapter { module: "m".into(), form, input: 70, output: 5, rank: 3, scale: 2.0, feedforward: false }
    }

    fn numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + salt * 11) % 23) as f32 / 8.0 - 1.25).collect()
    }

    #[test]
    fn blocks_of_rows_of_either_form_add_the_scaled_product() {
        let (a, b, w) = (numbers(3 * 70, 1), numbers(5 * 3, 2), numbers(5 * 70, 3));
        for form in [Form::Linear, Form::Transposed, Form::Table] {
            let (layer, transposed) = (layer(form), form != Form::Linear);
            let delta = Delta::new(&layer, &a, &b).unwrap();
            let columns = if transposed { 5 } else { 70 };
            for block in [1, 2, 5] {
                let mut merged = w.clone();
                for (index, rows) in merged.chunks_mut(block * columns).enumerate() {
                    delta.merge_rows(index * block, rows).unwrap();
                }
                for (at, (got, before)) in merged.iter().zip(&w).enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let (out, input) = if transposed { (column, row) } else { (row, column) };
                    let product: f32 = (0..3).map(|r| b[out * 3 + r] * a[r * 70 + input]).sum();
                    assert!((got - (before + 2.0 * product)).abs() < 1e-5, "{form:?} {block} at {at}");
                }
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let (a, b) = (numbers(3 * 70, 1), numbers(5 * 3, 2));
        let error = Delta::new(&layer(Form::Linear), &a[1..], &b).unwrap_err();
        assert_eq!(error.to_string(), "lora: `m.lora_A.weight` has 209 numbers, but at rank 3 it has 210");
        let layer = layer(Form::Linear);
        let delta = Delta::new(&layer, &a, &b).unwrap();
        assert!(delta.merge_rows(4, &mut [0.0; 140]).is_err(), "ends behind the weight");
        assert!(delta.merge_rows(0, &mut [0.0; 71]).is_err(), "no whole rows");
    }
}
