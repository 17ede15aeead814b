//! Every conformance case, lowered with and without libraries: steps stay inside the operands of their op, and steps that
//! were tampered with do not pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_cuda::half_cases;
use plimsoll_cuda::lower::{
    ALIGNMENT, Arg, AttentionShape, DocumentForm, Library, Limits, NoLibrary, Operand, Place, PlacedOp,
    Signature, StreamStep, check, lower, needs,
};
use plimsoll_exec::cases::{self, Case};

/// A library that takes every product and every attention, each with scratch.
#[derive(Debug)]
struct Every;

impl Library for Every {
    fn workspace(&self, signature: &Signature) -> Option<u64> {
        Some(64 * (signature.m as u64 % 5))
    }

    fn attention(&self, shape: &AttentionShape) -> Option<u64> {
        Some(1 + shape.length as u64)
    }
}

/// A case with places for its operands, a gap behind each.
struct Placed {
    case: Case,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    scratch: Place,
}

impl Placed {
    fn new(case: Case) -> Placed {
        let mut next = 0;
        let mut place = |ty, accumulate| {
            let place = Place(next);
            next += (ty_bytes(ty) + ALIGNMENT).next_multiple_of(ALIGNMENT);
            Operand { place, ty, accumulate }
        };
        let inputs = case.inputs.iter().map(|input| place(input.ty, false)).collect();
        let outputs = case.output_types().into_iter().zip(case.accumulates());
        let outputs = outputs.map(|(ty, adds)| place(ty, adds)).collect();
        Placed { case, inputs, outputs, scratch: Place(next) }
    }

    fn work(&self) -> PlacedOp<'_> {
        PlacedOp { op: &self.case.op, inputs: &self.inputs, outputs: &self.outputs, scratch: self.scratch }
    }

    /// Steps in one form, and the scratch they may take; none where there is no kernel for the types.
    fn lowered(&self, library: &dyn Library, documents: DocumentForm) -> Option<(Vec<StreamStep>, u64)> {
        let limits = Limits { documents, head_bytes: 0, head_rows: 40, ..Limits::default() };
        let types = |operands: &[Operand]| operands.iter().map(|operand| operand.ty).collect::<Vec<_>>();
        let needs =
            needs(&self.case.op, &types(&self.inputs), &types(&self.outputs), library, limits).ok()?;
        Some((lower(&self.work(), library, limits).ok()?, needs.scratch))
    }
}

fn ty_bytes(ty: plimsoll_graph::Type) -> u64 {
    ty.bytes() as u64
}

fn cases() -> Vec<Placed> {
    let cases = [cases::all(), half_cases()].concat();
    // Updates are left out: they write over their state, which is input and output at once.
    cases.into_iter().filter(|case| !case.op.updates()).map(Placed::new).collect()
}

fn each(mut look: impl FnMut(&Placed, &dyn Library, Vec<StreamStep>, u64)) {
    for placed in cases() {
        for library in [&NoLibrary as &dyn Library, &Every] {
            for form in [DocumentForm::Masked, DocumentForm::Ragged] {
                if let Some((steps, scratch)) = placed.lowered(library, form) {
                    look(&placed, library, steps, scratch);
                }
            }
        }
    }
}

#[test]
fn steps_of_every_case_stay_inside_its_operands_and_scratch() {
    let mut seen = 0;
    each(|placed, library, steps, scratch| {
        check(&placed.work(), scratch, &steps, library)
            .unwrap_or_else(|why| panic!("{}: {why}", placed.case.name));
        seen += steps.len();
    });
    assert!(seen > 5000, "{seen} steps");
}

#[test]
fn a_place_moved_behind_the_scratch_is_found() {
    let mut moved = 0;
    each(|placed, library, steps, scratch| {
        let end = placed.scratch.0 + scratch;
        for index in 0..steps.len() {
            let mut steps = steps.clone();
            if move_one(&mut steps[index], end) {
                assert!(check(&placed.work(), scratch, &steps, library).is_err(), "{}", placed.case.name);
                moved += 1;
            }
        }
    });
    assert!(moved > 2000, "{moved} places");
}

/// Moves the first place of a step to `end`, where nothing is.
fn move_one(step: &mut StreamStep, end: u64) -> bool {
    let place = match step {
        StreamStep::Launch(launch) => {
            let pointer = launch.args.iter_mut().find_map(|arg| match arg {
                Arg::Pointer(place) => Some(place),
                _ => None,
            });
            let Some(place) = pointer else { return false };
            place
        }
        StreamStep::Product(product) => &mut product.a,
        StreamStep::Attention(attention) => &mut attention.places[0].1,
        StreamStep::Exchange(exchange) => &mut exchange.source,
        StreamStep::Await { .. } => return false,
        StreamStep::Copy { from, .. } => from,
        StreamStep::Zero { to, .. } => to,
    };
    *place = Place(end);
    true
}

#[test]
fn results_written_over_an_input_are_found() {
    let mut turned = 0;
    each(|placed, library, steps, scratch| {
        for index in 0..steps.len() {
            let mut steps = steps.clone();
            let inputs: Vec<Place> = placed.inputs.iter().map(|input| input.place).collect();
            let swapped = match &mut steps[index] {
                StreamStep::Product(product) if inputs.contains(&product.a) => {
                    std::mem::swap(&mut product.a, &mut product.c);
                    true
                }
                StreamStep::Copy { from, to, .. } if inputs.contains(from) => {
                    std::mem::swap(from, to);
                    true
                }
                _ => false,
            };
            if swapped {
                assert!(check(&placed.work(), scratch, &steps, library).is_err(), "{}", placed.case.name);
                turned += 1;
            }
        }
    });
    assert!(turned > 50, "{turned} steps");
}

#[test]
fn outputs_that_nobody_touches_and_scratch_that_is_read_first_are_found() {
    let (mut missing, mut early) = (0, 0);
    each(|placed, library, steps, scratch| {
        if placed.outputs.iter().any(|output| output.ty.bytes() > 0) {
            assert!(check(&placed.work(), scratch, &[], library).is_err(), "{}", placed.case.name);
            missing += 1;
        }
        let in_scratch = |place: Place| place.0 >= placed.scratch.0;
        for (index, step) in steps.iter().enumerate() {
            let reads = match step {
                StreamStep::Product(product) => in_scratch(product.a) || in_scratch(product.b),
                StreamStep::Copy { from, .. } => in_scratch(*from),
                _ => false,
            };
            if reads {
                // Without the steps before it, this step reads scratch that was never written.
                let said = check(&placed.work(), scratch, &steps[index..], library);
                assert!(said.is_err(), "{}", placed.case.name);
                early += 1;
            }
        }
    });
    assert!(missing > 1000 && early > 50, "{missing} outputs, {early} reads");
}
