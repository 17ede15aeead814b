//! Folders that differ a little from those that transformers wrote: a head beside a tied embedding, weights that were
//! trained further, NaNs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_devices::cpu;
use plimsoll_model::Architecture;
use plimsoll_train::generate::{Generator, Sampling};
use plimsoll_train::memory::Budget;
use plimsoll_train::pretrained::merge;
use plimsoll_train::pretrained::{AdapterFolder, Pretrained};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use tempfile::TempDir;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A copy of a folder of `testdata`, whose weights called `stem` and configuration were changed.
fn changed(name: &str, stem: &str, weights: impl Fn(&mut Tensors), config: impl Fn(&mut Value)) -> TempDir {
    let home = TempDir::new().unwrap();
    for entry in fs::read_dir(testdata(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), home.path().join(entry.file_name())).unwrap();
    }
    let path = home.path().join(format!("{stem}.safetensors"));
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter();
    let mut tensors: Tensors = tensors
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    weights(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let path = home.path().join("config.json");
    if path.exists() {
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config(&mut json);
        fs::write(&path, json.to_string()).unwrap();
    }
    home
}

fn generated(model: &Pretrained) -> Result<Vec<i32>, String> {
    let budget = Budget::resolve(Some(256 << 20)).unwrap();
    let mut generator = Generator::open(model, None, 16, &budget, cpu(1).unwrap()).unwrap();
    let (mut ids, greedy) = (Vec::new(), Sampling { temperature: 0.0, ..Sampling::default() });
    let each = |id| {
        ids.push(id);
        true
    };
    generator.write(&[3, 10, 17], 16, &greedy, each).map_err(|error| error.to_string())?;
    Ok(ids)
}

fn is_tied(model: &Pretrained) -> bool {
    matches!(&model.configuration.architecture, Architecture::Llama(model) if model.tie_embeddings)
}

#[test]
fn a_head_that_differs_from_the_embedding_it_is_said_to_be_tied_to_is_a_head_of_its_own() {
    let own = Pretrained::open(&testdata("hf/mistral")).unwrap();
    let tie = |config: &mut Value| config["tie_word_embeddings"] = true.into();
    let home = changed("hf/mistral", "model", |_| {}, tie);
    let model = Pretrained::open(home.path()).unwrap();
    assert!(!is_tied(&model));
    let [note] = &model.configuration.notes[..] else { panic!("{:?}", model.configuration.notes) };
    let said = "model.safetensors holds `lm_head.weight` with other numbers than `model.embed_tokens.weight`, so the \
                model has a head of its own, though `tie_word_embeddings` is true";
    assert!(note.ends_with(said), "{note}");
    assert_eq!(serde_json::from_str::<Value>(&model.config).unwrap()["tie_word_embeddings"], false);
    assert_eq!(generated(&model), generated(&own));

    let without = |tensors: &mut Tensors| drop(tensors.remove("lm_head.weight"));
    let tied = changed("hf/mistral", "model", without, tie);
    assert_ne!(generated(&Pretrained::open(tied.path()).unwrap()), generated(&own));
}

#[test]
fn a_head_that_is_a_copy_of_the_embedding_is_passed_over() {
    let copy = |tensors: &mut Tensors| {
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".into(), embedding);
    };
    let home = changed("hf/llama", "model", copy, |_| {});
    let model = Pretrained::open(home.path()).unwrap();
    assert!(is_tied(&model) && model.configuration.notes.is_empty());
    // A single number deep in the file is enough.
    let almost = |tensors: &mut Tensors| {
        copy(tensors);
        let bytes = &mut tensors.get_mut("lm_head.weight").unwrap().2;
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    };
    assert!(!is_tied(&Pretrained::open(changed("hf/llama", "model", almost, |_| {}).path()).unwrap()));
}

#[test]
fn models_that_are_always_tied_are_refused_with_a_head_that_differs() {
    for (name, embedding, head) in [
        ("hf/gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("hf/bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ] {
        let with_head = |flip: u8| {
            let weights = move |tensors: &mut Tensors| {
                let mut tensor = tensors[embedding].clone();
                tensor.2[100] ^= flip;
                tensors.insert(head.into(), tensor);
            };
            changed(name, "model", weights, |_| {})
        };
        Pretrained::open(with_head(0).path()).unwrap();
        let why = Pretrained::open(with_head(1).path()).unwrap_err().to_string();
        let expected = format!(
            "model.safetensors holds `{head}` with other numbers than `{embedding}`, and models of this kind are \
             trained with one weight for both; tie them in transformers and save the model again"
        );
        assert!(why.ends_with(&expected), "{why}");
    }
}

#[test]
fn a_second_name_does_not_outlive_the_numbers_it_was_a_copy_of() {
    const BIAS: [&str; 2] = ["cls.predictions.bias", "cls.predictions.decoder.bias"];
    let copied = |tensors: &mut Tensors| {
        let bias = tensors[BIAS[0]].clone();
        tensors.insert(BIAS[1].into(), bias);
    };
    let base = changed("hf/bert", "model", copied, |_| {});
    // An adapter that trained the whole head: everything in it was doubled.
    let head = |tensors: &mut Tensors| {
        let zeros = |shape: [usize; 2]| (Dtype::F32, shape.to_vec(), vec![0; 4 * shape[0] * shape[1]]);
        let mut own = Tensors::new();
        for layer in 0..2 {
            let module = format!("base_model.model.bert.encoder.layer.{layer}.attention.self.query");
            own.insert(format!("{module}.lora_A.weight"), zeros([1, 32]));
            own.insert(format!("{module}.lora_B.weight"), zeros([32, 1]));
        }
        for (name, (dtype, shape, bytes)) in tensors.iter().filter(|(name, _)| name.starts_with("cls.")) {
            let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| 2.0 * f32::from_le_bytes(*bytes));
            let doubled = numbers.flat_map(f32::to_le_bytes).collect();
            own.insert(format!("base_model.model.{name}"), (*dtype, shape.clone(), doubled));
        }
        *tensors = own;
    };
    let adapter = changed("hf/bert", "model", head, |_| {});
    fs::rename(adapter.path().join("model.safetensors"), adapter.path().join("adapter_model.safetensors"))
        .unwrap();
    fs::remove_file(adapter.path().join("config.json")).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 1, "target_modules": ["query"], "modules_to_save": ["cls"]}"#;
    fs::write(adapter.path().join("adapter_config.json"), config).unwrap();

    let model = Pretrained::open(base.path()).unwrap();
    let adapter = AdapterFolder::open(adapter.path(), &model.configuration).unwrap();
    let out = base.path().join("out");
    merge(&model, &adapter, &out).unwrap();
    Pretrained::open(&out).unwrap();
    let bytes = fs::read(out.join("model.safetensors")).unwrap();
    let names = SafeTensors::deserialize(&bytes).unwrap().names().join(" ");
    assert_eq!(BIAS.map(|name| names.contains(name)), [true, false]);
}

#[test]
fn the_mark_of_a_model_is_of_all_its_numbers() {
    let last = |tensors: &mut Tensors| {
        *tensors.get_mut("model.embed_tokens.weight").unwrap().2.last_mut().unwrap() ^= 1;
    };
    let mark = |folder: &Path| Pretrained::open(folder).unwrap().mark().unwrap();
    let same = changed("hf/llama", "model", |_| {}, |_| {});
    let other = changed("hf/llama", "model", last, |_| {});
    assert_eq!(mark(same.path()), mark(&testdata("hf/llama")));
    assert_ne!(mark(other.path()), mark(&testdata("hf/llama")));
}

#[test]
fn numbers_that_are_none_are_neither_generated_from_nor_merged() {
    const TENSOR: &str = "model.layers.1.mlp.down_proj.weight";
    let nan = |name: &'static str| {
        move |tensors: &mut Tensors| {
            tensors.get_mut(name).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    };
    let broken = changed("hf/llama", "model", nan(TENSOR), |_| {});
    let why = generated(&Pretrained::open(broken.path()).unwrap()).unwrap_err();
    assert!(why.starts_with("the model's logits are not finite"), "{why}");

    let in_file = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    let broken = changed("lora/llama", "adapter_model", nan(in_file), |_| {});
    let base = Pretrained::open(&testdata("hf/llama")).unwrap();
    let adapter = AdapterFolder::open(broken.path(), &base.configuration).unwrap();
    let out = broken.path().join("out");
    let why = merge(&base, &adapter, &out).unwrap_err().to_string();
    assert!(why.contains(&format!("makes numbers of `{TENSOR}` that are not finite")), "{why}");
    assert!(!out.exists());
}

#[test]
fn a_text_ends_where_the_generation_config_says_or_else_the_configuration() {
    let home = changed("hf/llama", "model", |_| {}, |_| {});
    let settings = home.path().join("generation_config.json");
    let generated = || generated(&Pretrained::open(home.path()).unwrap()).unwrap();
    fs::write(&settings, "{\"eos_token_id\": 255}").unwrap();
    let whole = generated();
    assert_eq!(whole.len(), 13);
    let last = whole[4];
    let until = whole.iter().position(|id| *id == last).unwrap();
    for stated in [format!("{last}"), format!("[254, {last}]")] {
        fs::write(&settings, format!("{{\"eos_token_id\": {stated}}}")).unwrap();
        assert_eq!(generated(), whole[..until]);
    }
    fs::write(&settings, "{}").unwrap();
    let path = home.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["eos_token_id"] = last.into();
    fs::write(&path, config.to_string()).unwrap();
    assert_eq!(generated(), whole[..until]);
}
