//! Models in folders: saved weights are read back unchanged, from one file or many, and wrong folders are refused by name.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use half::bf16;
use plimsoll_exec::rounding;
use plimsoll_plan::Strategy;
use plimsoll_train::files::{Dtype, ModelFolder, ModelFormat, StoredName, TensorSpec, TensorWriter};
use plimsoll_train::{Options, Run, StateStorage, WeightStorage};
use tempfile::TempDir;

use crate::support::{GOLDEN_SEQ, Size, gpt2, llama, options, parameters, start};

fn run(seed: u64) -> Run {
    let options = Options { seed, ..options(2, 2, Strategy::None, 1) };
    start(&gpt2(Size::GOLDEN), GOLDEN_SEQ, &options)
}

/// The name of a parameter in a file: with the prefix that some of GPT-2's files have, or else without it.
fn stored(name: &str) -> StoredName {
    let bare = name.trim_start_matches("transformer.");
    StoredName { name: format!("transformer.{bare}"), alternatives: vec![bare.to_owned()], optional: false }
}

fn form() -> ModelFormat {
    ModelFormat { stored: Arc::new(stored), ..ModelFormat::default() }
}

fn all_equal(one: &Run, other: &Run) -> bool {
    parameters(one).iter().all(|name| one.state(name).unwrap() == other.state(name).unwrap())
}

#[test]
fn weights_come_back_bit_for_bit_from_one_file_and_from_many() {
    let folder = TempDir::new().unwrap();
    let saved = run(1);
    for shard_bytes in [u64::MAX, 20_000] {
        let form = ModelFormat { shard_bytes, ..form() };
        let written = saved.save_weights(folder.path(), &form).unwrap();
        let mut loaded = run(2);
        assert!(!all_equal(&saved, &loaded));
        let unused = loaded.load_weights(&ModelFolder::open(folder.path()).unwrap(), &form).unwrap().unused;
        assert!(all_equal(&saved, &loaded) && unused.is_empty(), "{unused:?}");
        // The first division is gone when the second is in place.
        let present: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(present.len(), written.len(), "{present:?}");
        assert_eq!(written.len() > 1, shard_bytes == 20_000);
    }
}

#[test]
fn half_precision_files_load_as_their_rounded_numbers_and_other_names_are_found() {
    let folder = TempDir::new().unwrap();
    let saved = run(1);
    let bare = |name: &str| StoredName::plain(name.trim_start_matches("transformer."));
    let written = ModelFormat { dtype: Some(Dtype::BF16), stored: Arc::new(bare), ..ModelFormat::default() };
    saved.save_weights(folder.path(), &written).unwrap();
    let mut loaded = run(2);
    loaded.load_weights(&ModelFolder::open(folder.path()).unwrap(), &form()).unwrap();
    for name in parameters(&saved) {
        let rounded: Vec<f32> =
            saved.state(&name).unwrap().iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        assert_eq!(loaded.state(&name).unwrap(), rounded, "{name}");
    }
}

#[test]
fn a_master_copy_begins_with_every_bit_of_the_file() {
    let folder = TempDir::new().unwrap();
    let saved = run(1);
    saved.save_weights(folder.path(), &form()).unwrap();
    let storage = StateStorage { weights: WeightStorage::Bf16Master, ..StateStorage::default() };
    let options = Options { storage, ..options(2, 2, Strategy::None, 1) };
    let mut loaded = start(&gpt2(Size::GOLDEN), GOLDEN_SEQ, &options);
    loaded.load_weights(&ModelFolder::open(folder.path()).unwrap(), &form()).unwrap();
    let mut rounded = 0;
    for name in parameters(&saved) {
        let expected = saved.state(&name).unwrap();
        let (upper, lower) = (loaded.state(&name).unwrap(), loaded.state(&format!("low.{name}")).unwrap());
        for ((upper, lower), expected) in upper.iter().zip(lower).zip(expected) {
            let master = rounding::join(bf16::from_f32(*upper), lower as i16);
            assert_eq!(master.to_bits(), expected.to_bits(), "{name}");
            let nearest = bf16::from_f32(expected).to_f32();
            assert!((upper - expected).abs() <= (nearest - expected).abs(), "{name}");
            rounded += usize::from(upper.to_bits() != expected.to_bits());
        }
    }
    assert!(rounded > 1000, "only {rounded} numbers need their lower half");
}

#[test]
fn what_lies_beside_a_model_goes_with_it() {
    let (source, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for name in ["tokenizer.json", "chat_template.jinja", "config.json", "README.md"] {
        fs::write(source.path().join(name), name).unwrap();
    }
    let texts = vec![("config.json".to_owned(), "{}".to_owned())];
    let form = ModelFormat { texts, beside: Some(source.path().to_owned()), ..form() };
    run(1).save_weights(target.path(), &form).unwrap();
    let text = |name: &str| fs::read_to_string(target.path().join(name)).unwrap();
    assert_eq!(
        (text("tokenizer.json"), text("chat_template.jinja")),
        ("tokenizer.json".into(), "chat_template.jinja".into())
    );
    let folder = ModelFolder::open(target.path()).unwrap();
    assert!(
        folder.config().unwrap() == "{}"
            && folder.has_tokenizer()
            && !target.path().join("README.md").exists()
    );
}

fn refused(folder: &Path) -> String {
    let folder = match ModelFolder::open(folder) {
        Ok(folder) => folder,
        Err(error) => return error.to_string(),
    };
    run(1).load_weights(&folder, &form()).unwrap_err().to_string()
}

#[test]
fn a_folder_that_is_wrong_is_refused_with_its_reason() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    assert!(
        refused(&path.join("absent")).contains("absent is not a folder"),
        "{}",
        refused(&path.join("absent"))
    );
    assert!(refused(path).contains("holds no model.safetensors and no model.safetensors.index.json"));
    fs::write(path.join("pytorch_model.bin"), "").unwrap();
    assert!(refused(path).contains("holds pickled weights only"));

    let index = path.join("model.safetensors.index.json");
    let map = |file: &str| format!(r#"{{"weight_map":{{"wte.weight":"{file}"}}}}"#);
    for outside in ["../model.safetensors", "/etc/passwd", "a/../../b", ""] {
        fs::write(&index, map(outside)).unwrap();
        let fault = refused(path);
        assert!(fault.contains(&format!("names `{outside}`, which lies outside its folder")), "{fault}");
    }
    fs::write(&index, map("part.safetensors")).unwrap();
    assert!(refused(path).contains("part.safetensors cannot be read (it does not exist)"));
    let other = vec![TensorSpec { name: "other".into(), dtype: Dtype::F32, shape: vec![0] }];
    TensorWriter::create(&path.join("part.safetensors"), other).unwrap().finish().unwrap();
    assert!(refused(path).contains("part.safetensors holds no tensor `wte.weight`"));
    fs::write(&index, "{}").unwrap();
    assert!(refused(path).contains("is no index of weights (missing field `weight_map`"));
}

#[test]
fn weights_of_another_configuration_are_refused_by_the_tensor_that_differs() {
    let folder = TempDir::new().unwrap();
    let wide =
        start(&gpt2(Size { width: 64, ..Size::GOLDEN }), GOLDEN_SEQ, &options(2, 2, Strategy::None, 1));
    wide.save_weights(folder.path(), &form()).unwrap();
    let fault = refused(folder.path());
    assert!(fault.contains("where the configuration has"), "{fault}");
    let other = start(&llama(Size::GOLDEN), GOLDEN_SEQ, &options(2, 2, Strategy::None, 1));
    other.save_weights(folder.path(), &ModelFormat::default()).unwrap();
    let fault = refused(folder.path());
    assert!(fault.contains("holds no tensor `transformer."), "{fault}");
}

#[test]
fn tensors_that_nobody_asked_for_and_parameters_that_may_be_new_are_listed() {
    let folder = TempDir::new().unwrap();
    let [two, three] = [2, 3].map(|layers| {
        start(&gpt2(Size { layers, ..Size::GOLDEN }), GOLDEN_SEQ, &options(2, 2, Strategy::None, 1))
    });
    three.save_weights(folder.path(), &form()).unwrap();
    let mut loaded = two;
    let unused = loaded.load_weights(&ModelFolder::open(folder.path()).unwrap(), &form()).unwrap().unused;
    assert!(
        unused.len() == 12 && unused.iter().all(|name| name.starts_with("transformer.h.2.")),
        "{unused:?}"
    );

    loaded.save_weights(folder.path(), &form()).unwrap();
    let mut loaded = three;
    let drawn = loaded.state("transformer.h.2.ln_1.weight").unwrap();
    let optional = |name: &str| StoredName { optional: name.contains(".h.2."), ..stored(name) };
    let form = ModelFormat { stored: Arc::new(optional), ..ModelFormat::default() };
    let absent = loaded.load_weights(&ModelFolder::open(folder.path()).unwrap(), &form).unwrap().absent;
    assert_eq!(absent.len(), 12);
    assert_eq!(loaded.state("transformer.h.2.ln_1.weight").unwrap(), drawn);
}
