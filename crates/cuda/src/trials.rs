//! Cases beside the conformance cases of `exec`: activations in bf16, for kernels alone, and faulty ids or scores
//! (outside their tables, or NaN).
//!
//! Values between nodes are bf16; statistics, log-sum-exp, losses and rotary frequencies stay f32, as a precision policy
//! will have it. The reference rounds its f64 result once, so a kernel that computes in f32 and rounds once lies within
//! one place of it.

use plimsoll_exec::cases::{self, Case, Fill, Tolerance};
use plimsoll_graph::{DType, Op, Type, infer};

/// Half a place of bf16 is 2⁻⁹ of a number; a number near a tie may round to the other side.
const ROUNDED: Tolerance = Tolerance {
    relative: 1.0 / 128.0,
    reason: "an f32 result rounded once to bf16, perhaps to the other neighbour",
};
/// Logits and hidden values are rounded on their way to the result.
const TWICE: Tolerance =
    Tolerance { relative: 1.0 / 32.0, reason: "values inside the op are rounded to bf16 as well" };

/// Every case that can be posed with bf16 activations.
pub fn half_cases() -> Vec<Case> {
    let plain = |case: &&Case| {
        let twin = case.inputs.iter().any(|input| input.ty.dtype == DType::Bf16) || case.sums.is_some();
        !twin && !case.name.contains("half weight")
    };
    cases::all().iter().filter(plain).filter_map(halved).collect()
}

fn halved(case: &Case) -> Option<Case> {
    if case.op.updates()
        || matches!(case.op, Op::Cast { .. } | Op::Accumulate { .. } | Op::SumSquares | Op::ClipScale { .. })
    {
        return None; // has cases of its own element types
    }
    let mut half =
        Case { name: format!("{} in bf16", case.name), tolerance: tolerance(case), ..case.clone() };
    for (index, input) in half.inputs.iter_mut().enumerate() {
        let drawn = !matches!(input.fill, Fill::Frequencies | Fill::Forward { .. });
        if input.ty.dtype == DType::F32 && drawn && !stays_whole(&case.op, index) {
            input.ty.dtype = DType::Bf16;
        }
    }
    // A value stored by a forward op has the type that the op yields.
    for index in 0..half.inputs.len() {
        if let Fill::Forward { op, from, output } = &half.inputs[index].fill {
            let types: Vec<Type> = from.iter().map(|&from| half.inputs[from].ty).collect();
            half.inputs[index].ty = *infer(op, &types).ok()?.get(*output)?;
        }
    }
    let types: Vec<Type> = half.inputs.iter().map(|input| input.ty).collect();
    infer(&half.op, &types).ok().map(|_| half)
}

/// Cases whose ids lie outside their tables or whose scores are NaN: a device must report this, at the latest when
/// results are read.
pub fn faulty_cases() -> Vec<Case> {
    let faulty = |op: &str, input: usize, number: f32| {
        let case = cases::all().into_iter().find(|case| case.op.name() == op);
        case.map(|mut case| {
            case.inputs[input].fill = Fill::Number(number);
            case
        })
    };
    [
        ("embedding", 1, 1234.0),
        ("embedding_grad", 0, 1234.0),
        ("top_k", 0, f32::NAN),
        ("top_k_grad", 0, 1234.0),
        ("sort_by_expert", 0, 1234.0),
        ("expert_load", 1, 1234.0),
        ("cross_entropy", 1, 1234.0),
        ("cross_entropy_grad", 1, 1234.0),
        ("head_loss_grad", 2, 1234.0),
    ]
    .into_iter()
    .filter_map(|(op, input, number)| faulty(op, input, number))
    .collect()
}

/// Scalars, and statistics that a case draws instead of storing.
fn stays_whole(op: &Op, index: usize) -> bool {
    match op {
        Op::CrossEntropy { .. } | Op::CrossEntropyGrad { .. } => index == 2,
        Op::HeadLoss(_) | Op::HeadLossGrad { .. } | Op::HeadErrors { .. } => index == 3,
        Op::LayerNormGradWeight => index == 1 || index == 2,
        Op::RmsNormGradWeight => index == 1,
        _ => false,
    }
}

fn tolerance(case: &Case) -> Tolerance {
    match case.op {
        Op::HeadLoss(_) | Op::HeadLossGrad { .. } | Op::Mlp(_) | Op::MlpGrad { .. } => TWICE,
        _ if case.tolerance.relative <= 0.0 => case.tolerance,
        _ => ROUNDED,
    }
}
