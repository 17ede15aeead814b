//! Folders that transformers wrote, against transformers itself: logits, loss, every gradient, and ten steps of `AdamW`,
//! for each architecture. `reference/hf_models.py` states the differences between the folders.
//!
//! The tolerances are those of `pytorch.rs`, for its reasons.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use plimsoll_exec::Data;
use plimsoll_graph::{Graph, GraphError};
use plimsoll_model::Architecture;
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::{Model, Options, Run};
use safetensors::{Dtype, SafeTensors};

use crate::support::{
    Batch, GOLDEN_SEQ, Golden, absolute_distance, distance, options, parameters, without_key_bias,
};

const FOLDERS: [&str; 8] = ["llama", "llama2", "mistral", "qwen2", "qwen3", "gpt2", "bert", "bert-labels"];
const LOSS: f32 = 2e-6;
const LOGITS: f32 = 3e-6;
const GRADIENT: f32 = 3e-6;
const WEIGHT: f32 = 5e-5;
const KEY_BIAS_GRADIENT: f32 = 1e-7;
const LR: f32 = 1e-3;
const KEY_BIAS_WEIGHT: f32 = 10.0 * LR;
const STEPS: usize = 10;

/// A folder's model, with every graph a run can be asked for.
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
        match &self.architecture {
            Architecture::Bert(model) if model.labels.is_some() => None,
            Architecture::Bert(model) => Some(model.guess(GOLDEN_SEQ)),
            model => Some(model.generation(GOLDEN_SEQ)),
        }
    }
}

impl Folder {
    fn open(name: &'static str) -> Folder {
        let text = std::fs::read_to_string(path(name).join("config.json")).unwrap();
        let architecture = Architecture::from_config(&text).unwrap().architecture;
        let golden = Golden::read(&format!("hf/{name}/golden"));
        let batch = golden.batch();
        Folder { name, architecture, golden, batch }
    }

    /// A run with the weights of the folder.
    fn run(&self) -> Run {
        let rows = self.batch.rows();
        let options = Options { evaluate: true, ..options(rows, rows, Strategy::None, 2) };
        let mut run = Run::new(self, &options).unwrap();
        let weights = weights(self.name);
        for parameter in parameters(&run) {
            run.set_state(&parameter, &weights[&self.architecture.stored(&parameter).name]).unwrap();
        }
        run
    }

    /// The largest distance over all parameters that the golden file has; key biases are checked apart.
    fn worst(&self, prefix: &str, key_bias: f32, values: impl Fn(&str) -> Vec<f32>) -> (f32, String) {
        let names = self.golden.names().into_iter();
        let of_prefix = names.filter_map(|name| name.strip_prefix(prefix).map(str::to_owned));
        let mut worst = (0.0, String::new());
        for name in of_prefix {
            let (got, got_keys) = without_key_bias(&name, &values(&name));
            let (expected, expected_keys) =
                without_key_bias(&name, &self.golden.floats(&format!("{prefix}{name}")));
            let keys = absolute_distance(&got_keys, &expected_keys);
            assert!(keys <= key_bias, "{}: key biases of {prefix}{name} are {keys} apart", self.name);
            let apart = distance(&got, &expected);
            assert!(!apart.is_nan(), "{}: {prefix}{name} is not a number", self.name);
            if apart > worst.0 {
                worst = (apart, name);
            }
        }
        worst
    }
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf").join(name)
}

/// The tensors of all weight files of a folder.
fn weights(name: &str) -> BTreeMap<String, Vec<f32>> {
    let mut weights = BTreeMap::new();
    for entry in std::fs::read_dir(path(name)).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            let bytes = std::fs::read(path(name).join(file)).unwrap();
            for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let data = tensor.data();
                let values = match tensor.dtype() {
                    Dtype::F32 => data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
                    Dtype::BF16 => {
                        data.as_chunks::<2>().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect()
                    }
                    other => panic!("{name} is {other:?}"),
                };
                weights.insert(name, values);
            }
        }
    }
    weights
}

/// The inputs of a training step of the whole batch.
fn inputs(batch: &Batch) -> Vec<(&'static str, Data<'_>)> {
    let mut inputs = vec![("tokens", Data::I32(&batch.tokens)), ("targets", Data::I32(&batch.targets))];
    inputs.extend(batch.doc_start.as_ref().map(|starts| ("doc_start", Data::I32(starts))));
    inputs
}

/// The `logits` of the golden file: of each position of row 0, or of the labels of each row.
fn logits(folder: &Folder, run: &mut Run) -> Vec<f32> {
    let batch = &folder.batch;
    let expected = folder.golden.floats("logits").len();
    if folder.architecture.labels().is_some() {
        return run.predict(&inputs(batch)).unwrap().remove("logits").unwrap();
    }
    let mut all = Vec::new();
    for position in 0..GOLDEN_SEQ {
        let (at, mut logits) = ([position as i32], vec![0.0; expected / GOLDEN_SEQ]);
        let mut inputs =
            vec![("tokens", Data::I32(&batch.tokens[..GOLDEN_SEQ])), ("position", Data::I32(&at))];
        inputs.extend(batch.doc_start.as_ref().map(|starts| ("doc_start", Data::I32(&starts[..GOLDEN_SEQ]))));
        run.engine_mut().run(Role::Generate, &inputs).unwrap();
        run.engine().output(Role::Generate, "logits", &mut logits).unwrap();
        all.extend(logits);
    }
    all
}

#[test]
fn logits_loss_and_every_gradient_are_those_of_transformers() {
    for folder in FOLDERS.map(Folder::open) {
        let (mut run, name) = (folder.run(), folder.name);
        let shown = distance(&logits(&folder, &mut run), &folder.golden.floats("logits"));
        let (batch, expected) = (inputs(&folder.batch), folder.golden.floats("loss"));
        let evaluated = distance(&[run.evaluate(&batch).unwrap()], &expected);
        let loss = distance(&[run.step(0.0, &[batch]).unwrap().loss], &expected);
        let (gradient, at) = folder.worst("grad.", KEY_BIAS_GRADIENT, |name| run.gradient(name).unwrap());
        println!("{name}: logits {shown:.1e}, loss {loss:.1e}, gradients {gradient:.1e} ({at})");
        assert!(shown <= LOGITS, "{name}: logits {shown}");
        assert!(loss <= LOSS && evaluated <= LOSS, "{name}: loss {loss}, evaluated {evaluated}");
        assert!(gradient <= GRADIENT, "{name}: {at} {gradient}");
        let golden = folder.golden.names().iter().filter(|name| name.starts_with("grad.")).count();
        assert_eq!(parameters(&run).len(), golden, "{name}");
    }
}

#[test]
fn ten_steps_of_adamw_are_those_of_transformers_and_pytorch() {
    for folder in FOLDERS.map(Folder::open) {
        let (mut run, name) = (folder.run(), folder.name);
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let stepped = run.step(LR, &[inputs(&folder.batch)]).unwrap();
            losses.push(stepped.loss);
            norms.push(stepped.grad_norm);
        }
        let loss = distance(&losses, &folder.golden.floats("losses"));
        let norm = distance(&norms, &folder.golden.floats("grad_norms"));
        let (weight, at) = folder.worst("final.", KEY_BIAS_WEIGHT, |name| run.state(name).unwrap());
        let compared = folder.golden.names().iter().filter(|name| name.starts_with("final.")).count();
        assert_eq!(compared, parameters(&run).len(), "{name}: every weight, the tables of words too");
        println!("{name}: losses {loss:.1e}, norms {norm:.1e}, final weights {weight:.1e} ({at})");
        assert!(losses[STEPS - 1] < losses[0], "{name} learns");
        assert!(loss <= LOSS, "{name}: losses {loss}");
        assert!(norm <= LOSS, "{name}: norms {norm}");
        assert!(weight <= WEIGHT, "{name}: {at} {weight}");
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
    }
}

#[test]
fn what_stands_in_the_padding_changes_no_bit() {
    for folder in ["bert", "bert-labels"].map(Folder::open) {
        let mut run = folder.run();
        let mut other = folder.batch.clone();
        let starts = other.doc_start.clone().unwrap();
        for (token, _) in other.tokens.iter_mut().zip(&starts).filter(|(_, start)| **start > 0) {
            *token = 77;
        }
        assert_ne!(other.tokens, folder.batch.tokens);
        let [first, second] = [&folder.batch, &other].map(|batch| {
            let loss = run.step(0.0, &[inputs(batch)]).unwrap().loss;
            let gradient = run.gradient("bert.encoder.layer.0.attention.self.value.weight").unwrap();
            (loss.to_bits(), gradient)
        });
        assert_eq!(first, second, "{}", folder.name);
    }
}
