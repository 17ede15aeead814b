//! Files of strangers with a few bytes or values changed: every reader answers with a value or an error, and never panics.
//!
//! The generator is seeded, so a finding has a number: `target/seed/round`. A short form runs with the tests;
//! `scripts/mutations SECONDS` runs more rounds with other seeds and keeps inputs that broke something. Under `scripts/fuzz` the
//! same readers get inputs that libFuzzer chooses by the code they reach; some of those are kept in `testdata/fuzz` and read here
//! each time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how many alterations are accepted is worth seeing")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use plimsoll_graph::name_hash;
use plimsoll_model::Architecture;
use plimsoll_model::lora::AdapterConfig;
use plimsoll_plan::{Effort, Strategy, Table, remat, solve};
use plimsoll_train::checkpoint::Checkpoint;
use plimsoll_train::data::{ChatTemplate, DataSpec, Dataset, Part, RowLayout, Task, Tokenizer, Validation};
use plimsoll_train::files::{ModelFolder, TensorFile};
use plimsoll_train::generate::GenerationConfig;
use plimsoll_train::pretrained::{AdapterFolder, Pretrained};
use plimsoll_train::{LanguageModel, RawConfig, plan_for, plan_from_file};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

#[cfg(fuzzing)]
#[path = "support/fuzzing.rs"]
mod fuzzing;
#[path = "support/mutate.rs"]
mod mutate;
#[path = "support/resume.rs"]
mod running;
mod support;
use mutate::Mutator;
use running::{open, pinned, save, take, trainer, write_text};
use support::{Size, llama, options};

/// Rounds of each target in the tests.
const ROUNDS: u64 = 150;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Rounds and the first seed: as the environment of `scripts/mutations` has them, or few.
fn asked() -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    (number("MUTATION_ROUNDS").unwrap_or(ROUNDS), number("MUTATION_SEED").unwrap_or(0))
}

/// The inputs of a target that were kept: one on each line, as a JSON string, or as a list of bytes if it is no text.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let lines = fs::read_to_string(testdata(&format!("fuzz/{target}.jsonl"))).unwrap_or_default();
    let input = |line| match serde_json::from_str(line).unwrap() {
        Json::String(text) => text.into_bytes(),
        bytes => serde_json::from_value(bytes).unwrap(),
    };
    lines.lines().map(input).collect()
}

/// Reads kept inputs and altered forms of each of the `originals`; `read` says whether one was accepted.
fn strike(target: &str, originals: &[Vec<u8>], mut read: impl FnMut(&[u8]) -> Result<(), String>) {
    let kept = kept(target);
    #[cfg(fuzzing)]
    if fuzzing::chosen(target) {
        fuzzing::run(&[originals, &kept].concat(), read);
    }
    let (rounds, seed) = if cfg!(fuzzing) { (0, 0) } else { asked() };
    for original in originals {
        assert_eq!(read(original), Ok(()), "{target}: the file as it was written");
    }
    let mut judged = |name: &str, input: &[u8]| match catch_unwind(AssertUnwindSafe(|| read(input))) {
        Ok(Ok(())) => 1,
        Ok(Err(said)) => {
            assert!(!said.is_empty() && said.len() < 1 << 16, "{target}/{name}: {said:?}");
            0
        }
        Err(_) => {
            if let Some(folder) = std::env::var_os("MUTATION_FINDINGS") {
                let file = format!("{target}-{}", name.replace('/', "-"));
                let _ = fs::write(Path::new(&folder).join(file), input);
            }
            panic!("{target}/{name} panicked");
        }
    };
    for (line, input) in kept.iter().enumerate().filter(|_| !cfg!(fuzzing)) {
        judged(&format!("kept/{}", line + 1), input);
    }
    let mut accepted = 0;
    for round in 0..rounds {
        let mut mutator = Mutator::new(seed, round);
        let original = &originals[mutator.below(originals.len())];
        let altered = mutator.altered(original);
        accepted += judged(&format!("{seed}/{round}"), &altered);
    }
    println!("{target}: {accepted} of {rounds} were accepted");
}

fn said<T>(result: Result<T, impl std::fmt::Display>) -> Result<(), String> {
    result.map(|_| ()).map_err(|fault| fault.to_string())
}

#[test]
fn headers_of_safetensors() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.safetensors");
    let originals = ["hf/llama/model.safetensors", "lora/llama/adapter_model.safetensors"];
    let originals = originals.map(|name| fs::read(testdata(name)).unwrap());
    // Most of a file is numbers, in which any bytes will do: the header alone is altered, with its length or with one that fits.
    let header = |file: &[u8]| 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let heads = originals.clone().map(|file| file[..header(&file)].to_vec());
    let tails = originals.map(|file| file[header(&file)..].to_vec());
    let read = |head: &[u8], tail: &[u8]| {
        fs::write(&path, [head, tail].concat()).unwrap();
        let file = TensorFile::open(&path).map_err(|fault| fault.to_string())?;
        for (name, tensor) in file.tensors() {
            let mut first = vec![0.0; tensor.shape.iter().product::<usize>().min(4)];
            said(file.read(name, 0, &mut first))?;
        }
        Ok(())
    };
    for (head, tail) in heads.iter().zip(&tails) {
        strike("safetensors", std::slice::from_ref(head), |head| read(head, tail));
        strike("safetensors-header", &[head[8..].to_vec()], |json| {
            read(&[&(json.len() as u64).to_le_bytes()[..], json].concat(), tail)
        });
    }
}

#[test]
fn tokenizers() {
    let folder = TempDir::new().unwrap();
    let original = |name: &str| fs::read(testdata(&format!("tokenizer/{name}/tokenizer.json"))).unwrap();
    strike("tokenizer", &["chatml", "bert"].map(original), |text| {
        fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        let tokenizer = Tokenizer::open(folder.path()).map_err(|fault| fault.to_string())?;
        said(tokenizer.encode("the ship grows 123 é\n"))
    });
    fs::copy(testdata("tokenizer/chatml/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let original = fs::read(testdata("tokenizer/chatml/tokenizer_config.json")).unwrap();
    strike("tokenizer_config", &[original], |text| {
        fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
        said(Tokenizer::open(folder.path()))
    });
}

#[test]
fn indexes_of_weights_and_defaults_of_generation() {
    let folder = TempDir::new().unwrap();
    fs::copy(testdata("bf16.safetensors"), folder.path().join("a.safetensors")).unwrap();
    let file = TensorFile::open(&folder.path().join("a.safetensors")).unwrap();
    let map: BTreeMap<&String, &str> = file.tensors().keys().map(|name| (name, "a.safetensors")).collect();
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string().into_bytes();
    strike("index", &[index], |text| {
        fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        said(ModelFolder::open(folder.path()))
    });
    let original = fs::read(testdata("hf/llama/generation_config.json")).unwrap();
    let more = br#"{"do_sample": true, "temperature": 0.6, "top_k": 50, "top_p": 0.9, "max_new_tokens": 7}"#
        .to_vec();
    strike("generation_config", &[original, more], |text| {
        fs::write(folder.path().join("generation_config.json"), text).unwrap();
        let read = GenerationConfig::read(folder.path()).map_err(|fault| fault.to_string())?;
        let _ = read.map(|read| read.sampling(true));
        Ok(())
    });
}

#[test]
fn configurations_of_models_and_adapters() {
    let models = ["llama", "qwen3", "gpt2", "bert-labels", "mistral"];
    let models = models.map(|name| fs::read(testdata(&format!("hf/{name}/config.json"))).unwrap());
    let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    strike("config", &models, |text| {
        let configuration = Architecture::from_config(&as_text(text)).map_err(|fault| fault.to_string())?;
        said(configuration.architecture.training(1, 8))
    });
    let adapters = ["llama", "llama_patterns", "llama_regex", "gpt2", "bert_labels"];
    let adapters =
        adapters.map(|name| fs::read(testdata(&format!("lora/{name}/adapter_config.json"))).unwrap());
    strike("adapter_config", &adapters, |text| said(AdapterConfig::from_json(&as_text(text))));
    // The same with a base model, on which targets and patterns are checked.
    let (folder, model) = (TempDir::new().unwrap(), Pretrained::open(&testdata("hf/llama")).unwrap());
    let tensors = testdata("lora/llama/adapter_model.safetensors");
    fs::copy(tensors, folder.path().join("adapter_model.safetensors")).unwrap();
    let original = fs::read(testdata("lora/llama/adapter_config.json")).unwrap();
    strike("adapter", &[original], |text| {
        fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        said(AdapterFolder::open(folder.path(), &model.configuration))
    });
}

#[test]
fn chat_templates_and_conversations() {
    let cases = fs::read_to_string(testdata("chat/cases.jsonl")).unwrap();
    let cases: Vec<Json> = cases.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sound = || cases.iter().filter(|case| case["text"].is_string());
    let templates: Vec<Vec<u8>> = sound().map(|case| case["template"].as_str().unwrap().into()).collect();
    let messages = cases[0]["messages"].as_array().unwrap();
    strike("template", &templates, |source| {
        let template = ChatTemplate::new(&String::from_utf8_lossy(source), Vec::new())?;
        // Many templates need other fields than this conversation has, so a failed rendering is no fault.
        let _ = template.render(messages, None, true);
        Ok(())
    });
}

#[test]
fn data_in_lines_and_tables() {
    let folder = TempDir::new().unwrap();
    let tokenizer = Tokenizer::open(&testdata("tokenizer/chatml")).unwrap();
    let read = |name: &str, bytes: &[u8], skip_bad_lines| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let spec = DataSpec {
            parts: vec![Part::from(path.as_path())],
            validation: Validation::None,
            task: Task::Causal,
            layout: RowLayout::Packed,
            seq_len: 16,
            vocabulary: 400,
            seed: 3,
            skip_bad_lines,
            cache: folder.path().join("cache"),
            threads: 1,
            classes: None,
            memory: 1 << 30,
        };
        let opened = Dataset::open(&spec, &tokenizer, &mut |_| {});
        let _ = fs::remove_dir_all(folder.path().join("cache"));
        said(opened)
    };
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b é"}],
                      "tools": [{"name": "f", "parameters": {"type": "object"}}]});
    let pair = json!({"prompt": "2 + 2 = ", "completion": "4"});
    let lines = format!("{}\n{chat}\n\n{pair}\n", json!({"text": "some text"}));
    strike("jsonl", &[lines.clone().into_bytes()], |bytes| read("d.jsonl", bytes, false));
    strike("jsonl-lenient", &[lines.into_bytes()], |bytes| read("d.jsonl", bytes, true));
    #[cfg(feature = "parquet")]
    {
        let path = folder.path().join("made.parquet");
        write_parquet(&path);
        strike("parquet", &[fs::read(&path).unwrap()], |bytes| read("d.parquet", bytes, false));
    }
}

#[cfg(feature = "parquet")]
fn write_parquet(path: &Path) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;
    let schema = Arc::new(parse_message_type("message m { required binary text (UTF8); }").unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts: Vec<ByteArray> = ["one text", "another", "a third one"].map(ByteArray::from).into();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn states_of_checkpoints() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let mut trained = trainer(&data, &pinned());
    take(&mut trained, 1);
    let checkpoint = save(&trained, &open(&home.path().join("out"), None).unwrap());
    let path = checkpoint.join("trainer_state.json");
    let original = fs::read(&path).unwrap();
    strike("checkpoint", std::slice::from_ref(&original), |bytes| {
        fs::write(&path, bytes).unwrap();
        said(Checkpoint::open(&checkpoint))
    });
    // With a valid checksum, so that the altered content itself is judged.
    strike("checkpoint-signed", &[original], |bytes| {
        fs::write(&path, signed(bytes)).unwrap();
        said(Checkpoint::open(&checkpoint))
    });
}

/// The same state with a checksum of its own, where it still is JSON.
fn signed(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut state) = serde_json::from_slice::<Json>(bytes) else { return bytes.to_vec() };
    if !state.is_object() {
        return bytes.to_vec();
    }
    state["checksum"] = json!("");
    let sum = Sha256::digest(format!("{state:#}"));
    state["checksum"] = json!(sum.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")));
    format!("{state:#}\n").into_bytes()
}

#[test]
fn files_of_plans_and_settings() {
    let size = Size { vocab: 50, seq: 8, width: 16, layers: 2, ffn: 24, dropout: 0.1 };
    let model = LanguageModel { architecture: llama(size), seq_len: size.seq, generate: false, lora: None };
    let asked = options(2, 1, Strategy::Auto, 1);
    let device = plimsoll_devices::cpu(1).unwrap();
    let plan = plan_for(&model, &*device, &asked).unwrap().to_file();
    let read = |bytes: &[u8]| said(plan_from_file(&model, &*device, &asked, &String::from_utf8_lossy(bytes)));
    strike("plan", &[plan.clone().into_bytes()], read);
    // With a valid hash, so that the judge sees the altered content.
    strike("plan-signed", &[plan.into_bytes()], |bytes| read(&signed_plan(bytes)));
    let settings =
        "model = \"tiny\"\nlearning_rate = 1e-3\nmax_steps = 5\nlora_target_modules = [\"q_proj\"]\n";
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("settings.toml");
    strike("settings", &[settings.as_bytes().to_vec()], |bytes| {
        fs::write(&path, bytes).unwrap();
        said(RawConfig::gather(Some(&path), &[]))
    });
}

#[test]
fn tables_of_layouts() {
    let plain = "id,lower,upper,size\na,0,2,4\nb,2,6,4\nc,1,3,16\nd,0,9,1\n";
    let more = "name,size,id,upper,lower,offset\nx,64,b1,3,0,0\ny,128,b2,5,2,64\nz,32,b3,9,4,0\n";
    strike("layout", &[plain, more].map(|text| text.as_bytes().to_vec()), |bytes| {
        let table = Table::parse(&String::from_utf8_lossy(bytes)).map_err(|fault| fault.to_string())?;
        let made = solve(table.slots(), None, Effort { operations: 10_000 });
        // The printed table must parse as a table of the same slots.
        let again = Table::parse(&table.with_offsets(&made.offsets)).map_err(|fault| fault.to_string());
        assert_eq!(again.unwrap().slots(), table.slots());
        Ok(())
    });
}

#[test]
fn graphs_to_plan() {
    let node = |id: u64, backward: bool, cost: f64, bytes: u64| json!({ "id": id, "name": format!("n{id}"), "backward": backward, "cost_cpu": cost, "cost_ram": bytes });
    let link = |(source, target): (u64, u64)| json!({ "source": source, "target": target });
    let nodes = [
        node(0, false, 10.0, 500),
        node(1, false, 3.5, 400),
        node(2, false, 20.0, 100),
        node(4, true, 10.0, 100),
        node(5, true, 5.0, 400),
        node(7, true, 5.0, 500),
    ];
    let links = [(0, 1), (1, 2), (2, 4), (4, 5), (1, 5), (5, 7), (0, 7)].map(link);
    let original = json!({ "nodes": nodes, "links": links }).to_string().into_bytes();
    strike("graph", &[original], |bytes| {
        let dag = remat::parse(&String::from_utf8_lossy(bytes)).map_err(|fault| fault.to_string())?;
        let effort =
            remat::DagEffort { labels: 50, pairs: 10, trials: 5, beam: 4, work: 100_000, total: 2_000_000 };
        for memory in [1, 1100, u64::MAX] {
            // Whether a plan is found is not the question.
            let _ = remat::plan_dag(&dag, memory, effort);
        }
        Ok(())
    });
}

/// The same plan with a hash of its own, where it still is JSON.
fn signed_plan(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut file) = serde_json::from_slice::<Json>(bytes) else { return bytes.to_vec() };
    if !file.is_object() || file["plan"].is_null() {
        return bytes.to_vec();
    }
    file["hash"] = json!(format!("{:016x}", name_hash(&file["plan"].to_string())));
    file.to_string().into_bytes()
}
