//! Mixtures of experts that transformers wrote, against transformers itself: logits, loss, the balance of experts, every
//! gradient, and ten steps of `AdamW`. `reference/mixtures.py` states the differences between the folders.
//!
//! The tolerances are those of `hf.rs`. No token of a folder is near a tie, so none is left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::path::{Path, PathBuf};

use plimsoll_exec::Data;
use plimsoll_graph::{Graph, GraphError, StateKind};
use plimsoll_model::{Architecture, BalanceGroup};
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::files::{ModelFolder, ModelFormat};
use plimsoll_train::{Config, Model, Options, RawConfig, Run};

use crate::support::{Batch, GOLDEN_SEQ, Golden, STRATEGIES, distance, options, parameters};

mod alone;
mod broken;
mod switch;

const FOLDERS: [&str; 4] = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"];
const LOSS: f32 = 2e-6;
const LOGITS: f32 = 3e-6;
const GRADIENT: f32 = 4e-6;
const WEIGHT: f32 = 5e-5;
/// The least distance between the last expert chosen and the first that was not, over all tokens, layers and steps.
const MARGIN: f32 = 1e-4;
const LR: f32 = 1e-3;
const STEPS: usize = 10;

struct Folder {
    name: &'static str,
    architecture: Architecture,
    golden: Golden,
    batch: Batch,
}

impl Model for &Folder {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        self.architecture.training(rows, GOLDEN_SEQ)
    }

    fn evaluation(&self, rows: usize) -> Result<Graph, GraphError> {
        self.architecture.evaluation(rows, GOLDEN_SEQ)
    }

    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        Some(self.architecture.generation(GOLDEN_SEQ))
    }
}

impl Folder {
    /// A folder whose routers are balanced as transformers does it, or by sequence.
    fn open(name: &'static str, group: BalanceGroup) -> Folder {
        let text = std::fs::read_to_string(path(name).join("config.json")).unwrap();
        let Architecture::Llama(mut model) = Architecture::from_config(&text).unwrap().architecture else {
            panic!("{name} is a mixture")
        };
        model.mixture.as_mut().unwrap().losses.group = group;
        let golden = Golden::read(&format!("hf/{name}/golden"));
        let batch = golden.batch();
        Folder { name, architecture: model.into(), golden, batch }
    }

    /// A run with the weights of the folder, read as any run reads them.
    fn run(&self, strategy: Strategy, micro_batch: usize, threads: usize) -> Run {
        let options =
            Options { evaluate: true, ..options(self.batch.rows(), micro_batch, strategy, threads) };
        let mut run = Run::new(self, &options).unwrap();
        let folder = ModelFolder::open(&path(self.name)).unwrap();
        let loaded = run.load_weights(&folder, &self.form()).unwrap();
        assert!(loaded.unused.is_empty() && loaded.absent.is_empty(), "{}: {loaded:?}", self.name);
        run
    }

    fn form(&self) -> ModelFormat {
        let architecture = self.architecture.clone();
        let stored = std::sync::Arc::new(move |parameter: &str| architecture.stored(parameter));
        ModelFormat { stored, ..ModelFormat::default() }
    }

    /// The largest distance over all tensors that the golden file has, each a piece of a parameter.
    fn worst(&self, run: &Run, prefix: &str, values: impl Fn(&str) -> Vec<f32>) -> (f32, String) {
        let (mut worst, mut compared) = ((0.0, String::new()), 0);
        for parameter in parameters(run) {
            let all = values(&parameter);
            for (first, piece, count) in pieces(run, &parameter) {
                let expected = self.golden.floats(&format!("{prefix}{piece}"));
                let apart = distance(&all[first..first + count], &expected);
                assert!(!apart.is_nan(), "{}: {piece} is not a number", self.name);
                compared += 1;
                if apart > worst.0 {
                    worst = (apart, piece);
                }
            }
        }
        let golden = self.golden.names().iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(compared, golden, "{}: every tensor of the file", self.name);
        worst
    }
}

/// First element, name and number of elements of each tensor that files hold for a parameter.
fn pieces(run: &Run, parameter: &str) -> Vec<(usize, String, usize)> {
    let parts = run.engine().pieces(parameter).into_iter();
    let mut pieces: Vec<_> = parts.map(|(first, name, shape)| (first, name, shape.elements())).collect();
    if pieces.is_empty() {
        pieces.push((0, parameter.to_owned(), run.state(parameter).unwrap().len()));
    }
    pieces
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf").join(name)
}

fn inputs(batch: &Batch) -> Vec<(&'static str, Data<'_>)> {
    vec![("tokens", Data::I32(&batch.tokens)), ("targets", Data::I32(&batch.targets))]
}

/// The sum of the added losses of a step, without their weights.
fn balance(run: &Run) -> f32 {
    run.added_losses().map(|(_, value)| value).sum()
}

fn logits(folder: &Folder, run: &mut Run) -> Vec<f32> {
    let words = folder.golden.floats("logits").len() / GOLDEN_SEQ;
    let mut all = Vec::new();
    for position in 0..GOLDEN_SEQ as i32 {
        let (at, mut logits) = ([position], vec![0.0; words]);
        let inputs =
            [("tokens", Data::I32(&folder.batch.tokens[..GOLDEN_SEQ])), ("position", Data::I32(&at))];
        run.engine_mut().run(Role::Generate, &inputs).unwrap();
        run.engine().output(Role::Generate, "logits", &mut logits).unwrap();
        all.extend(logits);
    }
    all
}

#[test]
fn logits_losses_and_every_gradient_are_those_of_transformers() {
    for folder in FOLDERS.map(|name| Folder::open(name, BalanceGroup::MicroBatch)) {
        let (mut run, name) = (folder.run(Strategy::None, folder.batch.rows(), 2), folder.name);
        let shown = distance(&logits(&folder, &mut run), &folder.golden.floats("logits"));
        let loss = run.step(0.0, &[inputs(&folder.batch)]).unwrap().loss;
        let loss = distance(&[loss], &folder.golden.floats("loss"));
        let balance = distance(&[balance(&run)], &folder.golden.floats("aux_loss"));
        let (gradient, at) = folder.worst(&run, "grad.", |name| run.gradient(name).unwrap());
        println!(
            "{name}: logits {shown:.1e}, losses {loss:.1e} {balance:.1e}, gradients {gradient:.1e} ({at})"
        );
        assert!(
            folder.golden.floats("margin")[0] > MARGIN,
            "{name}: a choice that rounding could turn round"
        );
        assert!(shown <= LOGITS, "{name}: logits {shown}");
        assert!(loss <= LOSS && balance <= LOSS, "{name}: loss {loss}, balance {balance}");
        assert!(gradient <= GRADIENT, "{name}: {at} {gradient}");
    }
}

#[test]
fn ten_steps_of_adamw_are_those_of_transformers_and_pytorch() {
    for folder in FOLDERS.map(|name| Folder::open(name, BalanceGroup::MicroBatch)) {
        let (mut run, name) = (folder.run(Strategy::None, folder.batch.rows(), 2), folder.name);
        let (mut losses, mut balances, mut norms) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let stepped = run.step(LR, &[inputs(&folder.batch)]).unwrap();
            losses.push(stepped.loss);
            norms.push(stepped.grad_norm);
            balances.push(balance(&run));
        }
        let loss = distance(&losses, &folder.golden.floats("losses"));
        let balance = distance(&balances, &folder.golden.floats("aux_losses"));
        let norm = distance(&norms, &folder.golden.floats("grad_norms"));
        let (weight, at) = folder.worst(&run, "final.", |name| run.state(name).unwrap());
        println!(
            "{name}: losses {loss:.1e} {balance:.1e}, norms {norm:.1e}, final weights {weight:.1e} ({at})"
        );
        assert!(losses[STEPS - 1] < losses[0], "{name} learns");
        assert!(loss <= LOSS && norm <= LOSS, "{name}: losses {loss}, norms {norm}");
        assert!(balance <= 1e-5, "{name}: balance {balance}");
        assert!(weight <= WEIGHT, "{name}: {at} {weight}");
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
}

#[test]
fn padding_is_left_out_of_a_balance_over_the_micro_batch_as_transformers_leaves_it_out() {
    for folder in FOLDERS.map(|name| Folder::open(name, BalanceGroup::MicroBatch)) {
        let (mut run, name) = (folder.run(Strategy::None, folder.batch.rows(), 2), folder.name);
        let [targets, present] =
            ["targets", "present"].map(|of| folder.golden.ints(&format!("padded.{of}")).unwrap());
        let batch = Batch { targets, ..folder.batch.clone() };
        let padded = [inputs(&batch), vec![("present", Data::I32(&present))]].concat();
        let loss = run.step(0.0, &[padded]).unwrap().loss;
        let expected = folder.golden.floats("padded.aux_loss");
        let [loss, apart] =
            [([loss], folder.golden.floats("padded.loss")), ([balance(&run)], expected.clone())]
                .map(|(got, expected)| distance(&got, &expected));
        assert!(loss <= LOSS && apart <= LOSS, "{name}: loss {loss}, balance {apart}");
        for router in parameters(&run).iter().filter(|name| name.ends_with(".gate.weight")) {
            let expected = folder.golden.floats(&format!("padded.grad.{router}"));
            let apart = distance(&run.gradient(router).unwrap(), &expected);
            assert!(apart <= GRADIENT, "{name}: {router} {apart}");
        }
        run.step(0.0, &[inputs(&batch)]).unwrap();
        assert!(distance(&[balance(&run)], &expected) > 1e-4, "{name}: padding would be seen");
    }
}

#[test]
fn files_hold_a_tensor_for_each_expert_and_are_the_same_after_a_round_trip() {
    for folder in FOLDERS.map(|name| Folder::open(name, BalanceGroup::Sequence)) {
        let run = folder.run(Strategy::None, 2, 1);
        let out = tempfile::tempdir().unwrap();
        run.save_weights(out.path(), &folder.form()).unwrap();
        let [written, original] =
            [out.path(), &path(folder.name)].map(|path| ModelFolder::open(path).unwrap());
        let names = |folder: &ModelFolder| {
            let mut names: Vec<String> = folder.names().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(&written), names(&original), "{}", folder.name);
        let mut again = Run::new(&folder, &options(folder.batch.rows(), 2, Strategy::None, 1)).unwrap();
        again.load_weights(&written, &folder.form()).unwrap();
        for name in parameters(&run) {
            assert_eq!(run.state(&name).unwrap(), again.state(&name).unwrap(), "{}: {name}", folder.name);
        }
    }
}

/// Bits of the loss, of the balance and of every gradient of one step.
fn bits(run: &mut Run, batches: &[Vec<(&str, Data)>]) -> Vec<u32> {
    let loss = run.step(0.0, batches).unwrap().loss;
    let added = balance(run);
    let gradients = parameters(run).into_iter().flat_map(|name| run.gradient(&name).unwrap());
    [loss, added].into_iter().chain(gradients).map(f32::to_bits).collect()
}

/// The rows of a batch, `rows` at a time.
fn divided(batch: &Batch, rows: usize) -> Vec<Vec<(&'static str, Data<'_>)>> {
    let tokens = batch.tokens.chunks(rows * batch.seq);
    let both = tokens.zip(batch.targets.chunks(rows * batch.seq));
    both.map(|(tokens, targets)| vec![("tokens", Data::I32(tokens)), ("targets", Data::I32(targets))])
        .collect()
}

/// Sets all scores of routers to zero, so that all are ties.
fn tie(run: &mut Run) {
    let routers = parameters(run).into_iter().filter(|name| name.ends_with(".gate.weight"));
    for router in routers.collect::<Vec<_>>() {
        let zeros = vec![0.0; run.state(&router).unwrap().len()];
        run.set_state(&router, &zeros).unwrap();
    }
}

#[test]
fn recompute_and_threads_change_no_bit_even_where_all_scores_are_equal() {
    for name in FOLDERS {
        let folder = Folder::open(name, BalanceGroup::Sequence);
        for tied in [false, true] {
            let mut expected = None;
            for strategy in STRATEGIES {
                for threads in [1, 3] {
                    let mut run = folder.run(strategy, 2, threads);
                    if tied {
                        tie(&mut run);
                    }
                    let got = bits(&mut run, &divided(&folder.batch, 2));
                    assert!(
                        expected.get_or_insert_with(|| got.clone()) == &got,
                        "{name} {strategy} {threads} {tied}"
                    );
                    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{name} {strategy}");
                }
            }
        }
    }
}

#[test]
fn accumulation_changes_only_the_order_of_sums_and_the_balance_of_sequences_is_among_them() {
    for name in FOLDERS {
        assert_equal_in_micro_batches(&Folder::open(name, BalanceGroup::Sequence));
    }
}

/// Compares losses and gradients of one step of eight rows, in micro-batches of eight and of fewer.
#[track_caller]
fn assert_equal_in_micro_batches(folder: &Folder) {
    let (name, batch) = (folder.name, folder.batch.repeated(2));
    let step = |rows: usize| {
        let options = options(batch.rows(), rows, Strategy::None, 2);
        let mut run = Run::new(folder, &options).unwrap();
        let files = ModelFolder::open(&path(name)).unwrap();
        run.load_weights(&files, &folder.form()).unwrap();
        let loss = run.step(0.0, &divided(&batch, rows)).unwrap().loss;
        let gradients: Vec<Vec<f32>> =
            parameters(&run).iter().map(|name| run.gradient(name).unwrap()).collect();
        (vec![loss, balance(&run)], gradients)
    };
    let (losses, gradients) = step(8);
    assert!(losses[1] > 0.0);
    for rows in [4, 2, 1] {
        let (other, others) = step(rows);
        assert!(distance(&other, &losses) <= LOSS, "{name}: {other:?}, {losses:?}");
        for (other, gradient) in others.iter().zip(&gradients) {
            assert!(distance(other, gradient) <= 1e-5, "{name} in micro-batches of {rows}");
        }
    }
}

/// Mixtral, and a model whose shared expert reads its input without noise.
const NOISY: [&str; 2] = ["mixtral", "qwen2-moe"];

impl Folder {
    /// A folder whose experts read their input with noise in training.
    fn noisy(name: &'static str) -> Folder {
        let mut folder = Folder::open(name, BalanceGroup::Sequence);
        let Architecture::Llama(model) = &mut folder.architecture else { panic!("{name} is a mixture") };
        model.mixture.as_mut().unwrap().noise = 0.1;
        folder
    }
}

#[test]
fn noise_on_the_input_of_experts_changes_no_bit_under_recompute_and_threads() {
    for folder in NOISY.map(Folder::noisy) {
        let plain = Folder::open(folder.name, BalanceGroup::Sequence);
        let without = bits(&mut plain.run(Strategy::None, 2, 1), &divided(&folder.batch, 2));
        let mut expected = None;
        for strategy in STRATEGIES {
            for threads in [1, 3] {
                let mut run = folder.run(strategy, 2, threads);
                let got = bits(&mut run, &divided(&folder.batch, 2));
                assert_ne!(got[0], without[0], "{}: there is noise", folder.name);
                let same = expected.get_or_insert_with(|| got.clone()) == &got;
                assert!(same, "{} {strategy} {threads}", folder.name);
                assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{strategy}");
            }
        }
    }
}

#[test]
fn noise_on_the_input_of_experts_is_that_of_the_row_in_whatever_micro_batch_it_travels() {
    for folder in NOISY.map(Folder::noisy) {
        assert_equal_in_micro_batches(&folder);
    }
}

#[test]
fn noise_on_the_input_of_experts_is_new_in_every_step_and_absent_from_evaluation_and_generation() {
    for folder in NOISY.map(Folder::noisy) {
        let plain = Folder::open(folder.name, BalanceGroup::Sequence);
        let [mut noisy, mut plain] = [&folder, &plain].map(|folder| folder.run(Strategy::None, 4, 2));
        let [first, second] = [(); 2].map(|()| noisy.step(0.0, &[inputs(&folder.batch)]).unwrap().loss);
        assert_ne!(first.to_bits(), second.to_bits(), "{}", folder.name);
        let evaluated = |run: &mut Run| run.evaluate(&inputs(&folder.batch)).unwrap().to_bits();
        assert_eq!(evaluated(&mut noisy), evaluated(&mut plain), "{}", folder.name);
        assert_eq!(logits(&folder, &mut noisy), logits(&folder, &mut plain), "{}", folder.name);
    }
}

#[test]
fn planned_bytes_are_measured_bytes_however_tokens_are_routed() {
    let folder = Folder::open("mixtral", BalanceGroup::Sequence);
    let experts = 4;
    let mut run = folder.run(Strategy::Full, 2, 2);
    let even = run.step(0.0, &divided(&folder.batch, 2)).unwrap().loss;
    let planned = run.plan().arena_bytes;
    assert_eq!(run.engine().measured_peak(), planned, "routed by the weights of the file");
    // Ties send every token to the first experts.
    tie(&mut run);
    let one = run.step(0.0, &divided(&folder.batch, 2)).unwrap().loss;
    assert!(even.is_finite() && one.is_finite() && even.to_bits() != one.to_bits());
    assert_eq!(run.engine().measured_peak(), planned, "all tokens on the same experts");
    assert!(sent(&run).iter().all(|layer| layer[2..] == [0.0; 2] && layer[0] > 0.0));
    let batch = route_evenly(&mut run, &folder.batch);
    run.step(0.0, &divided(&batch, 2)).unwrap();
    assert_eq!(run.engine().measured_peak(), planned, "evenly routed");
    let share = (2 * batch.tokens.len() / experts) as f32;
    assert!(sent(&run).iter().all(|layer| layer == &[share; 4]), "{:?}", sent(&run));
}

/// For each layer, the number of copies sent to each expert in the last step.
fn sent(run: &Run) -> Vec<Vec<f32>> {
    let tallies = run.states_of(|kind| kind == StateKind::Tally).map(|(name, _)| name.to_owned());
    let sent = |name: String| {
        let counts = run.state(&name).unwrap();
        counts[..counts.len() / 2].to_vec()
    };
    tallies.collect::<Vec<_>>().into_iter().map(sent).collect()
}

/// Gives a model of four experts weights under which token `n` goes to experts `n` and `n + 1` modulo four in every
/// layer, and returns a batch with as many tokens of each kind.
fn route_evenly(run: &mut Run, like: &Batch) -> Batch {
    for name in parameters(run) {
        let mut numbers = run.state(&name).unwrap();
        let width = 32;
        let kind = |index: usize| index / width % 4;
        for (index, number) in numbers.iter_mut().enumerate() {
            let column = index % width;
            if name.ends_with("embed_tokens.weight") {
                *number = if column == kind(index) { 1.0 } else { 0.0 };
            } else if name.ends_with(".gate.weight") {
                let distance = (kind(index) + 4 - column % 4) % 4;
                *number = if column < 4 && distance < 2 { 2.0 - distance as f32 } else { 0.0 };
            } else if name.ends_with("o_proj.weight") || name.contains("experts.w2") {
                // Zeros here make every layer leave the embedding as it is.
                *number = 0.0;
            }
        }
        run.set_state(&name, &numbers).unwrap();
    }
    let mut batch = like.repeated(1);
    batch.tokens.iter_mut().enumerate().for_each(|(index, token)| *token = index as i32 % 4);
    batch
}

#[test]
fn counts_of_copies_are_sums_over_the_micro_batches_of_one_step() {
    let folder = Folder::open("qwen3-moe", BalanceGroup::Sequence);
    let counted = |rows: usize, strategy: Strategy| {
        let mut run = folder.run(strategy, rows, 2);
        for _ in 0..2 {
            run.step(0.0, &divided(&folder.batch, rows)).unwrap();
        }
        sent(&run)
    };
    let whole = counted(folder.batch.rows(), Strategy::None);
    assert!(whole.len() > 1 && whole.iter().flatten().any(|&count| count > 0.0));
    let chosen = whole[0].iter().sum::<f32>() / folder.batch.tokens.len() as f32;
    assert!((chosen - chosen.round()).abs() < f32::EPSILON && chosen >= 1.0, "{chosen}");
    for strategy in [Strategy::None, Strategy::Full] {
        assert_eq!(counted(1, strategy), whole, "{strategy}");
    }
}

#[test]
fn copies_are_counted_for_records_where_routers_have_no_loss_too() {
    let mut folder = Folder::open("olmoe", BalanceGroup::Sequence);
    let Architecture::Llama(model) = &mut folder.architecture else { panic!("a mixture is a Llama") };
    model.mixture.as_mut().unwrap().losses.balance = 0.0;
    let mut run = folder.run(Strategy::None, 4, 1);
    run.step(0.0, &divided(&folder.batch, 4)).unwrap();
    let copies = 2.0 * folder.batch.tokens.len() as f32;
    assert!(sent(&run).len() > 1, "every layer has a count");
    assert!(sent(&run).iter().all(|layer| (layer.iter().sum::<f32>() - copies).abs() < f32::EPSILON));
}

#[test]
fn a_router_that_is_not_a_number_ends_the_step_with_the_name_of_an_expert() {
    let folder = Folder::open("olmoe", BalanceGroup::Sequence);
    let mut run = folder.run(Strategy::None, 2, 1);
    let router = "model.layers.0.mlp.gate.weight";
    let mut weights = run.state(router).unwrap();
    weights[3 * 32] = f32::NAN;
    run.set_state(router, &weights).unwrap();
    let error = run.step(0.0, &divided(&folder.batch, 2)).unwrap_err().to_string();
    assert!(error.contains("the router's score of expert 0 is not a number, in `model.layers.0`"), "{error}");
}
