//! Every optimizer and every way to keep its state: against PyTorch, against sums done by hand, and against itself
//! under other plans.
//!
//! The golden file and what it holds: `reference/optimizers.py`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use half::bf16;
use plimsoll_exec::{Data, rounding};
use plimsoll_graph::op::ApolloScaling;
use plimsoll_graph::{Axes, DType, Graph, GraphError, Init, Op, StateKind};
use plimsoll_plan::Strategy;
use plimsoll_train::{
    FEWEST_FOR_CODES, FloatStorage, LowRank, Optimizer, OptimizerKind, Options, Run, StateStorage,
    TrainError, WeightStorage,
};

use crate::support::{Batch, Golden, Size, families, gpt2, lasting_bits, llama, options, parameters, start};

const ROWS: usize = 65;
const COLUMNS: usize = 64;
const COUNT: usize = ROWS * COLUMNS;
const LR: f32 = 1.0 / 128.0;

const F32: StateStorage =
    StateStorage { weights: WeightStorage::F32, gradients: FloatStorage::F32, moments: FloatStorage::F32 };
const HALF_MOMENTS: StateStorage = StateStorage { moments: FloatStorage::Bf16, ..F32 };
const MASTER: StateStorage = StateStorage { weights: WeightStorage::Bf16Master, ..F32 };
const RANDOM: StateStorage = StateStorage { weights: WeightStorage::Bf16, ..F32 };
const HALVES: StateStorage =
    StateStorage { weights: WeightStorage::Bf16, gradients: FloatStorage::Bf16, moments: FloatStorage::Bf16 };

/// The numbers of `reference/optimizers.py`.
fn numbers(seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..COUNT).map(|_| next()).collect()
}

fn gradient(step: u32) -> Vec<f32> {
    let scaled = |(i, x): (usize, f32)| {
        let none = step % 3 == 2 && i % 7 == 3;
        if none { 0.0 } else { x * 0.5f32.powi((i % 11) as i32) }
    };
    numbers(1000 + step).into_iter().enumerate().map(scaled).collect()
}

/// A model whose gradient is its input: the loss is `Σ w·x`.
fn given_gradient(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [rows, ROWS, COLUMNS], DType::F32);
    let w = g.param("w", [ROWS, COLUMNS], Init::Fill(0.0));
    let product = g.mul(x, w);
    let loss = g.apply(Op::Sum { axes: Axes::of(0..3) }, &[product]);
    g.output("loss", loss);
    g.finish()
}

/// The same for a weight that is the operand of a product, with the input transposed: the loss is `Σ (1·wᵀ)·x`.
fn given_gradient_of_a_product(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [rows, COLUMNS, ROWS], DType::F32);
    let w = g.param("w", [ROWS, COLUMNS], Init::Fill(0.0));
    let identity = (0..COLUMNS * COLUMNS).map(|i| if i % (COLUMNS + 1) == 0 { 1.0 } else { 0.0 });
    let identity = g.constant("identity", [COLUMNS, COLUMNS], identity.collect());
    let y = g.linear(identity, w, None); // (in, out)
    let product = g.mul(x, y);
    let loss = g.apply(Op::Sum { axes: Axes::of(0..3) }, &[product]);
    g.output("loss", loss);
    g.finish()
}

fn ten_steps(optimizer: Optimizer, storage: StateStorage, seed: u64) -> Run {
    steps(optimizer, storage, seed, 10)
}

fn steps(optimizer: Optimizer, storage: StateStorage, seed: u64, count: u32) -> Run {
    let options = Options {
        memory: Some(1 << 30),
        micro_batch: Some(1),
        optimizer: Optimizer { max_grad_norm: None, ..optimizer },
        storage,
        seed,
        threads: 2,
        ..Options::default()
    };
    let of_product = matches!(optimizer.kind, OptimizerKind::Muon | OptimizerKind::Apollo);
    let mut run = if of_product {
        Run::new(given_gradient_of_a_product, &options)
    } else {
        Run::new(given_gradient, &options)
    }
    .unwrap();
    run.set_state("w", &numbers(1)).unwrap();
    for step in 1..=count {
        let gradient = gradient(step);
        let turned = (0..COUNT).map(|i| gradient[i % ROWS * COLUMNS + i / ROWS]).collect();
        let x: Vec<f32> = if of_product { turned } else { gradient };
        run.step(LR, &[[("x", Data::F32(&x))]]).unwrap();
    }
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    run
}

fn adamw(kind: OptimizerKind) -> Optimizer {
    let (beta1, beta2, epsilon) = (0.875, 0.96875, 1.0 / 1_048_576.0);
    Optimizer { kind, beta1, beta2, epsilon, weight_decay: 0.125, ..Optimizer::default() }
}

fn sgd(momentum: f32, nesterov: bool) -> Optimizer {
    Optimizer { kind: OptimizerKind::Sgd, momentum, nesterov, weight_decay: 0.125, ..Optimizer::default() }
}

fn golden(name: &str) -> Vec<f32> {
    Golden::read("optimizers").floats(name)
}

fn golden_codes(name: &str) -> Vec<f32> {
    Golden::read("optimizers").bytes(name).into_iter().map(f32::from).collect()
}

fn differences(got: &[f32], expected: &[f32]) -> Vec<f32> {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).collect()
}

fn largest(differences: &[f32]) -> f32 {
    differences.iter().fold(0.0, |largest, &x| if x > largest || x.is_nan() { x } else { largest })
}

#[test]
fn ten_steps_of_every_plain_optimizer_are_those_of_pytorch() {
    let cases = [
        ("sgd", sgd(0.0, false)),
        ("sgd_momentum", sgd(0.875, false)),
        ("sgd_nesterov", sgd(0.875, true)),
        ("adamw", adamw(OptimizerKind::AdamW)),
        ("lion", adamw(OptimizerKind::Lion)),
        ("adafactor", adamw(OptimizerKind::Adafactor)),
    ];
    for (name, optimizer) in cases {
        let weight = ten_steps(optimizer, F32, 0).state("w").unwrap();
        // Numbers below 1, ten roundings of half a unit in the last place, 2⁻²⁴, each.
        let apart = largest(&differences(&weight, &golden(name)));
        assert!(apart < 6e-7, "{name}: {apart}");
    }
}

/// bitsandbytes looks codes up in a coarse table, so some that lie near the middle of two numbers become the other one. A code
/// that is off by one turns the sign of a step only where moment and gradient nearly cancel.
#[test]
fn steps_of_lion_with_a_moment_of_eight_bits_are_those_of_bitsandbytes_but_for_its_neighbouring_codes() {
    let lion = adamw(OptimizerKind::Lion8bit);
    let few = steps(lion, F32, 0, 3).state("w").unwrap();
    assert!(largest(&differences(&few, &golden("lion_8bit.few"))) < 6e-7);
    let first = steps(lion, F32, 0, 1);
    assert!(largest(&differences(&first.state("m_scale.w").unwrap(), &golden("lion_8bit.m_scale"))) <= 0.0);
    let codes = differences(&first.state("m.w").unwrap(), &golden_codes("lion_8bit.m"));
    let other = codes.iter().filter(|&&apart| apart > 0.0).count();
    assert!(largest(&codes) <= 2.0 && other < COUNT / 40, "{other} of {COUNT} codes");
    let weight = ten_steps(lion, F32, 0).state("w").unwrap();
    let apart = differences(&weight, &golden("lion_8bit"));
    let turned = apart.iter().filter(|&&apart| apart > 6e-7).count();
    // An update with the wrong sign is off by two steps.
    assert!(turned < COUNT / 50 && largest(&apart) < 4.5 * LR, "{turned} of {COUNT} elements");
}

#[test]
fn ten_steps_of_muon_are_those_of_pytorch_with_its_iteration_in_f32() {
    let muon = Optimizer {
        kind: OptimizerKind::Muon,
        momentum: 0.9375,
        nesterov: true,
        ..adamw(OptimizerKind::Muon)
    };
    let apart = largest(&differences(&ten_steps(muon, F32, 0).state("w").unwrap(), &golden("muon")));
    // The iteration multiplies the roundings of small singular values by up to 3.4⁵; torch's own, in bf16, is 8e-4 off.
    assert!(apart < 2e-5, "{apart}");
}

#[test]
fn ten_steps_of_apollo_are_those_of_its_authors_with_our_projections() {
    for (name, scaling) in
        [("apollo_channel", ApolloScaling::Channel), ("apollo_tensor", ApolloScaling::Tensor)]
    {
        let low_rank = LowRank { rank: 8, gap: 4, scale: 2.0, scaling };
        let run = ten_steps(Optimizer { low_rank, ..adamw(OptimizerKind::Apollo) }, F32, 0);
        let apart = largest(&differences(&run.state("w").unwrap(), &golden(name)));
        // Numbers below 1, ten roundings of half a unit in the last place, 2⁻²⁴, each; and norms of f32 sums, whose
        // errors, a few units, are parts of a step of 2⁻⁷.
        assert!(apart < 1e-6, "{name}: {apart}");
    }
}

#[test]
fn apollo_keeps_moments_of_projections_and_leaves_small_matrices_tables_and_vectors_to_adamw() {
    let low_rank = LowRank { rank: 40, ..LowRank::default() };
    let optimizer = Optimizer { low_rank, ..Optimizer::of(OptimizerKind::Apollo) };
    for (name, model) in families(SIZE) {
        let run = start(&model, SIZE.seq, &Options { optimizer, ..options(4, 2, Strategy::Full, 1) });
        let shape = |state: String| run.states().find(|(known, _)| *known == state).map(|(_, ty)| ty.shape);
        let tables = ["embed", "wte", "wpe", "lm_head", "embeddings", "decoder"];
        let mut projected = 0;
        for parameter in parameters(&run) {
            let whole = shape(parameter.clone()).unwrap();
            let hidden = whole.len() == 2 && !tables.iter().any(|table| parameter.contains(table));
            let low = hidden && whole[0].min(whole[1]) > 40;
            let moments = if low { [whole[0].max(whole[1]), 40].into() } else { whole };
            for moment in ["m", "v"] {
                assert_eq!(shape(format!("{moment}.{parameter}")), Some(moments), "{name}: {parameter}");
            }
            assert_eq!(shape(format!("norm.{parameter}")).is_some(), low, "{name}: {parameter}");
            projected += usize::from(low);
        }
        assert!(projected > 0, "{name}");
    }
}

#[test]
fn muon_steps_matrices_that_products_read_and_leaves_tables_and_vectors_to_adamw() {
    for (name, model) in families(SIZE) {
        let options =
            Options { optimizer: Optimizer::of(OptimizerKind::Muon), ..options(4, 2, Strategy::Full, 1) };
        let run = start(&model, SIZE.seq, &options);
        let has = |state: String| run.states().any(|(known, _)| known == state);
        let by_adamw: Vec<String> =
            parameters(&run).into_iter().filter(|name| has(format!("v.{name}"))).collect();
        let tables = ["embed", "wte", "wpe", "lm_head", "embeddings", "decoder"];
        for parameter in parameters(&run) {
            let vector = run.states().any(|(known, ty)| known == parameter && ty.shape.len() < 2);
            let expected = vector || tables.iter().any(|table| parameter.contains(table));
            assert_eq!(by_adamw.contains(&parameter), expected, "{name}: {parameter}");
            assert!(has(format!("m.{parameter}")), "{name}: {parameter}");
        }
    }
}

#[test]
fn a_master_copy_takes_the_steps_of_f32_and_the_weights_are_its_nearest_bf16() {
    let run = ten_steps(adamw(OptimizerKind::AdamW), MASTER, 0);
    let (upper, lower) = (run.state("w").unwrap(), run.state("low.w").unwrap());
    let halves = upper.iter().zip(&lower);
    let master: Vec<f32> =
        halves.map(|(&upper, &lower)| rounding::join(bf16::from_f32(upper), lower as i16)).collect();
    let apart = largest(&differences(&master, &golden("adamw_master")));
    assert!(apart < 6e-7, "{apart}");
    for (upper, master) in upper.iter().zip(master) {
        assert!((upper - master).abs() <= (bf16::from_f32(master).to_f32() - master).abs());
    }
}

#[test]
fn moments_in_bf16_are_those_of_pytorch_rounded_between_steps() {
    let weight = ten_steps(adamw(OptimizerKind::AdamW), HALF_MOMENTS, 0).state("w").unwrap();
    let apart = differences(&weight, &golden("adamw_half_moments"));
    // Where a moment lies halfway between two bf16, one rounding of f32 decides: 2⁻⁸ of a step at most.
    assert!(largest(&apart) < LR / 256.0, "{}", largest(&apart));
    assert!(apart.iter().filter(|&&x| x > 6e-7).count() < COUNT / 100);
}

#[test]
fn ten_steps_in_eight_bits_are_those_of_the_reference() {
    let run = ten_steps(adamw(OptimizerKind::AdamW8bit), F32, 0);
    let apart = differences(&run.state("w").unwrap(), &golden("adamw_8bit"));
    // A number that lies between two codes may take the other one when its last bit differs: at most one in a
    // thousand does, and then the weight is off by less than a step.
    assert!(apart.iter().filter(|&&x| x > 1e-6).count() <= COUNT / 1000, "{}", largest(&apart));
    assert!(largest(&apart) < LR, "{}", largest(&apart));
    for moment in ["m", "v"] {
        let codes = differences(
            &run.state(&format!("{moment}.w")).unwrap(),
            &golden_codes(&format!("codes.{moment}")),
        );
        assert!(largest(&codes) <= 1.0 && codes.iter().filter(|&&x| x > 0.0).count() <= COUNT / 1000);
        let scales = golden(&format!("scale.{moment}"));
        let apart = differences(&run.state(&format!("{moment}_scale.w")).unwrap(), &scales);
        assert!(apart.iter().zip(&scales).all(|(apart, scale)| *apart <= 1e-6 * scale), "{moment}");
    }
    // Where a gradient is 0, m still moves the weight. Had v become zero in eight bits, the weight would leap.
    let exact = golden("adamw");
    assert!(largest(&differences(&run.state("w").unwrap(), &exact)) < 10.0 * LR);
}

#[test]
fn rounding_at_random_is_right_on_average_and_never_the_same_for_two_seeds() {
    let exact = ten_steps(adamw(OptimizerKind::AdamW), MASTER, 0);
    let master = exact.state("w").unwrap();
    let errors = |seed: u64| -> Vec<f64> {
        let rounded = ten_steps(adamw(OptimizerKind::AdamW), RANDOM, seed).state("w").unwrap();
        rounded.iter().zip(&master).map(|(a, b)| f64::from(a - b)).collect()
    };
    let (first, second) = (errors(1), errors(2));
    for errors in [&first, &second] {
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let deviation = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        // Ten roundings of gaps up to 2⁻⁹ and the master's own: the mean of 4160 is 64 times less.
        assert!(deviation > 1e-4 && deviation < 5e-3, "{deviation}");
        assert!(mean.abs() < 4.0 * deviation / 64.0, "{mean} of {deviation}");
    }
    assert_ne!(first, second);
}

/// All optimizers, each with some way to keep its state.
fn variants() -> Vec<(Optimizer, StateStorage)> {
    let storages = [F32, HALF_MOMENTS, MASTER, RANDOM, HALVES];
    let mut variants: Vec<(Optimizer, StateStorage)> =
        storages.iter().map(|&storage| (Optimizer::default(), storage)).collect();
    let of = |kind| Optimizer { kind, ..Optimizer::default() };
    let heavy = Optimizer { momentum: 0.9, ..of(OptimizerKind::Sgd) };
    variants.extend([F32, HALVES].map(|storage| (of(OptimizerKind::AdamW8bit), storage)));
    variants.extend([(of(OptimizerKind::Sgd), F32), (heavy, F32), (heavy, HALVES)]);
    variants.extend([(of(OptimizerKind::Lion), F32), (of(OptimizerKind::Lion8bit), HALVES)]);
    variants.extend([F32, MASTER, HALVES].map(|storage| (of(OptimizerKind::Adafactor), storage)));
    variants.extend([F32, MASTER, HALVES].map(|storage| (Optimizer::of(OptimizerKind::Muon), storage)));
    let apollo = Optimizer { low_rank: LOW_RANK, ..Optimizer::of(OptimizerKind::Apollo) };
    variants.extend([F32, MASTER, HALVES].map(|storage| (apollo, storage)));
    variants
}

/// Projections that change between the steps of a test.
const LOW_RANK: LowRank = LowRank { rank: 16, gap: 2, scale: 1.0, scaling: ApolloScaling::Channel };

const SIZE: Size = Size { vocab: 130, seq: 24, width: 64, layers: 2, ffn: 136, dropout: 0.1 };

fn trained(
    optimizer: Optimizer,
    storage: StateStorage,
    strategy: Strategy,
    threads: usize,
) -> (Run, Vec<f32>) {
    let options = Options { optimizer, storage, ..options(4, 2, strategy, threads) };
    let mut run = start(&gpt2(SIZE), SIZE.seq, &options);
    let mut losses = Vec::new();
    for _ in 0..4 {
        let batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0);
        losses.push(batch.step(&mut run, 1e-2).0.iter().sum());
    }
    (run, losses)
}

#[test]
fn whatever_is_kept_how_the_peak_is_the_planned_one_and_no_plan_changes_a_bit() {
    for (optimizer, storage) in variants() {
        let what = format!("{:?} {storage:?}", optimizer.kind);
        let (run, losses) = trained(optimizer, storage, Strategy::None, 1);
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{what}");
        assert!(losses[3] < losses[0], "{what}: {losses:?}");
        for (strategy, threads) in [(Strategy::Full, 2), (Strategy::Minimal, 1)] {
            let (other, same) = trained(optimizer, storage, strategy, threads);
            assert_eq!(other.engine().measured_peak(), other.plan().arena_bytes, "{what}, {strategy}");
            assert_eq!(same, losses, "{what}, {strategy}");
            assert!(lasting_bits(&other) == lasting_bits(&run), "{what}, {strategy} on {threads} threads");
        }
    }
}

#[test]
fn state_takes_the_bytes_one_computes_by_hand() {
    for (optimizer, storage) in variants() {
        let options = Options { optimizer, storage, ..options(4, 2, Strategy::Full, 1) };
        let run = start(&llama(SIZE), SIZE.seq, &options);
        let names = parameters(&run);
        let shape = |name: &String| run.states().find(|(known, _)| known == name).unwrap().1.shape;
        let (mut weights, mut gradients, mut moments) = (0, 0, 0);
        for (n, shape) in names.iter().map(shape).map(|shape| (shape.elements(), shape)) {
            weights += if storage.weights == WeightStorage::F32 { 4 * n } else { 2 * n };
            gradients += if storage.gradients == FloatStorage::F32 { 4 * n } else { 2 * n };
            let one = if storage.moments == FloatStorage::F32 { 4 * n } else { 2 * n };
            moments += match optimizer.kind {
                OptimizerKind::AdamW8bit if n >= FEWEST_FOR_CODES => 2 * n + 8 * n.div_ceil(256),
                OptimizerKind::AdamW | OptimizerKind::AdamW8bit => 2 * one,
                OptimizerKind::Sgd if optimizer.momentum > 0.0 => one,
                OptimizerKind::Sgd => 0,
                OptimizerKind::Lion8bit if n >= FEWEST_FOR_CODES => n + 4 * n.div_ceil(256),
                OptimizerKind::Adafactor if shape.len() < 2 => 4 * n,
                OptimizerKind::Adafactor => 4 * (shape[0] + shape[1]),
                // Only tables and vectors have second moments. In this model the tables have the vocabulary's extent, and the vectors
                // belong to norms.
                OptimizerKind::Muon | OptimizerKind::Apollo if shape.len() < 2 || shape[0] == SIZE.vocab => {
                    2 * one
                }
                OptimizerKind::Muon | OptimizerKind::Lion | OptimizerKind::Lion8bit => one,
                // For each line of the longer side: two moments in each of 16 dimensions, and a norm.
                OptimizerKind::Apollo => 2 * 16 * one / shape[0].min(shape[1]) + 4,
                OptimizerKind::Mezo | OptimizerKind::Es => unreachable!("has no gradients"),
            };
            moments += if storage.weights == WeightStorage::Bf16Master { 2 * n } else { 0 };
        }
        let held = |matches: &dyn Fn(&str) -> bool| -> usize {
            run.states().filter(|(name, _)| matches(name)).map(|(_, ty)| ty.bytes()).sum()
        };
        assert_eq!(held(&|name| names.iter().any(|known| known == name)), weights);
        assert_eq!(held(&|name| name.starts_with("grad.")), gradients);
        let prefixes = ["low.", "m.", "v.", "m_scale.", "v_scale.", "v_row.", "v_col.", "norm."];
        assert_eq!(held(&|name| prefixes.iter().any(|prefix| name.starts_with(prefix))), moments);
    }
}

/// `ZeRO`'s count for `AdamW` is 16 bytes a parameter: in f32 4 + 4 + 8; in mixed precision 2 + 2 + 12, of which the
/// 16-bit weight is the upper half of the master copy here and takes nothing.
#[test]
fn a_parameter_takes_sixteen_bytes_as_published_and_two_less_where_halves_are_shared() {
    let mixed = StateStorage { gradients: FloatStorage::Bf16, ..MASTER };
    for (storage, each) in [(F32, 16), (mixed, 14)] {
        let run = start(&llama(SIZE), SIZE.seq, &Options { storage, ..options(4, 2, Strategy::Full, 1) });
        let elements: usize = run.parameters(true).map(|(_, ty)| ty.shape.elements()).sum();
        let lasting = run.states_of(|kind| kind != StateKind::Constant);
        let bytes: usize = lasting.map(|(_, ty)| ty.bytes()).sum();
        assert_eq!(bytes, each * elements, "{storage:?}");
    }
}

#[test]
fn weights_in_bf16_save_memory_also_at_the_peak() {
    let peak = |storage| {
        let options = Options { storage, ..options(4, 1, Strategy::None, 1) };
        let size = Size { vocab: 2000, seq: 8, ..SIZE };
        let run = start(&llama(size), size.seq, &options);
        let weights: usize = parameters(&run)
            .iter()
            .map(|name| run.states().find(|(known, _)| known == name).unwrap().1.shape.elements())
            .sum();
        (run.plan().arena_bytes.0, weights as u64)
    };
    let ((wide, elements), (narrow, _)) = (peak(F32), peak(RANDOM));
    // Two bytes of each weight, and the widened copies of norms and chosen rows.
    assert!(wide - narrow > 2 * elements * 95 / 100, "{wide} {narrow} {elements}");
}

#[test]
fn a_norm_that_is_not_finite_leaves_every_number_as_it_was() {
    for (optimizer, storage) in variants() {
        let (mut run, _) = trained(optimizer, storage, Strategy::Full, 2);
        let before = lasting_bits(&run);
        let (batch, name) =
            (Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 1), "transformer.h.1.ln_1.bias");
        let mut step = run.begin(1e-2, batch.valid() as u64);
        batch.backward(&mut step, 2);
        let mut gradient = step.gradient(name).unwrap();
        gradient[3] = f32::NAN;
        step.set_gradient(name, &gradient).unwrap();
        assert!(matches!(step.finish(), Err(TrainError::NotFinite { what: "gradient norm", .. })));
        assert!(lasting_bits(&run) == before, "{:?} {storage:?}", optimizer.kind);
    }
}

#[test]
fn the_parameters_that_decay_are_those_hugging_face_decays() {
    for (name, model) in families(Size::GOLDEN) {
        let expected = Golden::read("optimizers").bytes(&format!("decay.{name}"));
        let expected = String::from_utf8(expected).unwrap();
        let expected: Vec<&str> = expected.lines().collect();
        // Without gradients, a step at rate 1 with decay ½ halves the weights that decay and leaves the others alone.
        let optimizer = Optimizer { weight_decay: 0.5, ..Optimizer::default() };
        let options = Options { optimizer, ..options(2, 2, Strategy::Full, 1) };
        let mut run = start(&model, Size::GOLDEN.seq, &options);
        let names = parameters(&run);
        for parameter in &names {
            let ones = vec![1.0; run.state(parameter).unwrap().len()];
            run.set_state(parameter, &ones).unwrap();
        }
        let batch = Batch::synthetic(2, Size::GOLDEN.seq, Size::GOLDEN.vocab, name == "bert", 0);
        let mut step = run.begin(1.0, batch.valid() as u64);
        batch.backward(&mut step, 2);
        for parameter in &names {
            let zeros = vec![0.0; step.gradient(parameter).unwrap().len()];
            step.set_gradient(parameter, &zeros).unwrap();
        }
        step.finish().unwrap();
        let decayed: Vec<&String> =
            names.iter().filter(|parameter| run.state(parameter).unwrap()[0] < 0.75).collect();
        assert_eq!(decayed, expected, "{name}");
    }
}
