//! Folders in, folders out: a model is read, an adapter trained on it, both are written, merged and read again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_devices::cpu;
use plimsoll_exec::Data;
use plimsoll_model::Lora;
use plimsoll_model::lora::AdapterConfig;
use plimsoll_plan::ProcessBytes;
use plimsoll_train::generate::{Generator, Sampling};
use plimsoll_train::memory::Budget;
use plimsoll_train::pretrained::merge;
use plimsoll_train::pretrained::{AdapterFolder, Pretrained, adapter_form};
use plimsoll_train::{Adapted, LanguageModel, Options, Run, TrainError};

const SEQ: usize = 16;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf").join(name)
}

fn budget() -> Budget {
    Budget::resolve(Some(256 << 20)).unwrap()
}

/// Trains an adapter for a few steps on one batch and writes it to `out`.
fn train_adapter(base: &Pretrained, lora: &Lora, out: &Path) {
    let architecture = base.configuration.architecture.clone();
    let vocab = architecture.vocab() as i32;
    let model = LanguageModel { architecture, seq_len: SEQ, generate: false, lora: None };
    let options = Options { memory: Some(1 << 30), global_batch: 2, threads: 1, ..Options::default() };
    let mut run = Run::new(Adapted { model, lora: lora.clone() }, &options).unwrap();
    let parameters: Vec<_> = run.parameters(true).map(|(name, ty)| (name.to_owned(), ty)).collect();
    base.load(run.engine_mut(), parameters.iter().map(|(name, ty)| (name.as_str(), *ty))).unwrap();
    let tokens: Vec<i32> = (0..2 * SEQ as i32).map(|i| (i * 7 + 3) % vocab).collect();
    let targets: Vec<i32> = (0..2 * SEQ as i32).map(|i| (i * 7 + 10) % vocab).collect();
    let mut losses = Vec::new();
    for _ in 0..6 {
        let inputs = [("tokens", Data::I32(&tokens)), ("targets", Data::I32(&targets))];
        losses.push(run.step(1e-2, &[inputs]).unwrap().loss);
    }
    assert!(losses[5] < losses[0], "{losses:?}");
    fs::create_dir_all(out).unwrap();
    run.save_weights(out, &adapter_form(lora, base, &base.configuration).unwrap()).unwrap();
}

fn written(model: &Pretrained, adapter: Option<&AdapterFolder>) -> Vec<i32> {
    let mut generator = Generator::open(model, adapter, SEQ, &budget(), cpu(1).unwrap()).unwrap();
    let mut ids = Vec::new();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    generator
        .write(&[3, 10, 17], SEQ, &greedy, |id| {
            ids.push(id);
            true
        })
        .unwrap();
    ids
}

#[test]
fn a_model_with_its_adapter_writes_what_the_merged_model_writes() {
    for name in ["llama2", "qwen3", "gpt2", "mistral"] {
        let home = tempfile::tempdir().unwrap();
        let (adapter, merged) = (home.path().join("adapter"), home.path().join("merged"));
        let base = Pretrained::open(&folder(name)).unwrap();
        let lora = Lora { rank: 4, alpha: 16.0, ..Lora::default() };
        train_adapter(&base, &lora, &adapter);
        let adapter = AdapterFolder::open(&adapter, &base.configuration).unwrap();
        assert_eq!(adapter.config.lora, lora);
        merge(&base, &adapter, &merged).unwrap();
        let merged = Pretrained::open(&merged).unwrap();
        let (with, without) = (written(&base, Some(&adapter)), written(&base, None));
        assert_eq!(written(&merged, None), with, "{name}");
        assert_ne!(with, without, "{name}: the adapter was trained, so the text is another");
    }
}

#[test]
fn an_adapter_names_the_model_as_the_hub_does() {
    let mut base = Pretrained::open(&folder("mistral")).unwrap();
    base.folder = "hub/models--owner--model/snapshots/c0ffee".into();
    let form = adapter_form(&Lora::default(), &base, &base.configuration).unwrap();
    let [(name, text)] = &form.texts[..] else { panic!("nothing but its configuration") };
    let config = AdapterConfig::from_json(text).unwrap();
    assert_eq!((name.as_str(), config.base_model.as_deref()), ("adapter_config.json", Some("owner/model")));
    assert_eq!(config.base_class.unwrap().class, "MistralForCausalLM");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let base = Pretrained::open(&folder("qwen3")).unwrap();
    let lora = Lora { rank: 2, ..Lora::default() };
    train_adapter(&base, &lora, &home.path().join("adapter"));
    let other = Pretrained::open(&folder("gpt2")).unwrap();
    let open = |base: &Pretrained| AdapterFolder::open(&home.path().join("adapter"), &base.configuration);
    let why = open(&other).unwrap_err().to_string();
    assert!(why.contains("does not go with this model") && why.contains("qwen3"), "{why}");

    let adapter = open(&base).unwrap();
    let why = merge(&base, &adapter, home.path()).unwrap_err().to_string();
    assert!(why.contains("is not empty"), "{why}");
    let tight = Budget { total: ProcessBytes(1 << 20), ..budget() };
    let error = Generator::open(&base, None, SEQ, &tight, cpu(1).unwrap()).unwrap_err();
    assert!(
        matches!(&error, TrainError::Config(why) if why.contains("MiB, which is surely enough")),
        "{error}"
    );
}
