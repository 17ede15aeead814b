//! Mixtures of experts, which have no CUDA kernels yet: their ops are refused before memory is taken.

use plimsoll_exec::ExecError;
use plimsoll_graph::Op;
use plimsoll_graph::op::Family;

use super::lowering::{Call, Lowering, unsupported};

/// Whether a GPU computes the op.
pub(crate) fn has_kernel(op: &Op) -> bool {
    !matches!(op.family(), Family::Experts | Family::Balance)
}

/// Refuses an op of experts or of their balance and says where it runs.
pub(super) fn refuse(_: &mut Lowering, call: &Call) -> Result<(), ExecError> {
    Err(unsupported(call, "has no CUDA kernel yet; train mixtures of experts with `--device cpu`"))
}

#[cfg(test)]
mod tests {
    use plimsoll_exec::cases;

    use super::*;
    use crate::lower::{Limits, NoLibrary, needs};

    #[test]
    fn ops_of_experts_are_refused_by_name_with_a_way_out_and_all_others_are_not() {
        for case in cases::all() {
            let inputs: Vec<_> = case.inputs.iter().map(|input| input.ty).collect();
            let answer = needs(&case.op, &inputs, &case.output_types(), &NoLibrary, Limits::default());
            match answer {
                Ok(_) => assert!(has_kernel(&case.op), "{}", case.name),
                Err(error) => {
                    let told = format!(
                        "{} has no CUDA kernel yet; train mixtures of experts with `--device cpu`",
                        case.op.name()
                    );
                    assert!(error.to_string().contains(&told), "{}: {error}", case.name);
                }
            }
        }
    }
}
