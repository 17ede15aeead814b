//! Mixtures of experts that transformers wrote, against transformers itself: logits, loss, the balance of experts, every
//! gradient, and ten steps of `AdamW`. `reference/mixtures.py` says what each folder has that the others have not.
//!
//! The tolerances are those of `hf.rs`. No token of a folder is near a tie, so none is left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::path::{Path, PathBuf};

use plimsoll_exec::Data;
use plimsoll_graph::{Graph, GraphError};
use plimsoll_model::{Architecture, BalanceGroup};
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::files::{ModelFolder, ModelFormat};
use plimsoll_train::{Model, Options, Run};

mod support;
use support::{Batch, GOLDEN_SEQ, Golden, distance, options, parameters};

const FOLDERS: [&str; 4] = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"];
const LOSS: f32 = 2e-6;
const LOGITS: f32 = 3e-6;
const GRADIENT: f32 = 4e-6;
const WEIGHT: f32 = 5e-5;
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
