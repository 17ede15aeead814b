//! Sums over axes: one run of neighbouring axes at a time, innermost first, by partial sums of chunks.

use plimsoll_exec::ExecError;
use plimsoll_graph::{Axes, DType};

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64, kind, lanes, suffix};
use super::place::Place;

/// The most chunks of a sum, and the fewest terms of one.
const CHUNKS: usize = 64;
const LEAST: usize = 128;

/// A value as (outer, terms, inner), to be summed over its middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Middle {
    outer: usize,
    terms: usize,
    inner: usize,
}

/// Where a sum goes, of any type, and whether it is added to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    pub(super) place: Place,
    pub(super) dtype: DType,
    pub(super) adds: bool,
}

impl Total {
    pub(super) fn of(operand: &Operand) -> Total {
        Total { place: operand.place, dtype: operand.ty.dtype, adds: operand.accumulate }
    }
}

pub(super) fn sum(to: &mut Lowering, call: &Call, axes: Axes) -> Result<(), ExecError> {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let mut runs = runs(&x.shape(), axes);
    let (mut place, mut dtype) = (x.place, x.ty.dtype);
    if runs.is_empty() {
        // No axis is summed: each sum has one term.
        runs.push(Middle { outer: 1, terms: 1, inner: x.count() });
    }
    let last = runs.len() - 1;
    for (index, run) in runs.into_iter().enumerate() {
        let total = if index == last {
            Total::of(y)
        } else {
            let sums = to.value([run.outer * run.inner], DType::F32);
            Total::of(&sums)
        };
        sum_middle(to, call, (place, dtype), run, total)?;
        (place, dtype) = (total.place, total.dtype);
    }
    Ok(())
}

/// The runs of summed axes, innermost first, each with the shape left by the runs before it.
fn runs(shape: &[usize], axes: Axes) -> Vec<Middle> {
    let mut runs = Vec::new();
    let mut shape = shape.to_vec();
    let mut summed: Vec<bool> = (0..shape.len()).map(|axis| axes.contains(axis)).collect();
    while let Some(last) = summed.iter().rposition(|&summed| summed) {
        let first = summed[..last].iter().rposition(|&summed| !summed).map_or(0, |kept| kept + 1);
        runs.push(Middle {
            outer: shape[..first].iter().product(),
            terms: shape[first..=last].iter().product(),
            inner: shape[last + 1..].iter().product(),
        });
        shape.drain(first..=last);
        summed.drain(first..=last);
    }
    runs
}

fn sum_middle(
    to: &mut Lowering,
    call: &Call,
    (x, dtype): (Place, DType),
    run: Middle,
    total: Total,
) -> Result<(), ExecError> {
    let Middle { outer, terms, inner } = run;
    let suffix = suffix(call, dtype)?;
    let (chunks, chunk) = chunks(terms);
    let partial = to.take((4 * outer * chunks * inner) as u64);
    let pointers = [Arg::Pointer(x), Arg::Pointer(partial), i64(terms)];
    if inner == 1 {
        let args = [&pointers[..], &[i64(chunk)]].concat();
        to.launch_grid(format!("sum_last_{suffix}"), [outer as u32, chunks as u32, 1], [256, 1], 0, args);
    } else {
        let args = [&pointers[..], &[i64(inner), i64(chunk)]].concat();
        let grid = [(outer * column_tiles(inner, dtype)) as u32, chunks as u32, 1];
        to.launch_grid(format!("sum_middle_{suffix}"), grid, [32, 8], 0, args);
    }
    finish(to, partial, [outer, chunks, inner], total);
    Ok(())
}

/// Sums down the columns of a matrix of `rows` rows.
pub(super) fn sum_rows(
    to: &mut Lowering,
    call: &Call,
    x: (Place, DType),
    [rows, columns]: [usize; 2],
    total: Total,
) -> Result<(), ExecError> {
    let mark = to.mark();
    sum_middle(to, call, x, Middle { outer: 1, terms: rows, inner: columns }, total)?;
    to.release(mark);
    Ok(())
}

/// Blocks along the columns of kernels that sum them.
pub(super) fn column_tiles(columns: usize, dtype: DType) -> usize {
    columns.div_ceil(32 * lanes(dtype))
}

/// Number of chunks and terms of each: a function of the shape alone, since it orders the sum.
pub(super) fn chunks(terms: usize) -> (usize, usize) {
    let chunk = terms.div_ceil(CHUNKS).max(LEAST).min(terms.max(1));
    (terms.div_ceil(chunk).max(1), chunk)
}

/// Adds partial sums (outer, chunks, inner) in the order of chunks.
pub(super) fn finish(to: &mut Lowering, partial: Place, [outer, chunks, inner]: [usize; 3], total: Total) {
    let count = outer * inner;
    let args = vec![
        Arg::Pointer(partial),
        Arg::Pointer(total.place),
        kind(total.dtype),
        i64(count),
        i64(inner),
        Arg::I32(chunks as i32),
        Arg::I32(i32::from(total.adds)),
    ];
    to.launch("finish_sums", blocks(count, 1), 256, args);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_taken_innermost_first_from_what_is_left() {
        let middle = |outer, terms, inner| Middle { outer, terms, inner };
        assert_eq!(runs(&[2, 3, 4, 5], Axes::of([0, 2])), [middle(6, 4, 5), middle(1, 2, 15)]);
        assert_eq!(runs(&[2, 3, 4, 5], Axes::of([0, 2, 3])), [middle(6, 20, 1), middle(1, 2, 3)]);
        assert_eq!(runs(&[7, 13], Axes::of([0, 1])), [middle(1, 91, 1)]);
        assert_eq!(runs(&[7, 13], Axes::of([])), []);
    }

    #[test]
    fn chunks_cover_all_terms_and_none_is_empty() {
        for terms in [0, 1, 127, 128, 129, 8191, 8192, 8193, 1 << 20] {
            let (count, chunk) = chunks(terms);
            assert!(count <= CHUNKS && count * chunk >= terms, "{terms}: {count} of {chunk}");
            assert!(terms == 0 || (count - 1) * chunk < terms, "{terms}: {count} of {chunk}");
        }
    }
}
