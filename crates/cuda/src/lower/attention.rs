//! Rotary positions; attention by the library where it has a plan for the shape, else by the plain tiled kernels.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::Mask;

use super::elementwise::blocks;
use super::launch::{Arg, StreamStep};
use super::library::{Attention, AttentionShape, AttentionTensor};
use super::lowering::{Call, DocumentForm, Lowering, Operand, i32, i64, suffix, unsupported};
use super::movement;
use super::place::Place;

/// Widths of a head that kernels are compiled for; a narrower one is filled up.
const WIDTHS: [usize; 4] = [32, 64, 128, 256];
/// Bytes that gradients of scores may take in scratch, where more than one sequence has them.
const SCORES_BYTES: usize = 1 << 30;
/// Bytes that the library wants every address to be a multiple of.
const SLICE_ALIGNMENT: usize = 16;
/// Tokens for each document that the ragged form has room for, and the number that this room is a multiple of.
const TOKENS_PER_SLOT: usize = 128;
const SLOTS: usize = 16;
/// Heads that one thread of `rope` turns.
const ROPE_HEADS: usize = 8;

pub(super) fn rope(to: &mut Lowering, call: &Call, inverse: bool, positions: bool) -> Result<(), ExecError> {
    let (x, frequencies, y) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let [batch, length, heads, width] = extents(call, x)?;
    if frequencies.ty.dtype != DType::F32 {
        return Err(unsupported(call, "wants its frequencies in f32"));
    }
    let tokens = batch * length;
    let args = vec![
        x.pointer(),
        frequencies.pointer(),
        if positions { call.inputs[2].pointer() } else { Arg::Null },
        y.pointer(),
        i64(tokens),
        i32(length),
        i32(heads),
        i32(width),
        Arg::F32(if inverse { -1.0 } else { 1.0 }),
    ];
    let grid = [blocks(tokens * width / 2, 1) as u32, heads.div_ceil(ROPE_HEADS) as u32, 1];
    to.launch_grid(format!("rope_{}", suffix(call, x.ty.dtype)?), grid, [256, 1], 0, args);
    Ok(())
}

/// Parameters of the tiled kernels: `Tiling` of `attention.cuh`, and the struct `Attention`.
struct Tiled {
    suffix: &'static str,
    /// Width the kernel is compiled for.
    width: usize,
    /// Rows of a tile.
    rows: usize,
    batch: usize,
    length: usize,
    heads: usize,
    key_heads: usize,
    geometry: Arg,
}

impl Tiled {
    fn new(call: &Call, mask: Mask, scale: f32) -> Result<Tiled, ExecError> {
        let [batch, length, heads, width] = extents(call, &call.inputs[0])?;
        let key_heads = extents(call, &call.inputs[1])?[2];
        let compiled = WIDTHS.into_iter().find(|&most| width <= most);
        let compiled = compiled.ok_or_else(|| {
            unsupported(call, &format!("has heads of {width} columns; the CUDA kernel takes at most 256"))
        })?;
        let window = mask.window.map_or(0, |window| window.min(i32::MAX as usize));
        let mut fields = [length, heads, key_heads, width].map(i32).to_vec();
        fields.extend([Arg::I32(mask.causal.into()), i32(window), Arg::F32(scale)]);
        Ok(Tiled {
            suffix: suffix(call, call.inputs[0].ty.dtype)?,
            width: compiled,
            rows: if compiled <= 128 { 32 } else { 16 },
            batch,
            length,
            heads,
            key_heads,
            geometry: Arg::Struct(fields),
        })
    }

    /// A launch with this many tiles of rows, and of scores, in shared memory.
    fn launch(&self, to: &mut Lowering, kernel: &str, heads: usize, tiles: [usize; 2], mut args: Vec<Arg>) {
        args.push(self.geometry.clone());
        let floats = tiles[0] * self.rows * (self.width + 4) + tiles[1] * self.rows * (self.rows + 1);
        let grid = [self.length.div_ceil(self.rows), heads, self.batch].map(|blocks| blocks as u32);
        let kernel = format!("{kernel}_{}_{}", self.suffix, self.width);
        to.launch_grid(kernel, grid, [8 * self.rows as u32, 1], 4 * floats as u32, args);
    }
}

/// The shape of a call that a plan may serve.
fn shape_of(to: &Lowering, call: &Call, mask: Mask, scale: f32, backward: bool) -> Option<AttentionShape> {
    let halves = |operands: &[Operand]| operands.iter().all(|operand| operand.ty.dtype == DType::Bf16);
    let values = if backward { &call.inputs[..4] } else { &call.inputs[..3] };
    let results = if backward { call.outputs } else { &call.outputs[..1] };
    let [batch, length, heads, width] = extents(call, &call.inputs[0]).ok()?;
    let key_heads = extents(call, &call.inputs[1]).ok()?[2];
    let documents = call.inputs.len() > if backward { 6 } else { 3 };
    let plain = mask.window.is_none() && (mask.causal || !documents);
    let adds = call.outputs.iter().any(|output| output.accumulate);
    let takes =
        halves(values) && halves(results) && plain && !adds && width.is_multiple_of(8) && width <= 128;
    let deterministic = to.limits.deterministic && backward;
    let shape = AttentionShape {
        batch,
        length,
        heads,
        key_heads,
        width,
        causal: mask.causal,
        documents,
        slots: None,
        backward,
        deterministic,
        scale_bits: scale.to_bits(),
    };
    takes.then_some(shape)
}

/// Documents that the ragged form has room for. A slot takes time whether it is used or not; packed texts are longer than
/// this on average, and where they are not, documents are a mask.
fn slots_for(tokens: usize) -> usize {
    tokens.div_ceil(TOKENS_PER_SLOT).next_multiple_of(SLOTS)
}

/// Makes the library run a call with every document as a sequence of its own, if it has a plan for that. It needs the
/// statistics of queries by position and not by head, so those are transposed on the way in and out.
fn by_ragged_library(to: &mut Lowering, call: &Call, shape: Option<AttentionShape>) -> bool {
    use AttentionTensor::{DK, DO, DQ, DV, Delta, DqSum, K, Lse, O, Q, V, WideDK, WideDV};
    let asked = to.limits.documents == DocumentForm::Ragged;
    let fits = |shape: &AttentionShape| asked && shape.documents && shape.causal && !shape.deterministic;
    let Some(shape) = shape.filter(fits) else { return false };
    let slots = slots_for(shape.batch * shape.length);
    let shape = AttentionShape { slots: Some(slots), ..shape };
    let Some(bytes) = to.library.attention(&shape) else { return false };
    let AttentionShape { batch, length, heads, width, .. } = shape;
    let rows = (batch * length * heads) as u64;
    let by_position = to.value([batch, length, heads], DType::F32);
    let place = |operand: &Operand| operand.place;
    let ragged = call.inputs.last().map(place);
    if shape.backward {
        let inputs = call.inputs;
        movement::transposed(to, &inputs[4], &by_position, &[0, 2, 1]);
        let mut places = vec![(Q, place(&inputs[0])), (K, place(&inputs[1])), (V, place(&inputs[2]))];
        places.extend([(O, place(&inputs[3])), (DO, place(&inputs[5])), (Lse, by_position.place)]);
        places.extend([DQ, DK, DV].into_iter().zip(call.outputs.iter().map(place)));
        places.push((Delta, to.take(4 * rows)));
        places.push((DqSum, to.take(4 * rows * width as u64)));
        if shape.heads != shape.key_heads {
            places.extend([WideDK, WideDV].map(|tensor| (tensor, to.take(2 * rows * width as u64))));
        }
        let workspace = to.take(bytes);
        to.steps.push(StreamStep::Attention(Attention { shape, places, workspace, ragged }));
    } else {
        let mut places: Vec<(AttentionTensor, Place)> =
            [Q, K, V].into_iter().zip(call.inputs.iter().map(place)).collect();
        places.extend([(O, place(&call.outputs[0])), (Lse, by_position.place)]);
        let workspace = to.take(bytes);
        to.steps.push(StreamStep::Attention(Attention { shape, places, workspace, ragged }));
        movement::transposed(to, &by_position, &call.outputs[1], &[0, 2, 1]);
    }
    true
}

/// Makes the library run a call, if it has a plan for it. Sequences share nothing, so slices of the batch give the same
/// bits as the whole.
fn by_library(to: &mut Lowering, call: &Call, shape: Option<AttentionShape>) -> bool {
    use AttentionTensor::{DK, DO, DQ, DV, K, Lse, O, Q, Starts, V};
    let Some(whole) = shape else { return false };
    let operands = call.inputs.iter().chain(call.outputs);
    let slices = slices_of(&whole, operands.map(|operand| operand.ty.bytes()));
    let shape = AttentionShape { batch: whole.batch / slices, ..whole };
    let Some(bytes) = to.library.attention(&shape) else { return false };
    let inputs: &[AttentionTensor] =
        if shape.backward { &[Q, K, V, O, Lse, DO, Starts] } else { &[Q, K, V, Starts] };
    let outputs: &[AttentionTensor] = if shape.backward { &[DQ, DK, DV] } else { &[O, Lse] };
    let mark = to.mark();
    for slice in 0..slices {
        to.release(mark);
        let place = |operand: &Operand| operand.place.after((slice * operand.ty.bytes() / slices) as u64);
        let named = |names: &[AttentionTensor], operands: &[Operand]| -> Vec<(AttentionTensor, Place)> {
            names.iter().copied().zip(operands.iter().map(place)).collect()
        };
        let mut places = [named(inputs, call.inputs), named(outputs, call.outputs)].concat();
        if shape.backward {
            sums_of(to, &shape, &mut places);
        }
        let workspace = to.take(bytes);
        to.steps.push(StreamStep::Attention(Attention { shape, places, workspace, ragged: None }));
    }
    true
}

/// Room for the sums that a derivative keeps in memory.
fn sums_of(to: &mut Lowering, shape: &AttentionShape, places: &mut Vec<(AttentionTensor, Place)>) {
    let rows = (shape.batch * shape.length * shape.heads) as u64;
    places.push((AttentionTensor::Delta, to.take(4 * rows)));
    if !shape.deterministic {
        places.push((AttentionTensor::DqSum, to.take(4 * rows * shape.width as u64)));
    }
}

/// Slices of the batch into which a call is cut. A deterministic derivative keeps the gradients of all scores in
/// scratch; the slices bound that.
fn slices_of(shape: &AttentionShape, operands: impl Iterator<Item = usize>) -> usize {
    let sequence = 2 * shape.heads * shape.length * shape.length;
    let aligned = operands.into_iter().all(|bytes| (bytes / shape.batch).is_multiple_of(SLICE_ALIGNMENT));
    if !shape.deterministic || !aligned {
        return 1;
    }
    let most = (SCORES_BYTES / sequence).max(1);
    let slices = (1..=shape.batch).filter(|slices| shape.batch.is_multiple_of(*slices));
    slices.into_iter().find(|slices| shape.batch / slices <= most).unwrap_or(1)
}

pub(super) fn attention(to: &mut Lowering, call: &Call, mask: Mask, scale: f32) -> Result<(), ExecError> {
    let shape = shape_of(to, call, mask, scale, false);
    if by_ragged_library(to, call, shape) || by_library(to, call, shape) {
        return Ok(());
    }
    let tiled = Tiled::new(call, mask, scale)?;
    let mut args: Vec<Arg> = call.inputs[..3].iter().map(Operand::pointer).collect();
    args.push(starts(call, 3));
    args.extend(call.outputs.iter().map(Operand::pointer));
    tiled.launch(to, "attention", tiled.heads, [2, 1], args);
    Ok(())
}

pub(super) fn attention_grad(
    to: &mut Lowering,
    call: &Call,
    mask: Mask,
    scale: f32,
) -> Result<(), ExecError> {
    let shape = shape_of(to, call, mask, scale, true);
    if by_ragged_library(to, call, shape) || by_library(to, call, shape) {
        return Ok(());
    }
    let tiled = Tiled::new(call, mask, scale)?;
    let (o, lse, d_o) = (&call.inputs[3], &call.inputs[4], &call.inputs[5]);
    let rows = tiled.batch * tiled.length * tiled.heads;
    let mean = Arg::Pointer(to.take(4 * rows as u64));
    let args = vec![o.pointer(), d_o.pointer(), mean.clone(), i64(rows), tiled.geometry.clone()];
    to.launch(format!("attention_mean_{}", tiled.suffix), rows.div_ceil(8), 256, args);

    let mut shared: Vec<Arg> = call.inputs[..3].iter().map(Operand::pointer).collect();
    shared.extend([lse.pointer(), mean, d_o.pointer(), starts(call, 6)]);
    let outputs: Vec<Arg> = call.outputs.iter().map(Operand::pointer).collect();
    let args = [&shared[..], &outputs[1..]].concat();
    tiled.launch(to, "attention_grad_keys", tiled.key_heads, [4, 2], args);
    let args = [&shared[..], &outputs[..1]].concat();
    tiled.launch(to, "attention_grad_queries", tiled.heads, [4, 1], args);
    Ok(())
}

/// The first positions of documents, if they are given.
fn starts(call: &Call, index: usize) -> Arg {
    call.inputs.get(index).map_or(Arg::Null, Operand::pointer)
}

fn extents(call: &Call, x: &Operand) -> Result<[usize; 4], ExecError> {
    <[usize; 4]>::try_from(&x.shape()[..]).map_err(|_| unsupported(call, "wants four axes"))
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{Op, Type};

    use super::super::library::Signature;
    use super::super::{ALIGNMENT, Library, Limits, NoLibrary, PlacedOp, lower, needs};
    use super::*;

    /// A library with a plan for every attention, with the scratch of cuDNN's.
    #[derive(Debug)]
    struct Every;

    impl Library for Every {
        fn workspace(&self, signature: &Signature) -> Option<u64> {
            NoLibrary.workspace(signature)
        }

        fn attention(&self, shape: &AttentionShape) -> Option<u64> {
            let scores = 2 * (shape.batch * shape.heads * shape.length * shape.length) as u64;
            Some(if shape.deterministic { scores } else { 0 })
        }
    }

    const DIMS: [usize; 4] = [8, 2048, 32, 64]; // (B, T, H, D)

    fn operands(deterministic: bool) -> (Vec<StreamStep>, u64) {
        let [batch, length, heads, width] = DIMS;
        let half = |shape: [usize; 4]| Type { shape: shape.into(), dtype: DType::Bf16 };
        let query = half([batch, length, heads, width]);
        let key = half([batch, length, 8, width]);
        let lse = Type::f32([batch, heads, length]);
        let mut next = 0;
        let mut place = |ty: Type| {
            let place = Place(next);
            next = (next + ty.bytes() as u64).next_multiple_of(ALIGNMENT);
            Operand { place, ty, accumulate: false }
        };
        let inputs = [query, key, key, query, lse, query].map(&mut place);
        let outputs = [query, key, key].map(&mut place);
        let mask = Mask { causal: true, documents: false, window: None };
        let op = Op::AttentionGrad { mask, scale: 0.125 };
        let limits = Limits { deterministic, ..Limits::default() };
        let work = PlacedOp { op: &op, inputs: &inputs, outputs: &outputs, scratch: Place(next) };
        let types = |operands: &[Operand]| operands.iter().map(|operand| operand.ty).collect::<Vec<_>>();
        let needs = needs(&op, &types(&inputs), &types(&outputs), &Every, limits).unwrap();
        (lower(&work, &Every, limits).unwrap(), needs.scratch)
    }

    #[test]
    fn a_derivative_in_one_order_is_cut_into_slices_that_bound_its_scratch_and_cover_the_batch() {
        let (steps, scratch) = operands(true);
        let slices: Vec<&Attention> = steps
            .iter()
            .map(|step| match step {
                StreamStep::Attention(attention) => attention,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(slices.len(), 2);
        assert!(slices.iter().all(|slice| slice.shape.batch == 4));
        assert!(scratch < 3 * SCORES_BYTES as u64 / 2, "{scratch}");
        let [batch, length, heads, width] = DIMS;
        let half = (batch / 2 * length * heads * width * 2) as u64;
        for (tensor, rows) in
            [(AttentionTensor::Q, half), (AttentionTensor::DQ, half), (AttentionTensor::K, half / 4)]
        {
            let at =
                |slice: usize| slices[slice].places.iter().find(|(name, _)| *name == tensor).unwrap().1.0;
            assert_eq!(at(1) - at(0), rows, "{tensor:?}");
        }
        let scratch_of = |slice: usize| slices[slice].workspace;
        assert_eq!(scratch_of(0), scratch_of(1), "one after the other in the same bytes");
    }

    #[test]
    fn a_fast_derivative_takes_the_whole_batch_at_once() {
        assert_eq!(operands(false).0.len(), 1);
    }

    /// Lowers attention over documents, or its derivative, in the given form; its scratch begins after its operands.
    fn over_documents(op: &Op, documents: DocumentForm) -> (Vec<StreamStep>, Place, u64) {
        let [batch, length, heads, width] = DIMS;
        let half = |heads: usize| Type { shape: [batch, length, heads, width].into(), dtype: DType::Bf16 };
        let (query, key) = (half(heads), half(8));
        let lse = Type::f32([batch, heads, length]);
        let starts = Type { shape: [batch, length].into(), dtype: DType::I32 };
        let (inputs, outputs) = match op {
            Op::Attention { .. } => (vec![query, key, key, starts], vec![query, lse]),
            _ => (vec![query, key, key, query, lse, query, starts], vec![query, key, key]),
        };
        let mut next = 0;
        let mut place = |&ty: &Type| {
            let place = Place(next);
            next = (next + ty.bytes() as u64).next_multiple_of(ALIGNMENT);
            Operand { place, ty, accumulate: false }
        };
        let places: [Vec<Operand>; 2] =
            [&inputs, &outputs].map(|types| types.iter().map(&mut place).collect());
        let limits = Limits { documents, ..Limits::default() };
        let work = PlacedOp { op, inputs: &places[0], outputs: &places[1], scratch: Place(next) };
        let needs = needs(op, &inputs, &outputs, &Every, limits).unwrap();
        (lower(&work, &Every, limits).unwrap(), Place(next), needs.scratch)
    }

    #[test]
    fn documents_as_sequences_read_tables_of_their_starts_and_numbers_by_position() {
        let mask = Mask { causal: true, documents: true, window: None };
        for (op, before) in
            [(Op::Attention { mask, scale: 0.125 }, 0), (Op::AttentionGrad { mask, scale: 0.125 }, 1)]
        {
            let (steps, scratch, bytes) = over_documents(&op, DocumentForm::Ragged);
            assert_eq!(steps.len(), 2, "attention, and a transposition before or after it: {steps:?}");
            let StreamStep::Attention(attention) = &steps[before] else { panic!("{steps:?}") };
            assert_eq!(attention.shape.slots, Some(128), "one slot for 128 of 16,384 tokens");
            let starts = if before == 0 { 3 } else { 6 };
            let operands = attention.places.iter().filter(|(_, place)| place.0 < scratch.0).count();
            assert_eq!(operands, starts + if before == 0 { 1 } else { 2 }, "all but the numbers by position");
            assert!(attention.ragged.is_some_and(|place| place.0 < scratch.0));
            let most = attention.places.iter().map(|(_, place)| place.0).max().unwrap();
            assert!(most < scratch.0 + bytes && attention.workspace.0 <= scratch.0 + bytes);
        }
    }

    #[test]
    fn scratch_is_enough_for_either_form_and_without_tables_documents_are_a_mask() {
        let mask = Mask { causal: true, documents: true, window: None };
        let op = Op::AttentionGrad { mask, scale: 0.125 };
        let (steps, _, masked) = over_documents(&op, DocumentForm::Masked);
        let StreamStep::Attention(attention) = &steps[0] else { panic!("{steps:?}") };
        assert_eq!((attention.shape.slots, attention.ragged), (None, None));
        let (_, _, ragged) = over_documents(&op, DocumentForm::Ragged);
        assert_eq!(masked, ragged);
    }
}
