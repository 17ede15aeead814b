//! Two-dimensional convolutions: one launch each.

use plimsoll_exec::ExecError;
use plimsoll_graph::Shape;
use plimsoll_graph::op::Conv;

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, suffix};

pub(super) fn conv2d(to: &mut Lowering, call: &Call, conv: Conv, bias: bool) -> Result<(), ExecError> {
    let (x, w, y) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let (bias, bias_kind) =
        if bias { (call.inputs[2].pointer(), call.inputs[2].kind()) } else { (Arg::Null, Arg::I32(0)) };
    let geometry = geometry(x.shape(), w.shape(), y.shape(), conv);
    let args = vec![x.pointer(), w.pointer(), w.kind(), bias, bias_kind, y.pointer(), geometry];
    to.launch(format!("conv2d_{}", suffix(call, x.ty.dtype)?), blocks(y.count(), 1), 256, args);
    Ok(())
}

pub(super) fn conv2d_grad_input(to: &mut Lowering, call: &Call, conv: Conv) -> Result<(), ExecError> {
    let (w, dy, dx) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let geometry = geometry(dx.shape(), w.shape(), dy.shape(), conv);
    let args = vec![w.pointer(), w.kind(), dy.pointer(), dx.pointer(), geometry];
    let kernel = format!("conv2d_grad_input_{}", suffix(call, dy.ty.dtype)?);
    to.launch(kernel, blocks(dx.count(), 1), 256, args);
    Ok(())
}

pub(super) fn conv2d_grad_weight(to: &mut Lowering, call: &Call, conv: Conv) -> Result<(), ExecError> {
    let (x, dy, dw) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let geometry = geometry(x.shape(), dw.shape(), dy.shape(), conv);
    let args = vec![x.pointer(), dy.pointer(), dw.pointer(), dw.kind(), geometry, dw.adds()];
    to.launch(format!("conv2d_grad_weight_{}", suffix(call, x.ty.dtype)?), dw.count(), 256, args);
    Ok(())
}

/// The struct `Conv` of `conv.cu`: image (B, C, Y, X), window (O, C, h, w), result (B, O, Y', X').
fn geometry(image: Shape, window: Shape, result: Shape, conv: Conv) -> Arg {
    let extents = [
        image[0],
        image[1],
        window[0],
        image[2],
        image[3],
        window[2],
        window[3],
        result[2],
        result[3],
        conv.stride,
        conv.padding,
    ];
    Arg::Struct(extents.iter().map(|&extent| Arg::I32(extent as i32)).collect())
}
