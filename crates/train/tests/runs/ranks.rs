//! Ranks as threads of one process: the numbers of one rank, the same bits every time, and bytes as planned.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_devices::DeviceKind;
use plimsoll_exec::{Data, thread_ranks};
use plimsoll_graph::{DType, Graph, GraphError, Init};
use plimsoll_plan::Role;
use plimsoll_train::job::{Environment, Session};
use plimsoll_train::trainer::{EndRecord, Event};
use plimsoll_train::{Config, Options, ProcessPlace, RawConfig, Run, TrainError, plan_for};
use tempfile::TempDir;

use crate::support::{distance, lasting_bits};

mod experts;
mod offload;
mod planned;
mod stages;
mod weights;

const STEPS: u64 = 10;

/// A folder with a text whose epochs end in the middle of a global batch and of a row, and a small GPT-2 with dropout.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let text: Vec<u8> = (0..16 * 19 + 5).map(|i: usize| b'a' + (i * i / 7 % 23) as u8).collect();
    fs::write(folder.path().join("text.txt"), text).unwrap();
    let gpt2 = r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 259}"#;
    fs::write(folder.path().join("gpt2.json"), gpt2).unwrap();
    folder
}

/// Ten steps of eight rows. An epoch has twenty rows, so every third step has only four, and the last row of an epoch
/// is incomplete.
fn settings(folder: &Path, ranks: usize) -> RawConfig {
    RawConfig {
        config: Some(folder.join("gpt2.json")),
        data: Some(vec![folder.join("text.txt").display().to_string()]),
        data_cache: Some(folder.join("cache")),
        seq_len: Some(16),
        global_batch: Some(8),
        micro_batch: Some(1),
        // This is a budget for the whole process, in which other tests run too.
        memory: Some("2GiB".into()),
        costs: Some("modelled".into()),
        max_steps: Some(STEPS),
        learning_rate: Some(0.05),
        optim: Some("sgd".into()),
        momentum: Some(0.9),
        // Low enough that every step is clipped.
        max_grad_norm: Some(0.25),
        threads: Some(1),
        ranks: Some(ranks),
        ..RawConfig::default()
    }
}

fn open(raw: &RawConfig) -> Session {
    let mut job = Config::check(raw).unwrap().open(&Environment::default()).unwrap();
    let planned = job.plan().unwrap();
    job.start(planned).unwrap()
}

/// A run that is over: losses and norms of its steps, and the session.
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// The balance of experts in each step, of a model that has some.
    balances: Vec<f64>,
    end: EndRecord,
    session: Session,
}

fn train(raw: &RawConfig) -> Trained {
    train_session(open(raw))
}

/// Trains to the end, and has the run judged.
fn train_session(mut session: Session) -> Trained {
    let (mut losses, mut norms, mut balances) = (Vec::new(), Vec::new(), Vec::new());
    let mut listener = |event: &Event<'_>| -> Result<(), TrainError> {
        if let Event::Step(record) = event {
            losses.push(record.loss);
            norms.push(record.grad_norm);
            balances.extend(record.router_balance);
        }
        Ok(())
    };
    let end = session.train::<TrainError>(&mut [&mut listener]).unwrap();
    session.judge(&end).unwrap();
    Trained { losses, norms, balances, end, session }
}

/// The largest distance between the lasting states of two runs, relative to the largest element of each.
fn apart(a: &Session, b: &Session) -> f32 {
    let (a, b) = (a.trainer().run(), b.trainer().run());
    let lasting = b.states().map(|(name, _)| name).filter(|name| !name.starts_with("grad."));
    lasting.map(|name| distance(&numbers(a, name), &numbers(b, name))).fold(0.0, f32::max)
}

/// The numbers of a state, gathered from all ranks where they divide it.
fn numbers(run: &Run, name: &str) -> Vec<f32> {
    let whole = run.whole_type(name).unwrap();
    if whole.dtype != DType::F32 {
        return run.state(name).unwrap();
    }
    let mut bytes = vec![0; whole.bytes()];
    run.read_whole(name, 0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Checks that several ranks train as one does, up to the order of sums.
fn trains_as_one(settings: impl Fn(usize) -> RawConfig) {
    let one = train(&settings(1));
    assert!(one.losses.last() < one.losses.first(), "it learns: {:?}", one.losses);
    for ranks in [2, 4] {
        let several = train(&settings(ranks));
        assert_eq!(several.session.ranks(), ranks);
        for (step, (loss, expected)) in several.losses.iter().zip(&one.losses).enumerate() {
            assert!(
                (loss - expected).abs() <= 2e-6 * expected,
                "{ranks} ranks, step {step}: {loss} {expected}"
            );
        }
        for (norm, expected) in several.norms.iter().zip(&one.norms) {
            assert!((norm - expected).abs() <= 1e-5 * expected, "{ranks} ranks: {norm} {expected}");
        }
        let apart = apart(&several.session, &one.session);
        assert!(apart <= 1e-5, "{ranks} ranks: weights are {apart} apart");
    }
}

#[test]
fn ranks_train_as_one_does_with_accumulation_ragged_rows_dropout_and_clipping() {
    let folder = folder();
    trains_as_one(|ranks| settings(folder.path(), ranks));
}

#[test]
fn ranks_train_adapters_with_dropout_as_one_does() {
    let folder = folder();
    trains_as_one(|ranks| RawConfig {
        config: None,
        model: Some("tiny".into()),
        layers: Some(2),
        lora_r: Some(4),
        lora_dropout: Some(0.2),
        ..settings(folder.path(), ranks)
    });
}

#[test]
fn two_runs_of_the_same_ranks_agree_to_the_bit_with_adamw_and_bf16() {
    let folder = folder();
    let raw = RawConfig {
        optim: None,
        momentum: None,
        learning_rate: Some(0.003),
        bf16: Some(true),
        gradients_dtype: Some("bf16".into()),
        micro_batch: Some(2),
        ..settings(folder.path(), 2)
    };
    let (first, second) = (train(&raw), train(&raw));
    assert_eq!(bits(&first.losses), bits(&second.losses));
    let of = |trained: &Trained| lasting_bits(trained.session.trainer().run());
    assert_eq!(of(&first), of(&second));
}

#[test]
fn bytes_on_the_wire_are_those_of_the_plan_and_of_zero() {
    let folder = folder();
    for ranks in [2, 4] {
        let trained = train(&settings(folder.path(), ranks));
        let (run, planned) = (trained.session.trainer().run(), &trained.session.summary().planned);
        let program = &planned.choice.program;
        assert_eq!(run.sent_bytes(), STEPS * program.update_wire_bytes());
        let gradients: u64 = (run.states())
            .filter(|(name, _)| name.starts_with("grad."))
            .map(|(_, ty)| ty.bytes() as u64)
            .sum();
        // All sizes are multiples of four, so shards have no padding.
        assert_eq!(program.update_wire_bytes(), 2 * gradients * (ranks as u64 - 1) / ranks as u64);
    }
}

#[test]
fn a_plan_for_ranks_is_one_rank_s_and_its_exchanges_are_actions() {
    let folder = folder();
    let mut job = Config::check(&settings(folder.path(), 2)).unwrap().open(&Environment::default()).unwrap();
    let choice = job.plan().unwrap().choice;
    assert_eq!((choice.micro_batch, choice.accumulation, choice.program.ranks()), (1, 4, 2));
    let text = choice.plan.schedules[&Role::Update].display(&choice.program.train.graph).to_string();
    assert!(text.contains("all_reduce(grad.") && text.contains("await all_reduce grad."), "{text}");
}

#[test]
fn the_end_tells_what_each_rank_held_and_which_was_busy_the_longest() {
    let folder = folder();
    let alone = train(&settings(folder.path(), 1)).end;
    assert_eq!((alone.ranks.len(), alone.slowest_rank), (0, None));
    let trained = train(&settings(folder.path(), 4));
    let (end, planned) = (&trained.end, trained.session.summary().planned.choice.plan.arena_bytes.0);
    assert_eq!(end.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let taken = end.ranks.iter().map(|rank| rank.busy_seconds);
    for rank in &end.ranks {
        assert_eq!(rank.peak_bytes, planned);
        assert!(rank.process_bytes >= planned && rank.process_bytes <= end.process_peak_bytes, "{rank:?}");
        assert!(rank.busy_seconds > 0.0, "{rank:?}");
    }
    let longest = taken.fold(0.0, f64::max);
    assert_eq!(end.slowest_rank.map(|rank| end.ranks[rank].busy_seconds), Some(longest));
}

#[test]
fn a_single_step_without_gradients_is_judged_by_what_each_rank_held_at_the_end() {
    let folder = folder();
    let mezo = RawConfig {
        optim: Some("mezo".into()),
        momentum: None,
        max_grad_norm: None,
        max_steps: Some(1),
        ..settings(folder.path(), 2)
    };
    // The update comes behind the exchange of losses, and may reach higher than the passes before it.
    assert_eq!(train(&mezo).end.ranks.len(), 2);
}

#[test]
fn a_checkpoint_of_two_ranks_goes_on_at_any_number_of_ranks() {
    let folder = folder();
    let with_output = |ranks: usize| RawConfig {
        output_dir: Some(folder.path().join("out")),
        report_to: Some(vec!["none".into()]),
        ..settings(folder.path(), ranks)
    };
    let mut job = Config::check(&with_output(2)).unwrap().open(&Environment::default()).unwrap();
    let planned = job.plan().unwrap();
    let mut paused = job.pause_after(Some(4)).start(planned).unwrap();
    paused.train::<TrainError>(&mut []).unwrap();
    let saved = lasting_bits(paused.trainer().run());
    drop(paused);
    let whole = train(&settings(folder.path(), 2));
    for ranks in [1, 2, 4] {
        let checkpoint = folder.path().join("out/checkpoint-4").display().to_string();
        let raw = RawConfig {
            resume: Some(checkpoint),
            output_dir: Some(folder.path().join(format!("resumed-{ranks}"))),
            ..with_output(ranks)
        };
        let resumed = open(&raw);
        assert_eq!(lasting_bits(resumed.trainer().run()), saved, "{ranks} ranks");
        drop(resumed);
        let raw = RawConfig { output_dir: Some(folder.path().join(format!("again-{ranks}"))), ..raw };
        let resumed = train(&raw);
        if ranks == 2 {
            assert_eq!(bits(&resumed.losses), bits(&whole.losses[4..]), "as if never interrupted");
            assert_eq!(
                lasting_bits(resumed.session.trainer().run()),
                lasting_bits(whole.session.trainer().run())
            );
        }
        assert!(apart(&resumed.session, &whole.session) <= 1e-5, "{ranks} ranks");
    }
}

fn refused(folder: &Path, change: impl Fn(&mut RawConfig)) -> String {
    let mut raw = settings(folder, 2);
    change(&mut raw);
    Config::check(&raw).unwrap_err().to_string()
}

#[test]
fn ranks_that_cannot_work_are_refused_with_a_way_out() {
    let folder = folder();
    let of = |change: fn(&mut RawConfig)| refused(folder.path(), change);
    assert_eq!(of(|raw| raw.ranks = Some(0)), "ranks must be at least 1");
    assert_eq!(of(|raw| raw.ranks = Some(65)), "ranks must be at most 64, got 65");
    assert_eq!(
        of(|raw| (raw.ranks, raw.micro_batch) = (Some(3), None)),
        "ranks 3 does not divide global_batch 8; the next global batch that works is 9"
    );
    assert_eq!(
        of(|raw| raw.micro_batch = Some(8)),
        "micro_batch 8 × 2 ranks does not divide global_batch 8; the next global batch that works is 16"
    );
    assert!(of(|raw| raw.update = Some("in-backward".into())).contains("leave it out with"));
    let told = of(|raw| raw.device = Some("cuda".into()));
    assert!(told.starts_with("ranks 2 are threads of this machine's processor"), "{told}");
    assert!(told.contains("start 2 processes with torchrun"), "{told}");
    // A link describes ranks that are not here.
    let told = of(|raw| (raw.device, raw.rank_link) = (Some("cuda:0".into()), Some("50GB/s".into())));
    assert!(told.contains("on GPUs each rank is a process"), "{told}");
}

#[test]
fn each_process_of_a_machine_takes_a_gpu_of_its_own() {
    let folder = folder();
    let of = |device: &str, rank_here: usize| {
        let raw = RawConfig { device: Some(device.into()), ..settings(folder.path(), 4) };
        let mut config = Config::check_process(&raw, ProcessPlace { here: 2, rank_here }).unwrap();
        config.settle_device().unwrap();
        (config.options.device, config.options.processes_here, config.options.world())
    };
    for rank_here in [0, 1] {
        assert_eq!(of("cuda", rank_here), (DeviceKind::Cuda(rank_here), Some(2), Some(4)));
    }
    assert_eq!(of("cuda:1", 0).0, DeviceKind::Cuda(1), "a number that is stated counts");
    assert_eq!(of("cpu", 1).0, DeviceKind::Cpu);
}

#[test]
fn accumulation_steps_count_the_ranks() {
    let folder = folder();
    let raw = RawConfig {
        global_batch: None,
        micro_batch: None,
        per_device_train_batch_size: Some(2),
        gradient_accumulation_steps: Some(3),
        ..settings(folder.path(), 4)
    };
    let options = Config::check(&raw).unwrap().options;
    assert_eq!((options.global_batch, options.micro_batch, options.rank_batch()), (24, Some(2), 6));
}

fn model(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [rows, 8], DType::F32); // (N, C)
    let targets = g.input("targets", [rows], DType::I32); // (N)
    let scale = g.loss_scale();
    let head = g.param("head", [5, 8], Init::Normal(0.5)); // (V, C)
    let loss = g.head_loss(x, head, None, targets, scale, -100);
    g.output("loss", loss);
    g.finish()
}

/// The two ranks of a small model.
fn pair(limit: Duration) -> [Run; 2] {
    let options = Options { global_batch: 4, ranks: 2, threads: 1, ..Options::default() };
    let world = thread_ranks(2, limit).unwrap();
    let runs = world.iter().map(|end| {
        let device = options.device().unwrap();
        let planned = plan_for(&model, &*device, &options).unwrap();
        Run::start_rank(device, planned, 0, end).unwrap()
    });
    runs.collect::<Vec<_>>().try_into().unwrap()
}

fn batch() -> ([f32; 16], [i32; 2]) {
    (std::array::from_fn(|i| (i as f32).sin()), [1, 4])
}

/// A step over two targets of this rank, begun with this many of both.
fn step_of(run: &mut Run, all_targets: u64) -> Result<f32, String> {
    let (x, targets) = batch();
    let mut step = run.begin(0.1, all_targets);
    let result = step.queue(&[("x", Data::F32(&x)), ("targets", Data::I32(&targets))]);
    let result = result.and_then(|()| step.finish());
    result.map(|stepped| stepped.loss).map_err(|error| error.to_string())
}

fn step(run: &mut Run) -> Result<f32, String> {
    step_of(run, 4)
}

#[test]
fn ranks_compare_the_targets_of_all_with_those_the_step_was_begun_with() {
    for (stated, share_is_enough) in [(1, true), (3, false), (5, false)] {
        let ended: Vec<(String, bool)> = thread::scope(|scope| {
            let take = |mut run: Run| {
                let error = step_of(&mut run, stated).unwrap_err();
                (error, run.is_whole())
            };
            let threads = pair(Duration::from_mins(1)).map(|run| scope.spawn(move || take(run)));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let counted = if share_is_enough { 2 } else { 4 };
        let expected =
            format!("begun with {stated} targets that carry a loss, and its micro-batches have {counted};");
        assert!(ended.iter().all(|(error, _)| error.contains(&expected)), "{ended:?}");
        // The sum over ranks is known after the update, which such a run must not keep.
        assert!(ended.iter().all(|(_, whole)| *whole == share_is_enough), "{ended:?}");
    }
}

#[test]
fn a_loop_of_one_s_own_may_be_a_rank() {
    let losses: Vec<f32> = thread::scope(|scope| {
        let threads: Vec<_> = pair(Duration::from_mins(1))
            .into_iter()
            .map(|mut run| scope.spawn(move || step(&mut run)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    // Both ranks have the same rows, so the loss over both is that of either.
    let options = Options { global_batch: 2, threads: 1, ..Options::default() };
    let (x, targets) = batch();
    let mut alone = Run::new(model, &options).unwrap();
    let expected = alone.step(0.1, &[[("x", Data::F32(&x)), ("targets", Data::I32(&targets))]]).unwrap().loss;
    assert_eq!(losses[0].to_bits(), losses[1].to_bits());
    assert!((losses[0] - expected).abs() <= 1e-6 * expected);
}

#[test]
fn a_rank_that_ends_in_the_middle_of_a_step_ends_the_others_with_an_error_that_names_it() {
    let [mut first, second] = pair(Duration::from_mins(1));
    drop(second);
    let error = step(&mut first).unwrap_err();
    assert_eq!(error, "rank 1 ended: its device is gone");
    assert!(!first.is_whole(), "its update has begun, so it must not be saved");
}

#[test]
fn a_rank_that_hangs_ends_the_others_within_the_limit() {
    let [mut first, _second] = pair(Duration::from_millis(50));
    let error = step(&mut first).unwrap_err();
    assert_eq!(error, "rank 1 has not come to all_reduce of 40 f32 within 0.05 s");
}

#[test]
fn a_plan_runs_on_as_many_ranks_as_it_was_made_for() {
    let options = Options { global_batch: 4, ranks: 2, threads: 1, ..Options::default() };
    let error = Run::new(model, &options).unwrap_err().to_string();
    assert_eq!(error, "the plan is for 2 ranks, and 1 are here");
    // Ranks that exchange nothing would each train a model of their own.
    let alone = Options { ranks: 1, ..options };
    let device = alone.device().unwrap();
    let planned = plan_for(&model, &*device, &alone).unwrap();
    let world = thread_ranks(2, Duration::from_mins(1)).unwrap();
    let error = Run::start_rank(device, planned, 0, &world[0]).unwrap_err().to_string();
    assert_eq!(error, "the plan is for 1 rank, and 2 are here");
}
