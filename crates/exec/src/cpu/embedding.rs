//! Rows of a table chosen by ids, and the sum of gradients back into the table.
//!
//! The gradient is cut by columns: each piece walks all ids in order and adds to its own columns of the
//! table, so rows that occur many times need no care and the sums have one order.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]

use half::bf16;
use plimsoll_graph::{DType, Op};

use super::element::{self, Element};
use super::lanes::{PIECE, Work, at_full_width};
use super::{Call, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    Some(match call.op {
        Op::Embedding => embedding(call),
        Op::EmbeddingGrad { .. } => embedding_grad(call),
        _ => return None,
    })
}

/// Columns a piece owns: eight cache lines of each row.
const STRIP: usize = 128;

fn embedding(call: &Call) -> Result<(), ExecError> {
    call.precision()?;
    let ids = call.integers(1);
    check(ids, call.inputs[0].ty.shape[0])?;
    match (call.inputs[0].ty.dtype, call.outputs[0].ty.dtype) {
        (DType::Bf16, DType::Bf16) => choose::<bf16, bf16>(call, ids, <[bf16]>::copy_from_slice),
        (DType::Bf16, _) => choose::<bf16, f32>(call, ids, |to, from| element::widen(from, to)),
        (_, DType::Bf16) => choose::<f32, bf16>(call, ids, |to, from| element::round(from, to)),
        _ => choose::<f32, f32>(call, ids, <[f32]>::copy_from_slice),
    }
    Ok(())
}

/// Rows of the table, each stored by `copy`.
fn choose<T: Element, E: Element>(call: &Call, ids: &[i32], copy: impl Fn(&mut [E], &[T]) + Sync + Send) {
    let (table, output) = (call.elements::<T>(0), call.output_as::<E>(0));
    let width = output.len() / ids.len().max(1);
    split::rows(ids.len(), PIECE.div_ceil(width.max(1)), [output], |range, [output]| {
        for (&id, output) in ids[range].iter().zip(output.chunks_exact_mut(width)) {
            copy(output, &table[id as usize * width..][..width]);
        }
    });
}

fn embedding_grad(call: &Call) -> Result<(), ExecError> {
    match call.precision()? {
        DType::Bf16 => add_all::<bf16>(call),
        _ => add_all::<f32>(call),
    }
}

fn add_all<E: Element>(call: &Call) -> Result<(), ExecError> {
    let (ids, dy) = (call.integers(0), call.elements::<E>(1));
    let shape = call.outputs[0].ty.shape;
    check(ids, shape[0])?;
    let (table, width) = (call.output(0), shape[1]);
    if !call.outputs[0].accumulate {
        split::rows(table.len(), PIECE, [&mut *table], |_, [part]| part.fill(0.0));
    }
    split::columns(table, width, STRIP, |mut strip| {
        at_full_width(AddRows { ids, dy, width, strip: &mut strip });
    });
    Ok(())
}

struct AddRows<'a, 'b, E> {
    ids: &'a [i32],
    dy: &'a [E],
    width: usize,
    strip: &'a mut split::Columns<'b>,
}

impl<E: Element> Work for AddRows<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let columns = self.strip.range();
        for (&id, dy) in self.ids.iter().zip(self.dy.chunks_exact(self.width)) {
            let sums = self.strip.row(id as usize);
            for (sum, dy) in sums.iter_mut().zip(&dy[columns.clone()]) {
                *sum += dy.wide();
            }
        }
    }
}

/// Checks the ids before anything is written.
fn check(ids: &[i32], rows: usize) -> Result<(), ExecError> {
    match ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= rows)) {
        Some(id) => Err(ExecError::Data(format!("token id {id} is outside the vocabulary of {rows}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, assert_near, numbers};

    const IDS: [i32; 6] = [4, 0, 4, 4, 8, 1];

    #[test]
    fn rows_are_looked_up_and_their_gradients_summed() {
        let (table, dy) = (numbers(9 * 200, 1), numbers(6 * 200, 2));
        let rows = Trial::new(Op::Embedding).f32([9, 200], &table).i32([2, 3], &IDS).run().remove(0);
        let mut expected = vec![0.0; 9 * 200];
        for (i, id) in IDS.iter().map(|&id| id as usize).enumerate() {
            assert_eq!(rows[i * 200..(i + 1) * 200], table[id * 200..(id + 1) * 200]);
            for c in 0..200 {
                expected[id * 200 + c] += f64::from(dy[i * 200 + c]);
            }
        }
        let grad = || Trial::new(Op::EmbeddingGrad { rows: 9 }).i32([2, 3], &IDS).f32([2, 3, 200], &dy);
        let one = grad().run();
        assert_near(&one[0], &expected, 1e-7);
        assert_eq!(one, grad().threads(2).run());
        let onto: Vec<f64> = expected.iter().zip(&table).map(|(a, &b)| a + f64::from(b)).collect();
        assert_near(&grad().onto(0, &table).run()[0], &onto, 2e-7);
    }

    #[test]
    fn an_id_outside_the_table_is_named() {
        for id in [-1, 9] {
            let error = Trial::new(Op::Embedding).f32([9, 2], &[0.0; 18]).i32([2], &[3, id]).attempt();
            let why = format!("token id {id} is outside the vocabulary of 9");
            assert_eq!(error, Err(ExecError::Data(why)));
        }
    }
}
