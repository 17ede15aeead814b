//! Cases of loads of experts, and of the losses of routers.

use plimsoll_graph::Op;
use plimsoll_graph::op::Balance;

use super::building::{EXACT, IGNORE, ROUNDED, SUMMED, case, floats, integers, named, normal, scalar};
use super::{Case, Fill, Input};

pub(super) fn all() -> Vec<Case> {
    [loads(), balances(), scores(), biases()].concat()
}

/// `(sequences, tokens, experts, chosen)`.
const SIZES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 7, 5, 2], [3, 40, 8, 1], [2, 130, 67, 8]];

/// Marks of tokens, 1 for a token and 0 for padding; about half are padding.
pub(super) fn present(rows: usize, length: usize) -> Input {
    integers([rows, length], Fill::Below(2))
}

fn targets(rows: usize, length: usize) -> Input {
    integers([rows, length], Fill::Targets { words: 9, ignore_index: IGNORE })
}

fn loads() -> Vec<Case> {
    let mut cases = Vec::new();
    for [rows, length, experts, chosen] in SIZES {
        for (ignored, marks) in [(IGNORE, targets(rows, length)), (0, present(rows, length))] {
            let p = floats([rows, length, experts], Fill::Squares(0.4));
            let indices = integers([rows, length, chosen], Fill::Distinct(experts));
            let inputs = vec![p, indices, marks.clone()];
            cases.push(case(Op::ExpertLoad { ignored }, inputs, SUMMED));
            let inputs = vec![normal([rows, experts]), marks];
            cases.push(case(Op::ExpertLoadGrad { ignored }, inputs, EXACT));
        }
    }
    cases
}

fn balances() -> Vec<Case> {
    let mut cases = Vec::new();
    for [rows, length, experts, chosen] in SIZES {
        for (whole, layers) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let balance = Balance { chosen, whole, ignore_index: IGNORE };
            // Sums of any sign, so that the loss stays as small as its derivative.
            let load = || normal([rows, experts]);
            let counts = || floats([rows, experts], Fill::Below(7));
            let begin = [scalar(0.3), targets(rows, length)];
            let both = (0..layers).flat_map(|_| [load(), counts()]);
            let inputs = begin.iter().cloned().chain(both).collect();
            cases.push(case(Op::BalanceLoss(balance), inputs, ROUNDED));
            let inputs =
                [scalar(0.7)].into_iter().chain(begin).chain((0..layers).map(|_| counts())).collect();
            cases.push(case(Op::BalanceLossGrad(balance), inputs, ROUNDED));
        }
    }
    cases
}

fn scores() -> Vec<Case> {
    let mut cases = Vec::new();
    for [rows, length, ..] in SIZES {
        let lse = normal([rows * length]);
        let inputs = vec![scalar(0.3), targets(rows, length), lse.clone()];
        cases.push(case(Op::RouterZLoss { ignore_index: IGNORE }, inputs, ROUNDED));
        let inputs = vec![scalar(0.7), scalar(0.3), targets(rows, length), lse];
        cases.push(case(Op::RouterZLossGrad { ignore_index: IGNORE }, inputs, ROUNDED));
    }
    cases
}

fn biases() -> Vec<Case> {
    let op = Op::Steer { rate: 0.25 };
    let mut cases = Vec::new();
    for [rows, _, experts, _] in SIZES {
        for scale in [0.5, f32::NAN] {
            let inputs = vec![floats([rows, experts], Fill::Below(7)), scalar(scale)];
            cases.push(named(case(op.clone(), inputs, ROUNDED), &format!("scale {scale}")));
        }
    }
    // All experts have the same load.
    cases.push(named(case(op, vec![floats([3, 8], Fill::Number(2.0)), scalar(1.0)], ROUNDED), "even"));
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let balance = |whole| Balance { chosen: 2, whole, ignore_index: IGNORE };
    vec![
        ("expert_load.present", Op::ExpertLoad { ignored: 0 }),
        ("expert_load.valid", Op::ExpertLoad { ignored: IGNORE }),
        ("count_copies.capacity", Op::CountCopies { experts: 4 }),
        ("steer.counts", Op::Steer { rate: 0.125 }),
        ("expert_load_grad.valid", Op::ExpertLoadGrad { ignored: IGNORE }),
        ("balance_loss.sequences", Op::BalanceLoss(balance(false))),
        ("balance_loss.whole", Op::BalanceLoss(balance(true))),
        ("balance_loss_grad.sequences", Op::BalanceLossGrad(balance(false))),
        ("balance_loss_grad.whole", Op::BalanceLossGrad(balance(true))),
        ("router_z_loss.valid", Op::RouterZLoss { ignore_index: IGNORE }),
        ("router_z_loss_grad.valid", Op::RouterZLossGrad { ignore_index: IGNORE }),
    ]
}
