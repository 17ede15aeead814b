//! Parameters as probes read them: perturbed copies, which leave the parameters as they are.

use plimsoll_exec::ExecError;

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64};

pub(super) fn perturb(to: &mut Lowering, call: &Call, stream: u64) -> Result<(), ExecError> {
    let (w, copy) = (&call.inputs[0], &call.outputs[0]);
    let drawn = call.inputs[1..].iter().map(Operand::pointer);
    let mut args = vec![w.pointer(), w.kind(), copy.pointer()];
    args.extend(drawn.chain([Arg::U64(stream), i64(w.count())]));
    to.launch("perturb", blocks(w.count(), 4), 256, args);
    Ok(())
}

pub(super) fn perturb_rows(to: &mut Lowering, call: &Call, stream: u64) -> Result<(), ExecError> {
    let (y, result) = (&call.inputs[0], &call.outputs[0]);
    let drawn = call.inputs[1..].iter().map(Operand::pointer);
    let mut args = vec![y.pointer(), y.kind(), result.pointer()];
    args.extend(drawn.chain([Arg::U64(stream), i64(y.shape().columns()), i64(y.count())]));
    to.launch("perturb_rows", blocks(y.count(), 1), 256, args);
    Ok(())
}
