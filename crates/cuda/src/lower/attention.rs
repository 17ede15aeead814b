//! Rotary positions; attention by the library where it has a plan for the shape, else by the plain tiled kernels.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::Mask;

use super::elementwise::blocks;
use super::launch::{Arg, Step};
use super::library::{Attention, AttentionShape, AttentionTensor};
use super::lowering::{Call, Lowering, Operand, i32, i64, suffix, unsupported};
use super::place::Place;

/// Widths of a head that kernels are compiled for; a narrower one is filled up.
const WIDTHS: [usize; 4] = [32, 64, 128, 256];
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

    /// A launch with so many tiles of rows, and of scores, in shared memory.
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
        backward,
        deterministic,
        scale_bits: scale.to_bits(),
    };
    takes.then_some(shape)
}

/// Has the library run a call, if it has a plan for it.
fn by_library(to: &mut Lowering, call: &Call, shape: Option<AttentionShape>) -> bool {
    use AttentionTensor::{DK, DO, DQ, DV, Delta, DqSum, K, Lse, O, Q, Starts, V};
    let Some((shape, bytes)) = shape.and_then(|shape| Some((shape, to.library.attention(&shape)?))) else {
        return false;
    };
    let names: &[AttentionTensor] =
        if shape.backward { &[Q, K, V, O, Lse, DO, Starts] } else { &[Q, K, V, Starts] };
    let results: &[AttentionTensor] = if shape.backward { &[DQ, DK, DV] } else { &[O, Lse] };
    let inputs = names.iter().zip(call.inputs).map(|(name, operand)| (*name, operand.place));
    let outputs = results.iter().zip(call.outputs).map(|(name, operand)| (*name, operand.place));
    let mut places: Vec<(AttentionTensor, Place)> = inputs.chain(outputs).collect();
    let rows = (shape.batch * shape.length * shape.heads) as u64;
    if shape.backward {
        places.push((Delta, to.take(4 * rows)));
    }
    if shape.backward && !shape.deterministic {
        places.push((DqSum, to.take(4 * rows * shape.width as u64)));
    }
    let workspace = to.take(bytes);
    to.steps.push(Step::Attention(Attention { shape, places, workspace }));
    true
}

pub(super) fn attention(to: &mut Lowering, call: &Call, mask: Mask, scale: f32) -> Result<(), ExecError> {
    if by_library(to, call, shape_of(to, call, mask, scale, false)) {
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
    if by_library(to, call, shape_of(to, call, mask, scale, true)) {
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
