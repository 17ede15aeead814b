//! Training without a backward pass: against a script that draws the same perturbations, byte by byte against inference, and
//! against itself on other threads, after a checkpoint and over a frozen base in 4 bits.
//!
//! The golden file and its contents: `reference/zeroth_order.py`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::path::Path;

use plimsoll_graph::{Op, Phase, StateKind};
use plimsoll_model::IGNORED;
use plimsoll_plan::{Costed, Program, Purpose, Role, Strategy, spans, timeline};
use plimsoll_train::{
    Config, Fitness, FloatStorage, LanguageModel, Optimizer, OptimizerKind, Options, RawConfig, Run,
    StateStorage, TrainError, WeightStorage, plan_for, program,
};

use crate::support::{Batch, Golden, Size, distance, gpt2, lasting_bits, llama, options, start};

const SIZE: Size = Size { vocab: 130, seq: 24, width: 64, layers: 2, ffn: 136, dropout: 0.1 };
const F32: StateStorage =
    StateStorage { weights: WeightStorage::F32, gradients: FloatStorage::F32, moments: FloatStorage::F32 };
const STORAGES: [StateStorage; 3] = [
    F32,
    StateStorage { weights: WeightStorage::Bf16Master, ..F32 },
    StateStorage { weights: WeightStorage::Bf16, ..F32 },
];

fn method(kind: OptimizerKind, directions: usize) -> Optimizer {
    Optimizer { directions, probe_size: 1.0 / 64.0, weight_decay: 0.125, ..Optimizer::of(kind) }
}

fn trained_names(run: &Run) -> Vec<String> {
    run.parameters(false).map(|(name, _)| name.to_owned()).collect()
}

/// Losses and slopes of ten steps of the golden model, in micro-batches of `rows`.
fn ten_steps(optimizer: Optimizer, lr: f32, rows: usize) -> (Run, Vec<f32>, Vec<f32>) {
    let golden = Golden::read("llama");
    let batch = golden.batch();
    let options = Options { optimizer, ..options(batch.rows(), rows, Strategy::None, 2) };
    let mut run = start(&llama(Size::GOLDEN), Size::GOLDEN.seq, &options);
    for name in trained_names(&run) {
        run.set_state(&name, &golden.floats(&name)).unwrap();
    }
    let steps: Vec<(f32, f32)> = (0..10)
        .map(|_| {
            let (losses, slope) = batch.step(&mut run, lr);
            (losses.iter().sum(), slope)
        })
        .collect();
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    let (losses, slopes) = steps.into_iter().unzip();
    (run, losses, slopes)
}

#[test]
fn ten_steps_are_those_of_a_script_that_draws_the_same_perturbations() {
    let golden = Golden::read("zeroth_order");
    let cases = [("mezo", OptimizerKind::Mezo, 2, 1.0 / 512.0), ("es", OptimizerKind::Es, 4, 1.0 / 32.0)];
    for (name, kind, directions, lr) in cases {
        // Micro-batches of two rows: their losses are summed before they are compared.
        for rows in [4, 2] {
            let (run, losses, slopes) = ten_steps(method(kind, directions), lr, rows);
            // Losses of fp32 differ by some 1e-7; their differences, divided by the distance of the probes, by some 1e-5.
            let apart = distance(&losses, &golden.floats(&format!("{name}.losses")));
            assert!(apart < 2e-6, "{name}, rows {rows}: losses {apart}");
            let weight = run.state("model.layers.1.mlp.down_proj.weight").unwrap();
            let apart = distance(&weight, &golden.floats(&format!("{name}.final")));
            assert!(apart < 2e-5, "{name}, rows {rows}: weight {apart}");
            if kind == OptimizerKind::Mezo {
                let apart = distance(&slopes, &golden.floats("mezo.slopes"));
                assert!(apart < 1e-4, "rows {rows}: slopes {apart}");
            }
        }
    }
}

/// The most bytes of a purpose that the schedule of a role has alive at one time.
fn most(program: &Program, run: &Run, role: Role, purpose: Purpose) -> u64 {
    let Costed { graph, .. } = program.part(role).unwrap();
    let schedule = &run.plan().schedules[&role];
    let moments = timeline(&spans(graph, schedule), schedule.actions.len());
    moments.iter().map(|moment| moment[purpose as usize]).max().unwrap_or(0)
}

#[test]
fn memory_is_that_of_inference_and_the_largest_perturbed_copy() {
    for (kind, storage) in [(OptimizerKind::Mezo, F32), (OptimizerKind::Es, STORAGES[2])] {
        let optimizer = method(kind, 3);
        let options = Options { optimizer, storage, evaluate: true, ..options(4, 2, Strategy::None, 2) };
        let architecture = gpt2(SIZE);
        let model = LanguageModel { architecture, seq_len: SIZE.seq, generate: false, lora: None };
        let device = plimsoll_devices::cpu(2).unwrap();
        let program = program(&model, &*device, &options, 2).unwrap();
        let graph = &program.train.graph;
        assert!(graph.nodes().iter().all(|node| node.phase != Phase::Backward));
        let idle = |kind| matches!(kind, StateKind::Gradient | StateKind::Transient | StateKind::Moment);
        assert!(!graph.states().iter().any(|state| idle(state.kind)), "no gradients and no moments");
        assert_eq!((program.probes(), program.passes()), (6, 6));

        let mut run = start(&gpt2(SIZE), SIZE.seq, &options);
        Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0).step(&mut run, 1e-3);
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
        let activations = |role| most(&program, &run, role, Purpose::Activations);
        // Inference has the same values. The probe and its distance are two inputs more, of one alignment each.
        let inputs = 2 * program.train.facts.alignment;
        assert_eq!(activations(Role::First) - inputs, activations(Role::Evaluate), "{kind:?}");
        let copies = graph.nodes().iter().filter(|node| matches!(node.op, Op::Perturb { .. }));
        let largest = copies.map(|node| graph.ty(node.outputs[0]).bytes() as u64).max().unwrap();
        let perturbed = most(&program, &run, Role::First, Purpose::Perturbed);
        // A network reads several weights at once, so several copies may be alive, but never those of two readers.
        assert!((largest..4 * largest).contains(&perturbed), "{perturbed} of {largest}");
        assert_eq!(most(&program, &run, Role::Evaluate, Purpose::Perturbed), 0);
    }
}

#[test]
fn threads_change_no_bit_and_every_kind_of_weight_learns() {
    for (kind, lr) in [(OptimizerKind::Mezo, 1e-3), (OptimizerKind::Es, 3e-2)] {
        for storage in STORAGES {
            let train = |threads: usize| {
                let options =
                    Options { optimizer: method(kind, 4), storage, ..options(4, 2, Strategy::None, threads) };
                let mut run = start(&gpt2(SIZE), SIZE.seq, &options);
                let batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0);
                let losses: Vec<f32> = (0..12).map(|_| batch.step(&mut run, lr).0.iter().sum()).collect();
                (losses, lasting_bits(&run))
            };
            let (losses, bits) = train(1);
            assert!(losses[11] < losses[0], "{kind:?} {storage:?}: {losses:?}");
            assert!(train(2) == (losses, bits), "{kind:?} {storage:?}");
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_leaves_every_number_as_it_was() {
    for kind in [OptimizerKind::Mezo, OptimizerKind::Es] {
        let options = Options { optimizer: method(kind, 2), ..options(4, 4, Strategy::None, 1) };
        let mut run = start(&gpt2(SIZE), SIZE.seq, &options);
        let name = "transformer.ln_f.weight";
        let mut weight = run.state(name).unwrap();
        weight[3] = f32::NAN;
        run.set_state(name, &weight).unwrap();
        let before = lasting_bits(&run);
        let batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0);
        let mut step = run.begin(1e-3, batch.valid() as u64);
        batch.backward(&mut step, 4);
        assert!(matches!(step.finish(), Err(TrainError::NotFinite { step: 1, what: "loss" })), "{kind:?}");
        assert!(lasting_bits(&run) == before && run.is_whole(), "{kind:?}");
    }
}

#[test]
fn a_run_that_continues_draws_what_it_would_have_drawn() {
    let options = Options { optimizer: method(OptimizerKind::Mezo, 2), ..options(4, 2, Strategy::None, 1) };
    let batch = |step| Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, step);
    let mut whole = start(&gpt2(SIZE), SIZE.seq, &options);
    (0..3).for_each(|step| drop(batch(step).step(&mut whole, 1e-3)));
    let mut half = start(&gpt2(SIZE), SIZE.seq, &options);
    half.continue_after(3);
    for name in trained_names(&whole) {
        half.set_state(&name, &whole.state(&name).unwrap()).unwrap();
    }
    for step in 3..6 {
        assert_eq!(batch(step).step(&mut whole, 1e-3), batch(step).step(&mut half, 1e-3));
    }
    assert!(lasting_bits(&whole) == lasting_bits(&half));
}

#[test]
fn a_noise_schedule_moves_the_probes_and_slopes_have_none() {
    let batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 0);
    let start = |probe_size, kind| {
        let optimizer = Optimizer { probe_size, ..method(kind, 2) };
        start(&gpt2(SIZE), SIZE.seq, &Options { optimizer, ..options(4, 4, Strategy::None, 1) })
    };
    let step = |mut run: Run| (batch.step(&mut run, 1e-2), lasting_bits(&run));
    let mut scaled = start(1.0 / 64.0, OptimizerKind::Es);
    scaled.scale_probes(0.25).unwrap();
    // Quarters of powers of two are exact, so the run is the very one that was planned for that distance.
    assert_eq!(step(scaled), step(start(1.0 / 256.0, OptimizerKind::Es)));
    assert!(step(start(1.0 / 64.0, OptimizerKind::Es)) != step(start(1.0 / 256.0, OptimizerKind::Es)));
    let why = start(1.0 / 64.0, OptimizerKind::Mezo).scale_probes(0.25).unwrap_err().to_string();
    assert_eq!(why, "only the probes of `optim es` change their distance");
}

#[test]
fn adapters_over_a_frozen_base_in_four_bits_are_all_that_is_perturbed() {
    let testdata =
        |folder: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(folder);
    let raw = RawConfig {
        model: Some(testdata("llama").display().to_string()),
        adapter: Some(testdata("llama").join("adapter")),
        load_in_4bit: Some(true),
        optim: Some("mezo".into()),
        zo_eps: Some(1.0 / 64.0),
        zo_directions: Some(4),
        seq_len: Some(16),
        global_batch: Some(4),
        micro_batch: Some(4),
        memory: Some("2GiB".into()),
        threads: Some(2),
        costs: Some("modelled".into()),
        synthetic: Some(true),
        ..RawConfig::default()
    };
    let config = Config::check(&raw).unwrap();
    let device = config.options.plain_device().unwrap();
    let planned = plan_for(&config.model, &*device, &config.options).unwrap();
    let graph = &planned.choice.program.train.graph;
    let frozen = graph.nodes().iter().filter(|node| matches!(node.op, Op::Dequantise(_))).count();
    let of_adapters =
        |value| graph.value(value).state.is_some_and(|(state, _)| graph.state(state).name.contains("lora_"));
    let copies = graph.nodes().iter().filter(|node| matches!(node.op, Op::Perturb { .. }));
    assert!(
        frozen > 0 && copies.clone().count() > 0 && copies.clone().all(|node| of_adapters(node.inputs[0]))
    );
    let mut run = Run::start(device, planned, config.options.seed).unwrap();
    config.load(&mut run).unwrap();
    let golden = Golden::read("quantised/llama/golden");
    let losses: Vec<f32> = (0..12).map(|_| golden.batch().step(&mut run, 3e-3).0.iter().sum()).collect();
    assert!(losses[11] < losses[0], "{losses:?}");
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
}

/// The likeliest word behind `position`, the first of equals.
fn likeliest(run: &mut Run, tokens: &[i32], position: usize) -> i32 {
    let mut logits = vec![0.0; SIZE.vocab];
    run.generate(tokens, position, &mut logits).unwrap();
    (1..SIZE.vocab).fold(0, |best, word| if logits[word] > logits[best] { word } else { best }) as i32
}

/// Replaces `answer` by the model's continuation of the words before it.
fn write(run: &mut Run, tokens: &mut [i32], answer: Range<usize>) {
    for at in answer {
        tokens[at] = likeliest(run, tokens, at - 1);
    }
}

/// Rows with answers that the model itself wrote, some of them with another word put in, and the places of all answers.
fn answered(run: &mut Run) -> (Batch, Vec<(usize, Range<usize>)>) {
    let mut batch = Batch::synthetic(4, SIZE.seq, SIZE.vocab, false, 1);
    batch.targets.fill(IGNORED);
    let answers = vec![(0, 6..11), (1, 9..14), (2, 4..8), (2, 12..17), (3, 1..24)];
    for (row, answer) in &answers {
        let tokens = &mut batch.tokens[row * SIZE.seq..][..SIZE.seq];
        write(run, tokens, answer.clone());
        if *row < 2 {
            tokens[answer.start + 2] = (tokens[answer.start + 2] + 1) % SIZE.vocab as i32;
        }
        for at in answer.clone() {
            batch.targets[row * SIZE.seq + at - 1] = tokens[at];
        }
    }
    (batch, answers)
}

#[test]
fn fitness_counts_what_greedy_generation_gets_wrong() {
    for (fitness, rows) in
        [(Fitness::Accuracy, 4), (Fitness::Accuracy, 2), (Fitness::ExactMatch, 4), (Fitness::ExactMatch, 1)]
    {
        // The distance is so small that every probe reads the weights themselves.
        let optimizer = Optimizer { fitness, probe_size: 1e-30, ..method(OptimizerKind::Es, 2) };
        let options = Options { optimizer, ..options(4, rows, Strategy::None, 2) };
        let architecture = gpt2(Size { dropout: 0.0, ..SIZE });
        let model = LanguageModel { architecture, seq_len: SIZE.seq, generate: true, lora: None };
        let mut run = Run::new(model, &options).unwrap();
        let (batch, answers) = answered(&mut run);
        let (mut wrong, mut places, mut targets) = (0, 0, 0);
        for (row, answer) in &answers {
            let truth = &batch.tokens[row * SIZE.seq..][..SIZE.seq];
            let mut written = truth.to_vec();
            write(&mut run, &mut written, answer.clone());
            wrong += usize::from(written[answer.clone()] != truth[answer.clone()]);
            places += answer.clone().filter(|&at| likeliest(&mut run, truth, at - 1) != truth[at]).count();
            targets += answer.len();
        }
        assert!((2..answers.len()).contains(&wrong) && (2..targets).contains(&places), "{wrong} {places}");
        let expected = match fitness {
            Fitness::ExactMatch => wrong as f64 / answers.len() as f64,
            _ => places as f64 / targets as f64,
        };
        let batches: Vec<_> = batch.micro_batches(rows).collect();
        let errors = run.step(0.0, &batches).unwrap().loss;
        assert!((f64::from(errors) - expected).abs() < 1e-6, "{fitness:?}, rows {rows}: {errors} {expected}");
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
}
