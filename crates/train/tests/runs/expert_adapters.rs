//! Adapters of experts: PEFT's numbers (`reference/expert_adapters.py`), files in and out, merging, and the promises of a
//! plan.
//!
//! The tolerances are those of `lora.rs`. No token of a case is near a tie, so none is left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_graph::{Op, Phase, Precision, StateKind, Type, differentiate};
use plimsoll_model::lora::{AdapterKind, FeedForward, WayOut, file_name};
use plimsoll_model::{Architecture, Lora, Preset, RouterLosses, Targets};
use plimsoll_plan::{Choice, Strategy};
use plimsoll_train::files::ModelFolder;
use plimsoll_train::pretrained::{AdapterFolder, Pretrained, adapter_form, merge};
use plimsoll_train::{Adapted, Config, LanguageModel, Model, Options, RawConfig, Run};

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::support::{Batch, GOLDEN_SEQ, Golden, STRATEGIES, distance, options, parameters, train_to_bits};

const CASES: [(&str, &str); 7] = [
    ("mixtral_experts", "mixtral"),
    ("mixtral_all", "mixtral"),
    ("qwen2_moe_experts", "qwen2-moe"),
    ("qwen3_moe_experts", "qwen3-moe"),
    ("olmoe_layers", "olmoe"),
    ("mixtral_ia3", "mixtral"),
    ("qwen2_moe_ia3", "qwen2-moe"),
];
const LOSS: f32 = 2e-6;
/// For a router's adapter, whose gradient is a sum over experts in which most terms cancel. All others are below 4·10⁻⁶.
const GRADIENT: f32 = 1e-5;
const WEIGHT: f32 = 5e-5;
const LR: f32 = 1e-3;
const STEPS: usize = 10;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// A case of `reference/expert_adapters.py`.
struct Case {
    name: &'static str,
    base: Pretrained,
    adapter: AdapterFolder,
    adapted: Adapted<LanguageModel>,
    golden: Golden,
    batch: Batch,
}

impl Case {
    fn open((name, family): (&'static str, &'static str)) -> Case {
        let base = Pretrained::open(&testdata(&format!("hf/{family}"))).unwrap();
        let adapter = base.open_adapter(&testdata(&format!("lora/{name}"))).unwrap();
        let model = LanguageModel {
            architecture: unbalanced(&adapter.configuration.architecture),
            seq_len: GOLDEN_SEQ,
            generate: false,
            lora: None,
        };
        let adapted = Adapted { model, lora: adapter.config.lora.clone() };
        let batch = Golden::read(&format!("hf/{family}/golden")).batch();
        let golden = Golden::read(&format!("lora/{name}/golden"));
        Case { name, base, adapter, adapted, golden, batch }
    }

    /// A run with the weights of both folders, read as any run reads them.
    fn run(&self, strategy: Strategy, rows: usize, threads: usize) -> Run {
        let mut run =
            Run::new(self.adapted.clone(), &options(self.batch.rows(), rows, strategy, threads)).unwrap();
        load(&mut run, &self.base, Some(&self.adapter));
        run
    }

    /// The largest distance over all trained parameters, which are those of the golden file.
    fn worst(&self, prefix: &str, run: &Run, values: impl Fn(&str) -> Vec<f32>) -> (f32, String) {
        let trained = parameters(run);
        let golden = self.golden.names().iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(trained.len(), golden, "{}: what PEFT trains and nothing else", self.name);
        let apart = trained.into_iter().map(|name| {
            let expected = self.golden.floats(&format!("{prefix}{}", file_name(&name)));
            (distance(&values(&name), &expected), name)
        });
        apart.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
    }
}

/// Reads the weights of a model, and over them those of an adapter.
fn load(run: &mut Run, base: &Pretrained, adapter: Option<&AdapterFolder>) {
    let parameters = run.states_of(|kind| matches!(kind, StateKind::Parameter { .. }));
    let parameters: Vec<(String, Type)> = parameters.map(|(name, ty)| (name.to_owned(), ty)).collect();
    let all = || parameters.iter().map(|(name, ty)| (name.as_str(), *ty));
    let loaded = base.load(run.engine_mut(), all()).unwrap();
    assert!(loaded.unused.is_empty() && loaded.absent.is_empty(), "{loaded:?}");
    if let Some(adapter) = adapter {
        let loaded = adapter.load(run.engine_mut(), all()).unwrap();
        assert!(loaded.unused.is_empty() && loaded.absent.is_empty(), "{loaded:?}");
    }
}

/// The model without losses of routers, which the golden files have not.
fn unbalanced(architecture: &Architecture) -> Architecture {
    let Architecture::Llama(mut model) = architecture.clone() else { panic!("a mixture is a Llama") };
    model.mixture.as_mut().unwrap().losses = RouterLosses::balanced(0.0);
    model.into()
}

#[test]
fn loss_gradients_and_ten_steps_are_those_of_peft() {
    for case in CASES.map(Case::open) {
        let (name, mut run) = (case.name, case.run(Strategy::None, case.batch.rows(), 2));
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let (loss, norm) = case.batch.step(&mut run, LR);
            losses.extend(loss);
            norms.push(norm);
            if step == 0 {
                let (apart, at) = case.worst("grad.", &run, |name| run.gradient(name).unwrap());
                println!("{name}: gradients {apart:.1e} ({at})");
                assert!(apart <= GRADIENT, "{name}: gradient of {at} {apart}");
                assert!(distance(&losses, &case.golden.floats("loss")) <= LOSS, "{name}: loss");
            }
        }
        let loss = distance(&losses, &case.golden.floats("losses"));
        let norm = distance(&norms, &case.golden.floats("grad_norms"));
        let (weight, at) = case.worst("final.", &run, |name| run.state(name).unwrap());
        println!("{name}: losses {loss:.1e}, norms {norm:.1e}, final weights {weight:.1e} ({at})");
        assert!(losses[STEPS - 1] < losses[0] && loss <= LOSS && norm <= LOSS, "{name}: {loss} {norm}");
        assert!(weight <= WEIGHT, "{name}: {at} {weight}");
        assert_planned_peak(&run);
    }
}

#[test]
fn an_adapter_that_was_read_is_written_with_the_names_shapes_and_numbers_of_peft() {
    for case in CASES.map(Case::open) {
        let (run, out) = (case.run(Strategy::None, 2, 1), tempfile::tempdir().unwrap());
        let form = adapter_form(&case.adapted.lora, &case.base, &case.adapter.configuration).unwrap();
        run.save_weights(out.path(), &form).unwrap();
        let tensors = |folder: &Path| -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
            let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let all = file.tensors().into_iter();
            all.map(|(name, tensor)| (name, (tensor.shape().to_vec(), tensor.data().to_vec()))).collect()
        };
        assert_eq!(tensors(out.path()), tensors(&testdata(&format!("lora/{}", case.name))), "{}", case.name);
        let again = AdapterFolder::open(out.path(), &case.adapter.configuration).unwrap();
        assert_eq!(again.config.lora, case.adapter.config.lora, "{}", case.name);
    }
}

#[test]
fn merged_tensors_of_every_expert_are_those_of_peft_and_others_stay() {
    for case in CASES.map(Case::open) {
        let out = tempfile::tempdir().unwrap();
        merge(&case.base, &case.adapter, out.path()).unwrap();
        let [merged, own] = [out.path(), &case.base.folder].map(|folder| ModelFolder::open(folder).unwrap());
        let (mut changed, mut stayed) = (0, 0);
        for name in own.names().map(str::to_owned).collect::<Vec<_>>() {
            let read = |folder: &ModelFolder| {
                let (file, _) = folder.find([name.as_str()]).unwrap();
                let mut numbers = vec![0.0; file.tensor(&name).unwrap().shape.iter().product()];
                file.read(&name, 0, &mut numbers).unwrap();
                numbers
            };
            let (before, after) = (read(&own), read(&merged));
            if let Some(expected) = case.golden.find(&format!("merged.{name}")) {
                let apart = distance(&after, &expected);
                assert!(apart < 5e-7 && distance(&before, &expected) > 0.01, "{name} {apart}");
                changed += 1;
            } else {
                assert!(before == after, "{}: {name} is frozen", case.name);
                stayed += 1;
            }
        }
        let golden = case.golden.names().iter().filter(|name| name.starts_with("merged.")).count();
        assert_eq!(changed, golden, "{}", case.name);
        assert!(changed >= 4 && stayed >= 5, "{}: {changed} {stayed}", case.name);
    }
}

#[test]
fn a_merged_model_computes_what_the_model_with_its_adapter_does() {
    for case in CASES.map(Case::open) {
        let out = tempfile::tempdir().unwrap();
        merge(&case.base, &case.adapter, out.path()).unwrap();
        let merged = Pretrained::open(out.path()).unwrap();
        let model = LanguageModel {
            architecture: unbalanced(&merged.configuration.architecture),
            ..case.adapted.model.clone()
        };
        let rows = case.batch.rows();
        let mut run = Run::new(model, &options(rows, rows, Strategy::None, 2)).unwrap();
        load(&mut run, &merged, None);
        let (loss, _) = case.batch.step(&mut run, 0.0);
        let apart = distance(&loss, &case.golden.floats("loss"));
        assert!(apart <= LOSS, "{}: {apart}", case.name);
    }
}

#[test]
fn recompute_and_threads_change_no_bit_and_peaks_are_as_planned() {
    for case in [CASES[1], CASES[2]].map(Case::open) {
        let mut expected = None;
        for strategy in STRATEGIES {
            for threads in [1, 3] {
                let mut run = case.run(strategy, 2, threads);
                let bits = train_to_bits(&mut run, [case.batch.clone(), case.batch.clone()], false);
                assert!(bits.iter().filter(|&&bits| bits != 0).count() > 500);
                let same = expected.get_or_insert_with(|| bits.clone()) == &bits;
                assert!(same, "{} {strategy} {threads}", case.name);
                assert_planned_peak(&run);
            }
        }
    }
}

#[test]
fn accumulation_changes_only_the_order_of_sums() {
    let case = Case::open(CASES[1]);
    let batch = case.batch.repeated(2);
    let step = |rows: usize| {
        let options = options(batch.rows(), rows, Strategy::None, 2);
        let mut run = Run::new(case.adapted.clone(), &options).unwrap();
        load(&mut run, &case.base, Some(&case.adapter));
        let loss: f32 = batch.step(&mut run, 0.0).0.iter().sum();
        let gradients: Vec<f32> =
            parameters(&run).iter().flat_map(|name| run.gradient(name).unwrap()).collect();
        (vec![loss], gradients)
    };
    let (loss, gradients) = step(8);
    for rows in [4, 2, 1] {
        let (other, others) = step(rows);
        assert!(distance(&other, &loss) <= LOSS && distance(&others, &gradients) <= 1e-5, "{rows}");
    }
}

const ROWS: usize = 4;
const SEQ: usize = 32;

/// `tiny-moe` with adapters on attention, routers and experts.
fn tiny(precision: Precision) -> InArena<Adapted<LanguageModel>> {
    let architecture = Preset::from_name("tiny-moe").unwrap().model.with_layers(2);
    let lora = Lora { rank: 4, ..Lora::default() };
    let lora = lora.with_stacked_targets(&architecture.training(1, 1).unwrap()).unwrap();
    let model = LanguageModel { architecture, seq_len: SEQ, generate: false, lora: None };
    let options = Options { global_batch: ROWS, threads: 2, precision, ..Options::default() };
    InArena { model: Adapted { model, lora }, options, micro_batch: 2 }
}

/// Two steps by a plan; every loss, every norm and the final adapters, as bits.
fn train(choice: Choice, vocab: usize) -> Vec<u32> {
    let mut run = start(2, exactly(choice));
    let batches = (0..2).map(|step| Batch::synthetic(ROWS, SEQ, vocab, false, step));
    let bits = train_to_bits(&mut run, batches, false);
    assert_planned_peak(&run);
    bits
}

#[test]
fn frozen_experts_that_wait_on_a_disk_change_no_bit_of_their_adapters() {
    for precision in [Precision::F32, Precision::Bf16] {
        let case = tiny(precision);
        let vocab = case.model.model.architecture.vocab();
        let unlimited = case.plan(None, u64::MAX).unwrap();
        let most = unlimited.plan.arena_bytes.0;
        let expected = train(unlimited, vocab);
        let (least, alone) = (case.smallest(Some(DISK)), case.smallest(None));
        assert!(least < alone, "{least} bytes with a disk, {alone} without");
        for budget in [least, u64::midpoint(alone, most)] {
            let choice = case.plan(Some(DISK), budget).unwrap();
            assert!(choice.plan.arena_bytes.0 <= budget);
            assert!(train(choice, vocab) == expected, "other bits in {budget} bytes, {precision}");
        }
    }
}

#[test]
fn no_matrix_of_an_experts_size_is_made_and_only_adapters_have_gradients() {
    let case = tiny(Precision::F32);
    let forward = case.model.training(2).unwrap();
    let training = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
    let is_adapter = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
    let gradients = training.states().iter().filter(|state| state.kind == StateKind::Gradient);
    assert!(gradients.clone().count() > 20 && gradients.into_iter().all(|state| is_adapter(&state.name)));
    let experts = training.states().iter().filter(|state| !state.parts.is_empty());
    let least = experts.map(|state| state.ty.shape.elements()).min().unwrap();
    // Sums over experts are three-dimensional: factors of an adapter, never a weight.
    for node in training.nodes().iter().filter(|node| node.phase != Phase::Update) {
        let stacked = node.outputs.iter().map(|&value| training.shape(value)).filter(|s| s.len() == 3);
        let of_experts = matches!(node.op, Op::GroupedLinearGradWeight | Op::Transpose { .. });
        assert!(
            !of_experts || stacked.clone().all(|shape| shape.elements() < least),
            "{} makes {:?}",
            node.op.name(),
            stacked.collect::<Vec<_>>()
        );
    }
}

#[test]
fn targets_that_experts_cannot_have_are_refused_with_a_way_out() {
    let mixture = |preset: &str| Preset::from_name(preset).unwrap().model.training(1, 1).unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let of = |targets: &[&str], parameters: &[&str]| Lora {
        targets: Targets::Names(names(targets)),
        target_parameters: names(parameters),
        ..Lora::default()
    };
    let fault = |lora: Lora, preset: &str| {
        let forward = mixture(preset);
        let lora = lora.with_stacked_targets(&forward);
        lora.and_then(|lora| lora.check_names(&forward)).unwrap_err().to_string()
    };
    assert_eq!(
        fault(of(&["w1"], &[]), "mixtral-8x7b"),
        "lora: gate and up of experts are one parameter, and have one adapter; name `w3` too, or neither"
    );
    assert_eq!(
        fault(of(&[], &["experts.up_proj"]), "tiny-moe"),
        "lora: no parameter is called `experts.up_proj`; the model has mlp.experts.down_proj, \
         mlp.experts.gate_up_proj, mlp.gate.weight, self_attn.k_proj.weight, self_attn.o_proj.weight, \
         self_attn.q_proj.weight, self_attn.v_proj.weight"
    );
    assert_eq!(
        fault(Lora { dropout: 0.1, ..of(&["q_proj"], &["experts.down_proj"]) }, "tiny-moe"),
        "lora: target parameters have no dropout, in PEFT neither; set it to 0, or name target modules only"
    );
    assert_eq!(
        fault(of(&["q_proj"], &["q_proj.weight"]), "tiny-moe"),
        "lora: `model.layers.0.self_attn.q_proj` is a target module and its weight a target parameter; name it once"
    );
    assert_eq!(
        fault(Lora { kind: AdapterKind::Dora, ..Lora::default() }, "tiny-moe"),
        "lora: experts and other target parameters have no DoRA, in PEFT neither; name other modules in \
         lora_target_modules, such as q_proj,v_proj"
    );
    let saved = Lora { modules_to_save: names(&["experts"]), ..Lora::default() };
    assert!(fault(saved, "tiny-moe").contains("is a weight of experts, which cannot be saved as a whole"));
}

/// PEFT translates names of experts for `LoRA` alone: for other kinds an expert is no module.
#[test]
fn kinds_that_experts_have_no_adapters_of_take_the_modules_that_serve_every_token() {
    for (preset, of_network) in
        [("mixtral-8x7b", false), ("tiny-moe", false), ("qwen1.5-moe-a2.7b", true), ("tiny", true)]
    {
        let network: &[&str] = if of_network { &["down_proj"] } else { &[] };
        for (kind, attention) in [("ia3", &["k_proj", "v_proj"][..]), ("bottleneck", &["o_proj"])] {
            let raw = RawConfig {
                model: Some(preset.to_owned()),
                peft_type: Some(kind.to_owned()),
                seq_len: Some(16),
                memory: Some("1TiB".to_owned()),
                ..RawConfig::default()
            };
            let lora = Config::check(&raw).unwrap().model.lora.unwrap();
            let names = |names: &[&[&str]]| names.concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lora.targets, Targets::Names(names(&[attention, network])), "{preset} {kind}");
            assert!(lora.target_parameters.is_empty(), "{preset} {kind}");
            if let AdapterKind::Ia3(feedforward) = lora.kind {
                assert_eq!(feedforward, FeedForward::Names(names(&[network])), "{preset}");
            }
        }
    }
}

#[test]
fn a_trained_adapter_of_experts_that_is_missing_here_is_not_told_to_be_another() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let found = |lora: Lora, preset: &str| {
        let forward = Preset::from_name(preset).unwrap().model.training(1, 1).unwrap();
        lora.unsupported(&forward).unwrap().map(|found| (found.way, found.said()))
    };
    let targets = |given: &[&str]| Lora { targets: Targets::Names(names(given)), ..Lora::default() };
    for (lora, preset, way, what) in [
        (targets(&["w1"]), "mixtral-8x7b", WayOut::Elsewhere, "one of gate and up"),
        (
            Lora { modules_to_save: names(&["experts"]), ..targets(&["q_proj"]) },
            "tiny-moe",
            WayOut::Merge,
            "a weight of experts, which is not supported here; merge it with PEFT",
        ),
    ] {
        let (found, said) = found(lora, preset).unwrap();
        assert!(found == way && said.contains(what) && !said.contains("neither"), "{said}");
    }
    assert_eq!(found(targets(&["w1", "w3", "q_proj"]), "mixtral-8x7b"), None);
    assert_eq!(found(targets(&["gate_proj"]), "tiny"), None);
}
