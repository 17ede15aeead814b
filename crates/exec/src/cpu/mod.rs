//! The CPU device's fast kernels: one function per op, beside the size of the scratch it needs. Each file lists its ops
//! in its own `run` and `workspace`; the families here say in which files to look.
//!
//! Each is judged against the reference kernel of the same name. None allocates.

mod activation;
mod adafactor;
mod apollo;
mod attention;
mod attention_grad;
mod balance;
mod blocks;
mod bounce;
mod bound;
mod call;
mod cast;
mod conv;
mod device;
mod disk;
mod disk_file;
mod disk_ranges;
mod disk_speed;
mod dropout;
mod element;
mod elementwise;
mod embedding;
mod exp;
mod experts;
#[cfg(address_sanitizer)]
mod gaps;
mod grouped;
mod head;
mod lanes;
mod linear;
mod matmul;
mod microkernel;
mod mlp;
mod movement;
mod muon;
mod norms;
mod own_shard;
mod pack;
mod pairs;
mod pieces;
mod pool;
mod probes;
mod quantised;
mod reduce;
mod room;
mod rope;
mod rounded;
mod routing;
mod simd;
mod softmax;
mod split;
mod stored;
mod subspace;
mod sums;
mod tile;
#[cfg(test)]
mod trial;
mod updates;
mod visibility;

use plimsoll_graph::op::Family;
use plimsoll_graph::{Op, Type};
use plimsoll_plan::Workspace;

use crate::ExecError;
pub use crate::instructions::Instructions;
pub use call::{Call, CpuOperand, ScratchMemory};
pub use device::CpuDevice;
pub use disk::{BLOCK, DiskTier, OUTSIDE_BYTES};
pub use disk_speed::{DiskSpeed, disk_room, measure_disk};
pub use pool::Pool;
pub use room::free_disk_bytes;

/// Runs one op.
///
/// # Errors
///
/// When the data is bad or there is no kernel for these element types.
///
/// # Safety
///
/// Every operand and the workspace are aligned, valid for their whole length as long as the call runs, and touched by
/// nothing else meanwhile; inputs are initialised; the bytes of an output overlap those of no other operand, except
/// that they may be exactly those of an input which the op may overwrite.
#[allow(unsafe_code, reason = "kernels trust their operands; see Safety")]
pub unsafe fn run(call: &Call) -> Result<(), ExecError> {
    let ran = match call.op.family() {
        Family::Movement => movement::run(call).or_else(|| cast::run(call)),
        Family::Elementwise => {
            elementwise::run(call).or_else(|| activation::run(call)).or_else(|| dropout::run(call))
        }
        Family::Products => linear::run(call).or_else(|| conv::run(call)),
        Family::Norms => norms::run(call).or_else(|| softmax::run(call)).or_else(|| sums::run(call)),
        Family::Transformer => attention::run(call)
            .or_else(|| attention_grad::run(call))
            .or_else(|| rope::run(call))
            .or_else(|| embedding::run(call)),
        Family::Network => mlp::run(call),
        Family::Routing => routing::run(call),
        Family::Experts => experts::run(call).or_else(|| grouped::run(call)),
        Family::Balance => balance::run(call),
        Family::Quantised => quantised::run(call),
        Family::Subspace => subspace::run(call),
        Family::Losses => head::run(call).or_else(|| softmax::run(call)),
        Family::State => updates::run(call)
            .or_else(|| adafactor::run(call))
            .or_else(|| muon::run(call))
            .or_else(|| apollo::run(call))
            .or_else(|| probes::run(call))
            .or_else(|| elementwise::run(call)),
        // An exchange goes through the communicator, and a shard depends on the rank: neither is a kernel.
        Family::Ranks => None,
    };
    ran.unwrap_or_else(|| {
        Err(ExecError::Unsupported(format!("the CPU has no kernel for `{}`", call.op.name())))
    })
}

/// Scratch memory of one op on a pool of `threads`; none for ops whose file names none.
pub fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], threads: usize) -> Workspace {
    let files = [
        linear::workspace,
        conv::workspace,
        sums::workspace,
        attention::workspace,
        attention_grad::workspace,
        mlp::workspace,
        softmax::workspace,
        experts::workspace,
        grouped::workspace,
        head::workspace,
        updates::workspace,
        adafactor::workspace,
        muon::workspace,
        apollo::workspace,
        subspace::workspace,
        probes::workspace,
    ];
    files.iter().find_map(|file| file(op, inputs, outputs, threads)).unwrap_or_default()
}
