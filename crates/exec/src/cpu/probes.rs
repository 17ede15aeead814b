//! Parameters as probes read them, and the step that follows from the probes' losses.
//!
//! A direction is drawn a block at a time and never stored: each number is a function of the probe, the parameter's name and
//! the element, whichever thread asks.
#![allow(unsafe_code, reason = "parameters of any element type are reached by address")]

use plimsoll_graph::op::{BLOCK, ProbeStep};
use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use super::cast::{load, store};
use super::lanes::PIECE;
use super::simd::widest;
use super::stored::update_from;
use super::updates::Descent;
use super::{Call, pieces};
use crate::ExecError;
use crate::random::Stream;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    match call.op {
        Op::Perturb { stream } => perturb(call, *stream),
        Op::PerturbRows { stream } => perturb_rows(call, *stream),
        Op::ProbeStep(step) => probe_step(call, *step),
        _ => return None,
    }
    Some(Ok(()))
}

/// The scratch that an op of this file needs: the factor of each direction.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    let Op::ProbeStep(_) = op else { return None };
    Some(Workspace::exactly(4 * inputs[2].shape.rows() as u64))
}

fn perturb(call: &Call, stream: u64) {
    let (w, copy, probe) = (call.inputs[0], call.outputs[0], call.integers(1));
    let (size, direction) = (call.input(2)[0], Stream::of_probe(probe, stream, probe[3] as u32));
    let len = w.ty.shape.elements();
    pieces::for_each(len.div_ceil(PIECE), |piece| {
        let (mut z, mut numbers) = ([0.0; BLOCK], [0.0; BLOCK]);
        for at in (piece * PIECE..len.min((piece + 1) * PIECE)).step_by(BLOCK) {
            let numbers = &mut numbers[..BLOCK.min(len - at)];
            draw(&direction, at, &mut z[..numbers.len()]);
            // SAFETY: the block lies inside both operands, which have one type; pieces do not overlap.
            unsafe {
                load(&w, at, numbers);
                numbers.iter_mut().zip(&z).for_each(|(number, z)| *number += size * z);
                store(&copy, at, numbers);
            }
        }
    });
}

fn perturb_rows(call: &Call, stream: u64) {
    let (y, to, ids, probe) = (call.inputs[0], call.outputs[0], call.integers(1), call.integers(2));
    let (size, direction) = (call.input(3)[0], Stream::of_probe(probe, stream, probe[3] as u32));
    let columns = y.ty.shape.columns();
    pieces::for_each(ids.len(), |row| {
        let (mut z, mut numbers) = ([0.0; BLOCK], [0.0; BLOCK]);
        for column in (0..columns).step_by(BLOCK) {
            let numbers = &mut numbers[..BLOCK.min(columns - column)];
            draw(&direction, ids[row] as usize * columns + column, &mut z[..numbers.len()]);
            // SAFETY: the part of the row lies inside both operands and is read before its place is written; no two pieces
            // have the same row.
            unsafe {
                load(&y, row * columns + column, numbers);
                numbers.iter_mut().zip(&z).for_each(|(number, z)| *number += size * z);
                store(&to, row * columns + column, numbers);
            }
        }
    });
}

fn probe_step(call: &Call, step: ProbeStep) {
    let (lr, probe, losses) = (call.input(0)[0], call.integers(1), call.input(2));
    let factors = &mut call.scratch()[..losses.len() / 2];
    if !step.estimate.factors(losses, factors) {
        return;
    }
    let factors = &*factors;
    let descent = Descent::along(lr, step.weight_decay);
    update_from::<0>(call, step.stored, &descent, |at, slope| {
        let mut z = [0.0; BLOCK];
        slope.fill(0.0);
        for (number, factor) in (0u32..).zip(factors) {
            let z = &mut z[..slope.len()];
            draw(&Stream::of_probe(probe, step.stream, number), at, z);
            slope.iter_mut().zip(z).for_each(|(slope, z)| *slope += factor * *z);
        }
    });
}

widest! {
    /// Elements `first …` of a direction.
    fn draw(direction: &Stream, first: usize, numbers: &mut [f32]) {
        direction.normals(first, numbers);
    }
}
