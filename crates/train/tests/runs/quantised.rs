//! Frozen bases in few bits: losses of PEFT over bitsandbytes, folders that bitsandbytes quantised, and the promises of a
//! plan.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_graph::op::Quantised;
use plimsoll_graph::{Graph, Op, Phase};
use plimsoll_plan::{Role, Strategy};
use plimsoll_train::files::{ModelFolder, QuantisedTensor};
use plimsoll_train::generate::{Generator, Sampling};
use plimsoll_train::pretrained::{MergedInto, Pretrained, merge};
use plimsoll_train::{Config, Options, RawConfig, Run, plan_for};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::support::{Golden, STRATEGIES, distance};

/// The tolerance on losses, as in `lora.rs`.
const LOSS: f32 = 5e-6;
const STEPS: usize = 10;

fn testdata(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantised").join(path)
}

/// Settings of ten steps over a base of `folder`, with the adapter of `reference/quantised.py`.
fn settings(folder: &str, adapter: &str) -> RawConfig {
    RawConfig {
        model: Some(testdata(folder).display().to_string()),
        adapter: Some(testdata(adapter).join("adapter")),
        seq_len: Some(16),
        global_batch: Some(4),
        micro_batch: Some(4),
        memory: Some("2GiB".into()),
        learning_rate: Some(1e-3),
        adam_beta2: Some(0.95),
        weight_decay: Some(0.1),
        threads: Some(2),
        costs: Some("modelled".into()),
        synthetic: Some(true),
        update: Some("separate".into()),
        ..RawConfig::default()
    }
}

fn four_bits(raw: RawConfig) -> RawConfig {
    RawConfig { load_in_4bit: Some(true), ..raw }
}

/// A planned run with its weights.
fn start(raw: &RawConfig) -> (Config, Run) {
    let config = Config::check(raw).unwrap();
    let device = config.options.plain_device().unwrap();
    let planned = plan_for(&config.model, &*device, &config.options).unwrap();
    let mut run = Run::start(device, planned, config.options.seed).unwrap();
    let loaded = config.load(&mut run).unwrap();
    assert_eq!((loaded.unused, loaded.absent), (Vec::<String>::new(), Vec::<String>::new()));
    (config, run)
}

fn ten_losses(run: &mut Run, golden: &Golden) -> Vec<f32> {
    let batch = golden.batch();
    (0..STEPS).map(|_| batch.step(run, 1e-3).0.iter().sum()).collect()
}

fn assert_losses(case: &str, losses: &[f32], expected: &[f32]) {
    let worst = losses.iter().zip(expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f32::max);
    println!("{case}: losses within {worst:.1e}");
    assert!(worst < LOSS, "{case}: {losses:?} is not {expected:?}");
}

#[test]
fn ten_steps_over_four_bits_have_the_losses_of_peft_over_bitsandbytes() {
    for case in ["llama", "gpt2"] {
        let golden = Golden::read(&format!("quantised/{case}/golden"));
        let (config, mut run) = start(&four_bits(settings(case, case)));
        assert_eq!(config.options.quantised.unwrap().form, Quantised::Nf4Double);
        let losses = ten_losses(&mut run, &golden);
        assert_losses(case, &losses, &golden.floats("losses"));
        for name in run.parameters(false).map(|(name, _)| name.to_owned()).collect::<Vec<_>>() {
            let expected = golden.floats(&format!("final.base_model.model.{name}"));
            assert!(distance(&run.state(&name).unwrap(), &expected) < 2e-4, "{case}: {name}");
        }
    }
}

#[test]
fn other_kinds_of_adapters_over_four_bits_have_the_losses_of_peft_over_bitsandbytes() {
    for kind in ["dora", "ia3"] {
        let golden = Golden::read(&format!("quantised/{kind}/golden"));
        let expected = golden.floats("losses");
        // About one in a hundred of our scales has a neighbouring code, so the losses differ from the first step on.
        let ours = ten_losses(&mut start(&four_bits(settings("llama", kind))).1, &golden);
        assert!(distance(&ours, &expected) < 2e-5, "{kind}: {ours:?} is not {expected:?}");
        let (_, mut run) = start(&settings("llama-nf4", kind));
        let losses = ten_losses(&mut run, &golden);
        assert_losses(kind, &losses, &expected);
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{kind}");
        for name in run.parameters(false).map(|(name, _)| name.to_owned()).collect::<Vec<_>>() {
            let expected = golden.floats(&format!("final.base_model.model.{name}"));
            assert!(distance(&run.state(&name).unwrap(), &expected) < 2e-4, "{kind}: {name}");
        }
    }
}

/// `DoRA` scales each row by its magnitude over its norm. Before the first step both are equal, so the first loss is
/// that of `LoRA`.
#[test]
fn a_new_dora_begins_with_the_lengths_of_the_rows_that_products_read() {
    let new =
        RawConfig { adapter: None, lora_r: Some(4), use_dora: Some(true), ..settings("llama", "llama") };
    let eight = RawConfig { load_in_8bit: Some(true), ..new.clone() };
    for raw in [new.clone(), four_bits(new.clone()), eight] {
        let golden = Golden::read("quantised/llama/golden");
        let dora = ten_losses(&mut start(&raw).1, &golden);
        let lora = ten_losses(&mut start(&RawConfig { use_dora: None, ..raw }).1, &golden);
        assert!((dora[0] - lora[0]).abs() < LOSS * lora[0], "{} {}", dora[0], lora[0]);
        assert!(dora[9] < dora[0] && (dora[9] - lora[9]).abs() > 0.0, "{dora:?} {lora:?}");
    }
}

#[test]
fn ten_steps_over_bytes_have_the_losses_of_a_script_that_dequantises() {
    for case in ["llama", "gpt2"] {
        let golden = Golden::read(&format!("quantised/{case}/golden"));
        let raw = RawConfig { load_in_8bit: Some(true), ..settings(case, case) };
        let losses = ten_losses(&mut start(&raw).1, &golden);
        assert_losses(case, &losses, &golden.floats("int8.losses"));
    }
}

/// Their scales were rounded by bitsandbytes' own kernel, so they may differ from ours by one code; nothing else may.
#[test]
fn folders_that_bitsandbytes_quantised_are_read_as_they_are() {
    for case in ["llama", "gpt2"] {
        let folder = format!("{case}-nf4");
        let golden = Golden::read(&format!("quantised/{case}/golden"));
        let (config, mut run) = start(&settings(&folder, case));
        let base = config.options.quantised.unwrap();
        assert_eq!(base.form, Quantised::Nf4Double, "{case}: nobody had to ask");
        let files = ModelFolder::open(&testdata(&folder)).unwrap();
        for layer in &base.layers {
            let (file, name) = files.find([layer.weight.as_str()]).unwrap();
            let mut expected = vec![0; layer.input * layer.output / 2];
            file.read_bytes(name, 0, &mut expected).unwrap();
            let codes: Vec<u8> = run.state(&layer.weight).unwrap().iter().map(|&code| code as u8).collect();
            assert!(codes == expected, "{case}: {}", layer.weight);
        }
        let losses = ten_losses(&mut run, &golden);
        assert_losses(&folder, &losses, &golden.floats("losses"));
    }
}

/// The folders of bitsandbytes' other forms: their codes and scales are copied, so the numbers are its own to the bit.
#[test]
fn folders_in_bytes_and_with_whole_scales_are_read_as_they_are() {
    let golden = Golden::read("quantised/folders");
    for (folder, case, form, weight) in [
        ("llama-int8", "llama", Quantised::Int8, "model.layers.1.mlp.down_proj.weight"),
        ("gpt2-int8", "gpt2", Quantised::Int8, "transformer.h.0.mlp.c_fc.weight"),
        ("llama-nf4-single", "llama", Quantised::Nf4, "model.layers.1.mlp.down_proj.weight"),
    ] {
        let files = ModelFolder::open(&testdata(folder)).unwrap();
        let stored = QuantisedTensor::find(&files, weight).unwrap().unwrap();
        let expected = golden.floats(&format!("{folder}.{weight}"));
        let ([all, columns], mut numbers) = (stored.shape, vec![0.0; expected.len()]);
        // In pieces of odd sizes: each must begin at its own codes and scales.
        for (first, rows) in [(0, 1), (1, 6), (7, all - 7)] {
            stored.rows(first, &mut numbers[first * columns..][..rows * columns]).unwrap();
        }
        assert!(numbers == expected, "{folder}: {weight}");

        // Nothing is unused, so every tensor beside the codes is known.
        let (config, mut run) = start(&settings(folder, case));
        let base = config.options.quantised.unwrap();
        assert_eq!(base.form, form, "{folder}: nobody had to ask");
        let model = Golden::read(&format!("quantised/{case}/golden"));
        let losses = ten_losses(&mut run, &model);
        let eight = form == Quantised::Int8;
        let expected =
            if eight { model.floats("int8.losses") } else { golden.floats(&format!("{folder}.losses")) };
        assert_losses(folder, &losses, &expected);
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{folder}");
        // Asking for the form of the folder changes nothing.
        let asked = RawConfig {
            load_in_8bit: eight.then_some(true),
            load_in_4bit: (!eight).then_some(true),
            ..settings(folder, case)
        };
        assert_eq!(Config::check(&asked).unwrap().options.quantised.unwrap(), base, "{folder}");
    }
}

#[test]
fn codes_made_while_loading_are_those_that_bitsandbytes_wrote() {
    let (mut all, mut others) = (0, 0);
    for case in ["llama", "gpt2"] {
        let (config, ours) = start(&four_bits(settings(case, case)));
        let (_, theirs) = start(&settings(&format!("{case}-nf4"), case));
        for layer in config.options.quantised.unwrap().layers {
            let state = |run: &Run, suffix: &str| run.state(&format!("{}{suffix}", layer.weight)).unwrap();
            assert!(state(&ours, "") == state(&theirs, ""), "{}", layer.weight);
            let (scales, known) = (state(&ours, ".absmax"), state(&theirs, ".absmax"));
            let steps: Vec<f32> = scales.iter().zip(&known).map(|(a, b)| (a - b).abs()).collect();
            assert!(steps.iter().all(|&step| step <= 1.0), "{}", layer.weight);
            all += scales.len();
            others += steps.iter().filter(|&&step| step > 0.0).count();
        }
    }
    assert!(others * 50 <= all, "{others} of {all} scales are the next code");
}

/// Only linear layers but the head are quantised, as transformers does it.
#[test]
fn embedding_norms_and_head_stay_as_they_are() {
    let (config, run) = start(&four_bits(settings("llama", "llama")));
    let base = config.options.quantised.unwrap();
    assert_eq!(base.layers.len(), 2 * 7);
    for name in ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"] {
        let folder = ModelFolder::open(&testdata("llama")).unwrap();
        let (file, name) = folder.find([name]).unwrap();
        let mut expected = vec![0.0; file.tensor(name).unwrap().shape.iter().product()];
        file.read(name, 0, &mut expected).unwrap();
        assert!(run.state(name).unwrap() == expected && !base.holds(name), "{name}");
    }
}

#[test]
fn the_measured_peak_is_the_planned_one_and_recompute_changes_no_bit() {
    let golden = Golden::read("quantised/llama/golden");
    let mut first: Option<Vec<u32>> = None;
    for strategy in STRATEGIES {
        for threads in [1, 2] {
            let recompute = Some(strategy.to_string());
            let raw =
                RawConfig { recompute, threads: Some(threads), ..four_bits(settings("llama", "llama")) };
            let (_, mut run) = start(&raw);
            let losses: Vec<u32> = ten_losses(&mut run, &golden).iter().map(|loss| loss.to_bits()).collect();
            assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "{strategy}");
            assert_eq!(*first.get_or_insert_with(|| losses.clone()), losses, "{strategy}, {threads} threads");
        }
    }
}

/// A dequantised weight lives from its op to the next one: under no strategy does it wait for the backward pass.
#[test]
fn no_dequantised_weight_outlives_its_reader() {
    for strategy in [Strategy::None, Strategy::Full] {
        let raw =
            RawConfig { recompute: Some(strategy.to_string()), ..four_bits(settings("llama", "llama")) };
        let config = Config::check(&raw).unwrap();
        let device = config.options.plain_device().unwrap();
        let planned = plan_for(&config.model, &*device, &config.options).unwrap();
        let graph: &Graph = &planned.choice.program.train.graph;
        let bytes: BTreeMap<Phase, usize> = graph.nodes().iter().fold(BTreeMap::new(), |mut sum, node| {
            if matches!(node.op, Op::Dequantise(_)) {
                *sum.entry(node.phase).or_default() += graph.ty(node.outputs[0]).bytes();
            }
            sum
        });
        let weights = graph.quantised_bytes().unwrap();
        assert_eq!(bytes[&Phase::Forward] as u64, weights.whole_bytes);
        assert!(weights.bytes as f64 <= 0.130 * weights.whole_bytes as f64, "{weights:?}");
        let plain = RawConfig { load_in_4bit: None, ..raw };
        let plain = Config::check(&plain).unwrap();
        let whole = plan_for(&plain.model, &*device, &plain.options).unwrap();
        let largest = 4 * 64 * 128;
        let saved = weights.whole_bytes - weights.bytes;
        let (small, large) = (planned.choice.plan.arena_bytes.0, whole.choice.plan.arena_bytes.0);
        // The plan holds one dequantised weight at a time more than a plan without codes, and the bytes of alignment.
        assert!(small + saved <= large + 2 * largest, "{strategy}: {small} + {saved}, {large}");
        assert!(planned.choice.plan.schedules.contains_key(&Role::First));
    }
}

#[test]
fn a_base_that_cannot_be_quantised_or_trained_is_refused_in_one_sentence() {
    let fault = |raw: RawConfig| Config::check(&raw).unwrap_err().to_string();
    let plain = RawConfig { adapter: None, ..settings("llama", "llama") };
    let with_rank = RawConfig { lora_r: Some(4), ..plain.clone() };
    assert_eq!(
        fault(four_bits(plain.clone())),
        "load_in_4bit freezes the model's weights; add lora_r, the rank of adapters that are trained over them"
    );
    let folder = testdata("llama-nf4").display().to_string();
    assert_eq!(
        fault(RawConfig { model: Some(folder.clone()), ..plain.clone() }),
        format!(
            "the weights in {folder} are quantised and cannot be trained; add lora_r, the rank of adapters that are \
             trained over them"
        )
    );
    assert_eq!(
        fault(RawConfig { load_in_8bit: Some(true), ..four_bits(with_rank.clone()) }),
        "give either load_in_4bit or load_in_8bit, not both"
    );
    assert_eq!(
        fault(RawConfig { bnb_4bit_quant_type: Some("fp4".into()), ..four_bits(with_rank.clone()) }),
        "bnb_4bit_quant_type must be nf4, got `fp4`"
    );
    assert_eq!(
        fault(RawConfig { bnb_4bit_use_double_quant: Some(true), ..with_rank.clone() }),
        "bnb_4bit_use_double_quant needs load_in_4bit"
    );
    let moved = RawConfig { intrinsic_dimension: Some(8), ..plain.clone() };
    assert_eq!(
        fault(RawConfig { load_in_8bit: Some(true), ..moved.clone() }),
        "load_in_8bit freezes the model's weights, and a subspace moves them; give lora_r in place of intrinsic_dimension"
    );
    assert_eq!(
        fault(RawConfig { model: Some(folder.clone()), ..moved }),
        format!(
            "the weights in {folder} are quantised and cannot be trained, and a subspace moves them; give lora_r in place \
             of intrinsic_dimension"
        )
    );
    let other = RawConfig { model: Some(folder), load_in_8bit: Some(true), ..with_rank.clone() };
    assert!(
        fault(other).contains("are quantised as nf4, scales in 8 bits, and int8 is asked for; leave out")
    );
    // The tiny models of other tests are 32 wide, and 48 inside.
    let narrow = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hf/llama");
    let narrow = RawConfig { model: Some(narrow.display().to_string()), ..with_rank.clone() };
    assert_eq!(
        fault(four_bits(narrow.clone())),
        "`model.layers.0.self_attn.q_proj.weight` has 32 columns, and a block of 4-bit codes holds 64; write \
         load_in_8bit, or leave it as it is with llm_int8_skip_modules"
    );
    Config::check(&RawConfig { load_in_8bit: Some(true), ..narrow }).unwrap();
    let skipped = Some(vec!["nowhere".to_owned()]);
    assert_eq!(
        fault(RawConfig { llm_int8_skip_modules: skipped, ..four_bits(with_rank) }),
        "llm_int8_skip_modules names `nowhere`, which is no linear layer of the model"
    );
}

/// Drawn weights are quantised too: a shape can be tried before there are weights of it.
#[test]
fn a_model_from_scratch_has_codes_of_the_numbers_it_would_have() {
    let raw = RawConfig {
        model: Some("tiny".into()),
        lora_r: Some(2),
        adapter: None,
        seq_len: Some(16),
        load_in_8bit: Some(true),
        ..settings("llama", "llama")
    };
    let (config, coded) = start(&raw);
    let (_, whole) = start(&RawConfig { load_in_8bit: None, ..raw });
    for layer in &config.options.quantised.unwrap().layers {
        let numbers = whole.state(&layer.weight).unwrap();
        let codes = coded.state(&layer.weight).unwrap();
        let scales = coded.state(&format!("{}.SCB", layer.weight)).unwrap();
        for (index, (number, code)) in numbers.iter().zip(codes).enumerate() {
            let scale = scales[index / layer.input];
            let back = f32::from(code as u8 as i8) * scale / 127.0;
            assert!((back - number).abs() <= 0.51 * scale / 127.0, "{}: {number} {back}", layer.weight);
        }
    }
}

#[test]
fn a_quantised_folder_that_contradicts_itself_is_refused_by_the_name_of_the_tensor() {
    let home = tempfile::tempdir().unwrap();
    let model = Pretrained::open(&testdata("llama-nf4")).unwrap();
    let forward = model.configuration.architecture.training(1, 1).unwrap();
    assert!(model.quantised_base(None, &forward, Vec::new(), |_| false).unwrap().is_some());
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(testdata("llama-nf4").join(file), home.path().join(file)).unwrap();
    }
    let path = home.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let text = b"\"blocksize\": 64";
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    bytes[at + text.len() - 2..at + text.len()].copy_from_slice(b"32");
    std::fs::write(&path, bytes).unwrap();
    let model = Pretrained::open(home.path()).unwrap();
    let why = model.quantised_base(None, &forward, Vec::new(), |_| false).unwrap_err().to_string();
    assert!(why.contains("with nf4 in blocks of 32 and 256; nf4 in blocks of 64 and 256 is read"), "{why}");
}

/// Before 0.45, bitsandbytes could save bytes in the tiles of a GPU's products. Read by rows they would be another model.
#[test]
fn bytes_in_the_order_of_a_gpu_are_refused() {
    let home = tempfile::tempdir().unwrap();
    std::fs::copy(testdata("llama-int8/config.json"), home.path().join("config.json")).unwrap();
    let bytes = std::fs::read(testdata("llama-int8/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let weight = "model.layers.0.self_attn.q_proj.weight";
    let order = "model.layers.0.self_attn.q_proj.weight_format";
    let find = |tensors: Vec<(String, TensorView)>| {
        let path = home.path().join("model.safetensors");
        std::fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        let folder = ModelFolder::open(home.path()).unwrap();
        QuantisedTensor::find(&folder, weight).map(|found| found.unwrap().form).map_err(|why| why.to_string())
    };
    assert_eq!(find(tensors.tensors()), Ok(Quantised::Int8));
    // The first releases did not state that quantised weights are stored in rows.
    let without = tensors.tensors().into_iter().filter(|(name, _)| name != order);
    assert_eq!(find(without.collect()), Ok(Quantised::Int8));
    let tiles = TensorView::new(safetensors::Dtype::U8, vec![], &[2]).unwrap();
    let tiled = tensors.tensors().into_iter().map(|(name, tensor)| {
        let tensor = if name == order { tiles.clone() } else { tensor };
        (name, tensor)
    });
    let why = find(tiled.collect()).unwrap_err();
    assert!(
        why.contains(&format!("holds `{order}` = 2, codes in an order of GPUs; save the model with")),
        "{why}"
    );
    let without = tensors.tensors().into_iter().filter(|(name, _)| !name.contains("q_proj.SCB"));
    let why = find(without.collect()).unwrap_err();
    assert!(why.contains("holds no tensor `model.layers.0.self_attn.q_proj.SCB`"), "{why}");
}

/// Merging into a folder of codes gives the dequantised numbers plus the product of PEFT's adapter.
#[test]
fn an_adapter_is_merged_into_the_original_or_the_dequantised_weights_and_it_is_said_which() {
    for (folder, case, into) in [
        ("llama", "llama", MergedInto::Original),
        ("llama-nf4", "llama", MergedInto::Dequantised),
        ("gpt2-nf4", "gpt2", MergedInto::Dequantised),
        ("llama-int8", "llama", MergedInto::Dequantised),
        ("gpt2-int8", "gpt2", MergedInto::Dequantised),
        ("llama-nf4-single", "llama", MergedInto::Dequantised),
    ] {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("merged");
        let base = Pretrained::open(&testdata(folder)).unwrap();
        let adapter = base.open_adapter(&testdata(case).join("adapter")).unwrap();
        assert_eq!(merge(&base, &adapter, &out).unwrap(), into, "{folder}");
        let merged = Pretrained::open(&out).unwrap();
        assert_eq!(merged.configuration.quantised, None, "{folder}: floats again");
        assert!(!merged.config.contains("quantization_config"), "{folder}");
        // The loss of the merged model is that of base and adapter, but for bf16 in the file of the original.
        let batch = Golden::read(&format!("quantised/{case}/golden"));
        let loss = |raw: &RawConfig| ten_losses(&mut start(raw).1, &batch)[0];
        let plain =
            RawConfig { adapter: None, model: Some(out.display().to_string()), ..settings(folder, case) };
        let (whole, apart) = (loss(&plain), loss(&settings(folder, case)));
        let most = if into == MergedInto::Original { 2e-3 } else { 1e-5 };
        assert!((whole - apart).abs() < most * apart, "{folder}: {whole} {apart}");
        let files = ModelFolder::open(&out).unwrap();
        let belongs =
            |name: &str| ["absmax", "quant", "SCB", "weight_format"].iter().any(|part| name.contains(part));
        assert!(!files.names().any(belongs), "{folder}");
    }
}

/// The next token of a model in few bits, with the adapter, is the one that training's own graph finds likeliest.
#[test]
fn text_is_generated_from_a_base_in_few_bits() {
    let (prompt, sampling) = ([5, 9, 11], Sampling { temperature: 0.0, ..Sampling::default() });
    let written = |folder: &str, form: Option<Quantised>| {
        let mut model = Pretrained::open(&testdata(folder)).unwrap();
        model.quantise = form;
        let adapter = model.open_adapter(&testdata("llama/adapter")).unwrap();
        let options = Options { threads: 1, memory: Some(1 << 30), ..Options::default() };
        let device = options.plain_device().unwrap();
        let budget = options.budget_on(&*device).unwrap();
        let mut generator = Generator::open(&model, Some(&adapter), 16, &budget, device).unwrap();
        let mut ids = Vec::new();
        let each = |id| {
            ids.push(id);
            true
        };
        generator.write(&prompt, 8, &sampling, each).unwrap();
        (ids, generator.arena_bytes())
    };
    let (ours, small) = written("llama", Some(Quantised::Nf4Double));
    let (theirs, _) = written("llama-nf4", None);
    let (_, large) = written("llama", None);
    assert_eq!(ours, theirs);
    assert!(small < large, "{small} {large}");
}
