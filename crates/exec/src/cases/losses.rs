//! Cases of losses and the fused head.

use plimsoll_graph::Op;
use plimsoll_graph::op::Head;

use super::building::{
    DEEP, EXACT, IGNORE, both_ways, cancelling, case, floats, integers, named, normal, scalar,
};
use super::{Case, Fill};

pub(super) fn all() -> Vec<Case> {
    [cross_entropy(), head_loss(), head_errors()].concat()
}

fn cross_entropy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, words) in [(1, 2), (5, 7), (33, 101), (200, 50)] {
        for (suffix, words_used) in [("", words), ("all ignored", 0)] {
            let targets = integers([rows], Fill::Targets { words: words_used, ignore_index: IGNORE });
            let inputs = vec![floats([rows, words], Fill::Normal(3.0)), targets, scalar(0.125)];
            let ops =
                [Op::CrossEntropy { ignore_index: IGNORE }, Op::CrossEntropyGrad { ignore_index: IGNORE }];
            // Where the target is all but certain, logits of magnitude 1 cancel, and so does 1 − p.
            let scaled = |op| cancelling(case(op, inputs.clone(), DEEP), 0.125);
            cases.extend(ops.map(|op| named(scaled(op), suffix)));
        }
    }
    cases
}

fn head_loss() -> Vec<Case> {
    let mut cases = Vec::new();
    // (rows, width, words)
    for (rows, width, words) in [(1, 3, 5), (7, 5, 11), (129, 64, 131), (200, 33, 57)] {
        for (bias, second) in [(false, 0), (true, 0), (false, 2), (true, 70)] {
            let head = Head { ignore_index: IGNORE, bias, second: second > 0 };
            let targets = integers([rows], Fill::Targets { words, ignore_index: IGNORE });
            let weight = floats([words, width], Fill::Normal(0.3));
            let mut inputs = vec![normal([rows, width]), weight, targets, scalar(0.03)];
            inputs.extend(bias.then(|| normal([words])));
            if head.second {
                inputs.extend([normal([rows, second]), floats([words, second], Fill::Picks)]);
            }
            // As for the cross-entropy on its own.
            let scaled = |op| cancelling(case(op, inputs.clone(), DEEP), 0.03);
            let gradient = |weight, bias| scaled(Op::HeadLossGrad { head, weight, bias });
            cases.push(scaled(Op::HeadLoss(head)));
            cases.push(gradient(false, false));
            cases.extend(both_ways(gradient(true, bias)));
            if bias {
                cases.extend(both_ways(gradient(false, true)));
            }
        }
    }
    cases
}

/// Logits are small whole numbers, which every element type holds: many are equal, and none is rounded.
fn head_errors() -> Vec<Case> {
    let mut cases = Vec::new();
    // (rows, width, words, rows of a sequence)
    for (rows, width, words, length) in [(1, 3, 5, 1), (6, 9, 3, 3), (132, 70, 2, 33), (200, 33, 57, 50)] {
        for (bias, second, answers) in
            [(false, 0, None), (true, 2, None), (false, 0, Some(length)), (true, 3, Some(length))]
        {
            let head = Head { ignore_index: IGNORE, bias, second: second > 0 };
            let targets = integers([rows], Fill::Targets { words, ignore_index: IGNORE });
            let weight = floats([words, width], Fill::Below(4));
            let mut inputs = vec![floats([rows, width], Fill::Picks), weight, targets, scalar(0.125)];
            inputs.extend(bias.then(|| floats([words], Fill::Below(3))));
            if head.second {
                inputs.extend([floats([rows, second], Fill::Below(2)), floats([words, second], Fill::Picks)]);
            }
            cases.push(case(Op::HeadErrors { head, answers }, inputs, EXACT));
        }
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let head = |bias| Head { ignore_index: -100, bias, second: false };
    let second = Head { second: true, ..head(false) };
    let gradient = |bias| Op::HeadLossGrad { head: head(bias), weight: true, bias };
    vec![
        ("cross_entropy.plain", Op::CrossEntropy { ignore_index: -100 }),
        ("cross_entropy_grad.plain", Op::CrossEntropyGrad { ignore_index: -100 }),
        ("head_loss.plain", Op::HeadLoss(head(false))),
        ("head_loss.bias", Op::HeadLoss(head(true))),
        ("head_loss_grad.plain", gradient(false)),
        ("head_loss_grad.bias", gradient(true)),
        ("head_loss_grad.adding", gradient(false)),
        ("head_loss.second", Op::HeadLoss(second)),
        ("head_loss_grad.second", Op::HeadLossGrad { head: second, weight: true, bias: false }),
        ("head_errors.tokens", Op::HeadErrors { head: head(false), answers: None }),
        ("head_errors.answers", Op::HeadErrors { head: head(false), answers: Some(6) }),
    ]
}
