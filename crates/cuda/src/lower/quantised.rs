//! Weights in few bits, made whole right before they are read.

use plimsoll_exec::ExecError;
use plimsoll_graph::op::{Dequantise, Quantised};

use super::lowering::{Call, Lowering, Operand, i64, suffix};

/// Threads of a block, and 4-bit codes of a thread.
const THREADS: u32 = 256;
const CODES: usize = 8;

pub(super) fn dequantise(to: &mut Lowering, call: &Call, of: Dequantise) -> Result<(), ExecError> {
    let (count, suffix) = (call.outputs[0].count(), suffix(call, of.to)?);
    let (name, each) = match of.form {
        Quantised::Nf4 => ("nf4", CODES),
        Quantised::Nf4Double => ("double", CODES),
        Quantised::Int8 => ("int8", 1),
    };
    let columns = (of.form == Quantised::Int8).then(|| i64(of.shape[1]));
    let operands = call.inputs.iter().chain(call.outputs).map(Operand::pointer);
    let args = operands.chain(columns).chain([i64(count)]).collect();
    let blocks = count.div_ceil(each * THREADS as usize);
    to.launch(format!("dequantise_{name}_{suffix}"), blocks, THREADS, args);
    Ok(())
}
