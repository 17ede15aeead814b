//! Cases of sums, of the norm of gradients and of the optimizers, with state of every element type.

use plimsoll_graph::op::{
    Adafactor, AdamW, Apollo, ApolloScaling, Estimate, Lion, Moments, Muon, ProbeStep, Sgd, Stored, Weights,
};
use plimsoll_graph::{DType, Op, Shape, Type};

use super::building::{DEEP, FUNCTION, LONG, ROUNDED, both_ways, case, integers, named, normal, scalar};
use super::{Case, Fill, Input};

/// Every way to keep weights, each with a way to keep moments.
const STORED: [Stored; 5] = [
    Stored { weights: Weights::F32, moments: Moments::F32 },
    Stored { weights: Weights::F32, moments: Moments::Blocks },
    Stored { weights: Weights::Split, moments: Moments::Bf16 },
    Stored { weights: Weights::Stochastic { stream: 77 }, moments: Moments::F32 },
    Stored { weights: Weights::Stochastic { stream: 78 }, moments: Moments::Blocks },
];

pub(super) fn all() -> Vec<Case> {
    [sums(), clipping(), sgd(), adamw(), lion(), adafactor(), muon(), apollo(), probes()].concat()
}

fn half(shape: Shape) -> Input {
    Input { ty: Type { shape, dtype: DType::Bf16 }, fill: Fill::Normal(1.0) }
}

fn sums() -> Vec<Case> {
    let shapes: [Shape; 4] = [[1].into(), [7, 13].into(), [3, 5, 33].into(), [129, 257].into()];
    let mut cases = Vec::new();
    for shape in shapes {
        cases.extend(both_ways(case(Op::Accumulate { to: DType::F32 }, vec![normal(shape)], ROUNDED)));
        cases.push(case(Op::SumSquares, vec![normal(shape)], LONG));
        cases.push(case(Op::SumSquares, vec![half(shape)], LONG));
    }
    cases.extend(both_ways(case(Op::Accumulate { to: DType::Bf16 }, vec![normal([7, 113])], ROUNDED)));
    cases.push(case(Op::SumSquares, shapes.map(normal).to_vec(), LONG));
    cases
}

fn clipping() -> Vec<Case> {
    let mut cases = Vec::new();
    for max_norm in [None, Some(1.0), Some(100.0)] {
        let clip = |number| case(Op::ClipScale { max_norm }, vec![scalar(number)], ROUNDED);
        cases.extend([
            named(clip(49.0), "of 7"),
            named(clip(0.0), "of 0"),
            named(clip(f32::INFINITY), "overflow"),
        ]);
        let several = vec![scalar(9.0), scalar(0.5), scalar(39.5)];
        cases.push(named(case(Op::ClipScale { max_norm }, several, ROUNDED), "of three sums"));
    }
    cases
}

/// A gradient of each element type, the scalars, and the input that random rounding draws from.
fn inputs(grad: Input, scalars: &[f32], stored: Stored) -> Vec<Input> {
    let rng = stored.is_random().then(|| integers([4], Fill::Rng));
    [grad].into_iter().chain(scalars.iter().map(|&number| scalar(number))).chain(rng).collect()
}

fn sgd() -> Vec<Case> {
    let mut cases = Vec::new();
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        for stored in STORED {
            let op = Op::Sgd(Sgd { momentum, nesterov, weight_decay: 0.1, stored });
            for (grad, scale) in
                [(normal([3, 257]), 0.3), (half([7, 13].into()), 1.0), (normal([9]), f32::NAN)]
            {
                let inputs = inputs(grad, &[1e-2, scale], stored);
                cases.push(named(case(op.clone(), inputs, FUNCTION), &format!("scale {scale}")));
            }
        }
    }
    cases
}

fn adamw() -> Vec<Case> {
    let mut cases = Vec::new();
    let op = |stored| Op::AdamW(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1, stored });
    let mut push = |grad: Input, step: f32, scale: f32, stored: Stored| {
        let inputs = inputs(grad, &[1e-2, step, scale], stored);
        cases.push(named(case(op(stored), inputs, FUNCTION), &format!("scale {scale}")));
    };
    push(normal([129, 257]), 1000.0, 0.3, STORED[0]);
    for stored in STORED {
        push(normal([1]), 1.0, 1.0, stored);
        push(normal([3, 257]), 1000.0, 0.3, stored);
        push(half([7, 113].into()), 2.0, 1.0, stored);
        push(normal([7, 13]), 1.0, f32::NAN, stored);
    }
    cases
}

fn lion() -> Vec<Case> {
    let mut cases = Vec::new();
    for stored in STORED {
        let op = Op::Lion(Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, stored });
        for (grad, scale) in [(normal([3, 257]), 0.3), (half([7, 113].into()), 1.0), (normal([9]), f32::NAN)]
        {
            let inputs = inputs(grad, &[1e-2, scale], stored);
            cases.push(named(case(op.clone(), inputs, FUNCTION), &format!("scale {scale}")));
        }
    }
    cases
}

const ADAFACTOR: Adafactor = Adafactor {
    decay_rate: -0.8,
    epsilon: 1e-30,
    clip_threshold: 1.0,
    weight_decay: 0.1,
    stored: Stored { weights: Weights::F32, moments: Moments::F32 },
};

fn adafactor() -> Vec<Case> {
    let mut cases = Vec::new();
    for stored in [STORED[0], STORED[2], STORED[3]] {
        let op = Op::Adafactor(Adafactor { stored, ..ADAFACTOR });
        for (grad, step, scale) in [
            (normal([129, 257]), 1.0, 0.3),
            (normal([2, 5, 33]), 2.0, 1.0),
            (half([7, 300].into()), 1000.0, 1.0),
            (normal([1]), 1.0, 1.0),
            (normal([301]), 7.0, 2.0),
            (normal([7, 13]), 1.0, f32::NAN),
        ] {
            let inputs = inputs(grad, &[1e-2, step, scale], stored);
            cases.push(named(case(op.clone(), inputs, FUNCTION), &format!("step {step} scale {scale}")));
        }
    }
    cases
}

/// The iteration multiplies the roundings of small singular values by up to 3.4⁵, and a step is small beside a weight. A
/// device may iterate in the type of gradients: 3 % of a step in bf16, so those steps are smaller still.
fn muon() -> Vec<Case> {
    let mut cases = Vec::new();
    for (stored, nesterov) in [(STORED[0], true), (STORED[2], true), (STORED[3], false)] {
        let op = Op::Muon(Muon { momentum: 0.95, nesterov, weight_decay: 0.1, stored });
        for (grad, lr, scale) in [
            (normal([40, 65]), 1e-2, 0.3),
            (half([65, 24].into()), 2e-3, 1.0),
            (normal([2, 9, 7]), 1e-2, 1.0),
            (normal([1, 5]), 1e-2, 1.0),
            (normal([7, 13]), 1e-2, f32::NAN),
        ] {
            let inputs = inputs(grad, &[lr, scale], stored);
            cases.push(named(case(op.clone(), inputs, DEEP), &format!("scale {scale}")));
        }
    }
    cases
}

/// A product, its norms and their quotients: relative errors of sums of a few hundred terms, a few of them together. The step
/// is small beside the weights; the norms themselves and moments in bf16 show them whole.
fn apollo() -> Vec<Case> {
    let mut cases = Vec::new();
    for (stored, scaling) in [
        (STORED[0], ApolloScaling::Channel),
        (STORED[2], ApolloScaling::Channel),
        (STORED[3], ApolloScaling::Tensor),
    ] {
        let op = Op::Apollo(Apollo { scaling, stored, ..APOLLO });
        for (grad, step, scale) in [
            (normal([40, 65]), 1.0, 0.3),
            (half([65, 24].into()), 3.0, 1.0),
            (normal([2, 9, 7]), 5.0, 1.0),
            (normal([7, 300]), 1000.0, 1.0),
            (normal([7, 13]), 1.0, f32::NAN),
        ] {
            let rng = integers([4], Fill::Rng);
            let scalars = [1e-2, step, scale].map(scalar);
            let inputs = [grad].into_iter().chain(scalars).chain([rng]).collect();
            cases.push(named(case(op.clone(), inputs, DEEP), &format!("step {step} scale {scale}")));
        }
    }
    cases
}

const APOLLO: Apollo = Apollo {
    rank: 5,
    gap: 4,
    scale: 2.0,
    scaling: ApolloScaling::Channel,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
    stream: 9,
    stored: Stored { weights: Weights::F32, moments: Moments::F32 },
};

/// Copies and steps in every element type, of several directions, with losses that are not finite.
fn probes() -> Vec<Case> {
    let (probe, size) = (integers([4], Fill::Rng), scalar(0.25));
    let mut cases = Vec::new();
    for w in [normal([3, 257]), half([7, 113].into()), normal([1]), half([129, 257].into())] {
        let inputs = vec![w, probe.clone(), size.clone()];
        cases.push(case(Op::Perturb { stream: 5 }, inputs, ROUNDED));
    }
    for y in [normal([2, 3, 300]), half([2, 3, 9].into())] {
        let inputs = vec![y, integers([2, 3], Fill::Below(70_000)), probe.clone(), size.clone()];
        cases.push(case(Op::PerturbRows { stream: 6 }, inputs, ROUNDED));
    }
    for stored in [STORED[0], STORED[2], STORED[3]] {
        for (ranked, directions) in [(false, 1), (true, 5)] {
            let estimate = Estimate { size: 0.25, ranked };
            for shape in [Shape::from([3, 257]), [7].into()] {
                let losses = Input { ty: Type::f32([directions, 2]), fill: Fill::Normal(1.0) };
                let rng = stored.is_random().then(|| integers([4], Fill::Rng));
                let inputs = [scalar(1e-2), probe.clone(), losses].into_iter().chain(rng).collect();
                let op = ProbeStep { shape, stream: 7, estimate, weight_decay: 0.1, stored };
                cases.push(case(Op::ProbeStep(op), inputs, FUNCTION));
            }
        }
    }
    cases
}

/// Parameters of each case of `reference/ops.py`.
pub(super) fn golden() -> Vec<(&'static str, Op)> {
    let stored = Stored::default();
    let (beta2, epsilon) = (1.0 - 1.0 / 1024.0, 1.0 / 1_048_576.0);
    let rates = AdamW { beta1: 0.875, beta2, epsilon, weight_decay: 0.125, stored };
    let sgd = |momentum, nesterov| Op::Sgd(Sgd { momentum, nesterov, weight_decay: 0.125, stored });
    let probe_step = |ranked| {
        let estimate = Estimate { size: 0.25, ranked };
        let (shape, stream) = ([5, 7].into(), 0x0123_4567_89ab_cdef);
        Op::ProbeStep(ProbeStep { shape, stream, estimate, weight_decay: 0.125, stored })
    };
    let muon = Muon { momentum: 0.9375, nesterov: true, weight_decay: 0.125, stored };
    let apollo = |scaling| {
        let (stream, weight_decay) = (0x0123_4567_89ab_cdef, 0.125);
        Op::Apollo(Apollo { rank: 3, beta1: 0.875, beta2, epsilon, scaling, stream, weight_decay, ..APOLLO })
    };
    vec![
        ("accumulate.adding", Op::Accumulate { to: DType::F32 }),
        ("sum_squares.two", Op::SumSquares),
        ("clip_scale.above", Op::ClipScale { max_norm: Some(1.0) }),
        ("clip_scale.below", Op::ClipScale { max_norm: Some(100.0) }),
        ("sgd.plain", sgd(0.0, false)),
        ("sgd.momentum", sgd(0.875, false)),
        ("sgd.nesterov", sgd(0.875, true)),
        ("adamw.step1", Op::AdamW(rates)),
        ("adamw.step2", Op::AdamW(rates)),
        ("lion.second", Op::Lion(Lion { beta1: 0.875, beta2, weight_decay: 0.125, stored })),
        ("adafactor.matrix", Op::Adafactor(Adafactor { weight_decay: 0.125, ..ADAFACTOR })),
        ("adafactor.vector", Op::Adafactor(Adafactor { weight_decay: 0.125, ..ADAFACTOR })),
        ("muon.wide", Op::Muon(muon)),
        ("muon.tall", Op::Muon(muon)),
        ("apollo.wide", apollo(ApolloScaling::Channel)),
        ("apollo.tall", apollo(ApolloScaling::Channel)),
        ("apollo.tensor", apollo(ApolloScaling::Tensor)),
        ("perturb.plain", Op::Perturb { stream: 0x0123_4567_89ab_cdef }),
        ("perturb_rows.plain", Op::PerturbRows { stream: 0x0123_4567_89ab_cdef }),
        ("probe_step.slope", probe_step(false)),
        ("probe_step.rank", probe_step(true)),
    ]
}
