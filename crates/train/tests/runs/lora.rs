//! Training adapters: PEFT's numbers, nothing spent on frozen weights, and the promises of a plan.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the distances are what a reader wants to see")]

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_graph::{Op, StateKind, differentiate};
use plimsoll_model::lora::{
    Adapter, AdapterConfig, AdapterKind, Delta, Excluded, FeedForward, Merging, NonLinearity, Pattern,
    RowLengths, TrainedTokens, VirtualTokens, file_name, scale_rows,
};
use plimsoll_model::{Architecture, Llama, Lora, Preset, Targets};
use plimsoll_plan::{ArenaBytes, Choice, Request, Role, Strategy, search};
use plimsoll_train::{
    Adapted, LanguageModel, Model, Optimizer, Options, Run, StateStorage, append_optimizer, program,
};

use crate::arena::{DISK, InArena, assert_planned_peak, exactly, start};
use crate::support::{
    Batch, Golden, Size, bert, distance, gpt2, llama, models, options, parameters, train_to_bits,
};

const CASES: [&str; 29] = [
    "llama",
    "llama_rslora",
    "llama_saved",
    "gpt2",
    "bert",
    "qwen2",
    "mistral",
    "qwen3",
    "bert_labels",
    "llama_patterns",
    "llama_regex",
    "llama_embedding",
    "gpt2_embedding",
    "bert_embedding",
    "llama_tokens",
    "llama_tokens_head",
    "qwen2_tokens",
    "llama_dora",
    "qwen2_dora",
    "gpt2_dora",
    "llama_ia3",
    "gpt2_ia3",
    "bert_ia3",
    "llama_bottleneck",
    "gpt2_bottleneck",
    "llama_prompt",
    "gpt2_prompt",
    "llama_prefix",
    "gpt2_prefix",
];
/// As in `pytorch.rs`, whose golden numbers are as exact as these.
const LOSS: f32 = 2e-6;
const GRADIENT: f32 = 3e-6;
const WEIGHT: f32 = 5e-5;
const LR: f32 = 1e-3;
const STEPS: usize = 10;

fn language_model(architecture: Architecture, seq_len: usize) -> LanguageModel {
    LanguageModel { architecture, seq_len, generate: false, lora: None }
}

/// A case of `reference/lora.py` and the files that hold its numbers.
struct Case {
    adapted: Adapted<LanguageModel>,
    base: Golden,
    adapter: Golden,
    golden: Golden,
}

impl Case {
    fn new(case: &str) -> Case {
        let path = format!("../../testdata/lora/{case}/adapter_config.json");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let lora = AdapterConfig::from_json(&text).unwrap().lora;
        let decoder = || models::llama(Size::GOLDEN);
        let (family, architecture) = match case {
            "bert_labels" => ("lora/bert_labels/golden", bert(Size::GOLDEN).with_labels(3).unwrap()),
            _ if case.starts_with("gpt2") => ("gpt2", gpt2(Size::GOLDEN)),
            _ if case.starts_with("bert") => ("bert", bert(Size::GOLDEN)),
            _ if case.starts_with("qwen2") => {
                ("lora/qwen2/golden", Llama { tie_embeddings: true, qkv_bias: true, ..decoder() }.into())
            }
            "mistral" => ("lora/mistral/golden", Llama { window: Some(5), ..decoder() }.into()),
            "qwen3" => {
                ("lora/qwen3/golden", Llama { head_width: Some(12), qk_norm: true, ..decoder() }.into())
            }
            _ => ("llama", llama(Size::GOLDEN)),
        };
        let lora = lora.without_absent(&architecture.training(1, 1).unwrap());
        Case {
            adapted: Adapted {
                model: language_model(architecture, text_of(&lora) + lora.added_positions()),
                lora,
            },
            base: Golden::read(family),
            adapter: Golden::read(&format!("lora/{case}/adapter_model")),
            golden: Golden::read(&format!("lora/{case}/golden")),
        }
    }

    /// A run with the model's weights and the adapter's.
    fn start(&self) -> Run {
        let rows = self.batch().rows();
        let mut run = Run::new(self.adapted.clone(), &options(rows, rows, Strategy::None, 2)).unwrap();
        let names = weights(&run);
        let (mut from_base, mut from_adapter) = (0, 0);
        for name in names {
            if let Some(values) = self.adapter.find(&file_name(&name)) {
                run.set_state(&name, &values).unwrap();
                from_adapter += 1;
            } else if let Some(values) = self.frozen(&name) {
                run.set_state(&name, &values).unwrap();
                from_base += 1;
            }
        }
        assert_eq!(from_adapter, self.adapted_names().len(), "the whole adapter");
        assert!(from_base >= 15, "the model's own weights: {from_base}");
        if self.adapted.lora.kind == AdapterKind::Dora {
            for adapter in self.adapters() {
                let squares: Vec<f32> =
                    lengths(&adapter, &self.base.floats(&adapter.weight())).squares().collect();
                run.set_state(&adapter.squares(), &squares).unwrap();
            }
        }
        run
    }

    /// The batch of the model. Where vectors take part of the positions, it is the batch of the case.
    fn batch(&self) -> Batch {
        match self.adapted.lora.virtual_tokens() {
            0 => self.base.batch(),
            _ => Batch { seq: text_of(&self.adapted.lora), ..self.golden.batch() },
        }
    }

    fn adapters(&self) -> Vec<Adapter> {
        self.adapted.lora.adapters(&self.adapted.model.training(1).unwrap()).unwrap()
    }

    /// A parameter of the model with its adapter merged in.
    fn merged(&self, parameter: &str, adapter: &Adapter, way: Merging) -> Vec<f32> {
        let of_adapter = |name: String| self.adapter.floats(&file_name(&name));
        let mut merged = self.base.floats(parameter);
        let columns = if parameter == adapter.weight() { adapter.stored_shape()[1] } else { 1 };
        match way {
            Merging::Sum | Merging::SumOfLengths => {
                let (a, b) = (of_adapter(adapter.a()), of_adapter(adapter.b()));
                Delta::new(adapter, &a, &b).unwrap().merge_rows(0, &mut merged).unwrap();
            }
            Merging::RowFactors | Merging::ColumnFactors => {
                let factors = of_adapter(adapter.factors());
                scale_rows(0, &mut merged, columns, &factors, way == Merging::ColumnFactors);
            }
        }
        if way == Merging::SumOfLengths {
            let lengths = lengths(adapter, &merged);
            lengths.scale(0, &mut merged, columns, &of_adapter(adapter.magnitude()));
        }
        merged
    }

    /// A weight of the model as it lies in the arena: rows of trained tokens are zero.
    fn frozen(&self, name: &str) -> Option<Vec<f32>> {
        let mut values = self.base.find(name)?;
        let graph = self.adapted.model.training(1).unwrap();
        for table in self.adapted.lora.token_adapters(&graph).unwrap() {
            if table.weight() == name {
                table.rows.iter().for_each(|row| values[row * table.width..][..table.width].fill(0.0));
            }
        }
        Some(values)
    }

    /// Tensors of the adapter's file beside copies of the model's own tables.
    fn adapted_names(&self) -> Vec<String> {
        let names = self.adapter.names().into_iter();
        names.filter(|name| !name.ends_with(".base_layer.weight")).collect()
    }

    fn worst(&self, prefix: &str, names: &[String], values: impl Fn(&str) -> Vec<f32>) -> (f32, String) {
        let apart = names.iter().map(|name| {
            let expected = self.golden.floats(&format!("{prefix}.{}", file_name(name)));
            (distance(&values(name), &expected), name.clone())
        });
        apart.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
    }
}

/// Tokens of text in a row, in which trained vectors may come first.
fn text_of(lora: &Lora) -> usize {
    Size::GOLDEN.seq - lora.virtual_tokens()
}

/// The lengths of the rows of a weight.
fn lengths(adapter: &Adapter, weight: &[f32]) -> RowLengths {
    let mut lengths = RowLengths::new(adapter);
    lengths.add(0, weight, adapter.stored_shape()[1]);
    lengths
}

/// State that is no gradient: the golden file of a model has those of full training under the same names.
fn weights(run: &Run) -> Vec<String> {
    run.states().map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with("grad.")).collect()
}

#[test]
fn loss_gradients_and_ten_steps_are_those_of_peft() {
    for name in CASES {
        let case = Case::new(name);
        let (batch, mut run) = (case.batch(), case.start());
        let trained = parameters(&run);
        assert_eq!(trained.len(), case.adapted_names().len(), "{name}: what PEFT trains and nothing else");

        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let (loss, norm) = batch.step(&mut run, LR);
            losses.extend(loss);
            norms.push(norm);
            if step == 0 {
                let (apart, at) = case.worst("grad", &trained, |name| run.gradient(name).unwrap());
                println!("{name}: gradients {apart:.1e} ({at}), {} of them", trained.len());
                assert!(apart <= GRADIENT, "{name}: gradient of {at} {apart}");
                assert!(distance(&losses, &case.golden.floats("loss")) <= LOSS, "{name}: loss");
            }
        }
        let loss = distance(&losses, &case.golden.floats("losses"));
        let norm = distance(&norms, &case.golden.floats("grad_norms"));
        let (weight, at) = case.worst("final", &trained, |name| run.state(name).unwrap());
        println!("{name}: losses {loss:.1e}, norms {norm:.1e}, final weights {weight:.1e} ({at})");
        assert!(losses[STEPS - 1] < losses[0] && loss <= LOSS && norm <= LOSS, "{name}: {loss} {norm}");
        assert!(weight <= WEIGHT, "{name}: {at} {weight}");
        assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
        for weight in weights(&run).iter().filter(|weight| !trained.contains(weight)) {
            let before = case.frozen(weight);
            assert!(before.is_none_or(|before| run.state(weight).unwrap() == before), "{weight} is frozen");
        }
    }
}

#[test]
fn merged_weights_are_those_of_peft() {
    for name in CASES {
        let case = Case::new(name);
        let merges = case.adapted.lora.merges(&case.adapted.model.training(1).unwrap());
        if let AdapterKind::Bottleneck(_) | AdapterKind::Prompt(_) | AdapterKind::Prefix(_) =
            case.adapted.lora.kind
        {
            let why = merges.unwrap_err().to_string();
            assert!(why.contains("cannot be merged; use model and adapter together"), "{why}");
            continue;
        }
        let mut seen = 0;
        for (parameter, adapter, way) in merges.unwrap() {
            let Some(expected) = case.golden.find(&format!("merged.{parameter}")) else { continue };
            let merged = case.merged(&parameter, &adapter, way);
            let (apart, before) = (distance(&merged, &expected), case.base.floats(&parameter));
            assert!(apart < 5e-7 && distance(&before, &expected) > 0.01, "{parameter} {apart}");
            seen += 1;
        }
        assert!(seen > 0, "{name}");
    }
}

#[test]
fn nothing_is_spent_on_the_frozen_weights_of_preset_m() {
    let preset = Preset::from_name("m").unwrap();
    let lora = Lora::default();
    let graph = lora.adapt(&preset.model.training(2, preset.seq).unwrap()).unwrap();
    let training = differentiate(&graph, graph.output_named("loss").unwrap()).unwrap();
    let training = append_optimizer(training, &Optimizer::default(), StateStorage::default()).unwrap();

    let is_adapter = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
    let of_kind = |kind: StateKind| training.states().iter().filter(move |state| state.kind == kind);
    let adapters = of_kind(StateKind::Parameter { trainable: true }).count();
    assert_eq!(adapters, 12 * 7 * 2, "two matrices for each of seven layers of twelve blocks");
    assert_eq!(of_kind(StateKind::Gradient).count(), adapters);
    assert_eq!(of_kind(StateKind::Moment).count(), 2 * adapters);
    assert!(
        of_kind(StateKind::Gradient).chain(of_kind(StateKind::Moment)).all(|state| is_adapter(&state.name))
    );
    // At rank 8, all gradients together are less than a fortieth of the frozen weights.
    let elements = |kind| of_kind(kind).map(|state| state.ty.shape.elements()).sum::<usize>();
    let frozen = elements(StateKind::Parameter { trainable: false });
    assert!(elements(StateKind::Gradient) * 40 < frozen, "{frozen} frozen");

    for node in training.nodes() {
        match node.op {
            Op::LinearGradWeight { .. } => {
                let (state, _) = training.value(node.outputs[0]).state.unwrap();
                assert!(is_adapter(&training.state(state).name), "{}", training.state(state).name);
            }
            Op::HeadLossGrad { weight, .. } => assert!(!weight, "the head is frozen"),
            Op::EmbeddingGrad { .. } | Op::RmsNormGradWeight | Op::Accumulate { .. } => {
                panic!("{}", node.op.name())
            }
            _ => {}
        }
    }
    // Nothing is sent back to the embedding: the first layer's first norm has no gradient, all others have.
    let norms = training.nodes().iter().filter(|node| matches!(node.op, Op::RmsNormGradInput)).count();
    assert_eq!(norms, 12 * 2 + 1 - 1);
}

const ROWS: usize = 4;
const MICRO_BATCH: usize = 2;
const SIZE: Size = Size { vocab: 300, seq: 80, width: 64, layers: 4, ffn: 136, dropout: 0.1 };

const PROMPT: VirtualTokens = VirtualTokens { count: 16, width: SIZE.width, layers: SIZE.layers, heads: 4 };

fn with_dropout(architecture: Architecture) -> Adapted<LanguageModel> {
    let lora = Lora { rank: 4, alpha: 16.0, dropout: 0.2, ..Lora::default() };
    Adapted { model: language_model(architecture, SIZE.seq), lora }
}

fn without_dropout(architecture: Architecture) -> Adapted<LanguageModel> {
    let with = with_dropout(architecture);
    Adapted { lora: with.lora.without_dropout(), ..with }
}

fn of_kind(kind: AdapterKind, adapted: Adapted<LanguageModel>) -> Adapted<LanguageModel> {
    Adapted { lora: Lora { kind, ..adapted.lora }, ..adapted }
}

/// Adapters that differ from layer to layer, one for the table of words or trained tokens in its place.
fn uneven(architecture: Architecture, tokens: TrainedTokens) -> Adapted<LanguageModel> {
    let table = if tokens == TrainedTokens::None { r"|.*\.(embed_tokens|wte)" } else { "" };
    let lora = Lora {
        targets: Targets::Pattern(
            Pattern::whole(&format!(r".*[.](q_proj|up_proj|c_attn|c_fc){table}")).unwrap(),
        ),
        excluded: Excluded::Names(vec!["layers.2.mlp.up_proj".into(), "h.2.mlp.c_fc".into()]),
        rank_pattern: vec![(Pattern::ending(r".*\.1\..*").unwrap(), 7)],
        tokens,
        ..with_dropout(architecture.clone()).lora
    };
    Adapted { lora, ..with_dropout(architecture) }
}

fn planned(adapted: &Adapted<LanguageModel>, strategy: Option<Strategy>, budget: u64) -> Option<Choice> {
    let (device, options) = (plimsoll_devices::cpu(2).unwrap(), Options::default());
    let request = Request {
        global_batch: ROWS,
        micro_batch: Some(MICRO_BATCH),
        strategy,
        budget: ArenaBytes(budget),
        slack: 0.0,
    };
    search(request, |rows| program(adapted, &*device, &options, rows)).ok()
}

/// Two steps by a plan; every loss and norm and the final adapters, as bits.
fn train(adapted: &Adapted<LanguageModel>, choice: Choice) -> Vec<u32> {
    train_with(2, adapted, choice)
}

fn train_with(threads: usize, adapted: &Adapted<LanguageModel>, choice: Choice) -> Vec<u32> {
    let mut run = start(threads, exactly(choice));
    let documents = adapted.model.architecture.reads_documents();
    let seq = SIZE.seq - adapted.lora.added_positions();
    let batches = (0..2).map(|step| Batch::synthetic(ROWS, seq, SIZE.vocab, documents, step));
    let bits = train_to_bits(&mut run, batches, false);
    assert_planned_peak(&run);
    bits
}

/// The other kinds of adapters.
fn other_kinds() -> Vec<Adapted<LanguageModel>> {
    vec![
        of_kind(AdapterKind::Dora, with_dropout(llama(SIZE))),
        of_kind(AdapterKind::Dora, without_dropout(gpt2(SIZE))),
        of_kind(AdapterKind::Ia3(FeedForward::Names(vec!["mlp.c_proj".into()])), without_dropout(gpt2(SIZE))),
        of_kind(AdapterKind::Bottleneck(NonLinearity::Gelu), without_dropout(llama(SIZE))),
        of_kind(AdapterKind::Prompt(PROMPT), without_dropout(llama(SIZE))),
        of_kind(AdapterKind::Prompt(PROMPT), without_dropout(gpt2(SIZE))),
        // Keys have half as many heads as queries.
        of_kind(
            AdapterKind::Prefix(VirtualTokens { width: SIZE.width / 2, heads: 2, ..PROMPT }),
            without_dropout(llama(SIZE)),
        ),
    ]
}

#[test]
fn a_disk_and_the_number_of_threads_change_no_bit_of_any_kind() {
    for adapted in other_kinds() {
        let case = |threads: usize| {
            let options = Options { global_batch: ROWS, threads, ..Options::default() };
            InArena { model: adapted.clone(), options, micro_batch: MICRO_BATCH }
        };
        let expected = train_with(1, &adapted, case(1).plan(None, u64::MAX).unwrap());
        assert!(train(&adapted, case(2).plan(None, u64::MAX).unwrap()) == expected, "two threads");
        let least = case(2).smallest(Some(DISK));
        assert!(least < case(2).smallest(None));
        assert!(train(&adapted, case(2).plan(Some(DISK), least).unwrap()) == expected, "a disk");
    }
}

#[test]
fn budgets_and_recompute_change_no_bit_of_adapters_with_dropout_and_peaks_are_as_planned() {
    let tokens = TrainedTokens::Input(vec![17, 2, 299]);
    let all = [
        with_dropout(llama(SIZE)),
        with_dropout(gpt2(SIZE)),
        with_dropout(bert(SIZE)),
        uneven(llama(SIZE), TrainedTokens::None),
        uneven(gpt2(SIZE), tokens),
    ];
    for adapted in all.into_iter().chain(other_kinds()) {
        let most = planned(&adapted, Some(Strategy::None), u64::MAX).unwrap();
        let (keeps_all, actions) = (most.plan.arena_bytes.0, most.plan.schedules[&Role::First].actions.len());
        let expected = train(&adapted, most);
        assert!(expected.iter().filter(|&&bits| bits != 0).count() > 1000);
        let least = planned(&adapted, Some(Strategy::Minimal), u64::MAX).unwrap();
        let recomputes = least.plan.arena_bytes.0;
        assert!(recomputes < keeps_all && least.plan.schedules[&Role::First].actions.len() > actions);
        assert!(train(&adapted, least) == expected, "minimal");

        let mut peaks = BTreeSet::new();
        for budget in (0..=4).map(|part| recomputes + (keeps_all - recomputes) * part / 4) {
            let Some(choice) = planned(&adapted, None, budget) else { continue };
            assert!(choice.plan.arena_bytes.0 <= budget);
            peaks.insert(choice.plan.arena_bytes.0);
            assert!(train(&adapted, choice) == expected, "a budget of {budget}");
        }
        assert!(peaks.len() >= 4, "{peaks:?}");
    }
}

#[test]
fn evaluation_uses_the_adapters_without_their_dropout() {
    let adapted = with_dropout(llama(SIZE));
    let plain = Adapted { lora: adapted.lora.without_dropout(), ..adapted.clone() };
    let options = Options { evaluate: true, ..options(MICRO_BATCH, MICRO_BATCH, Strategy::None, 2) };
    let (mut run, mut without) = (Run::new(adapted, &options).unwrap(), Run::new(plain, &options).unwrap());
    for run in [&mut run, &mut without] {
        let name = "model.layers.0.mlp.up_proj.lora_B.weight";
        let values: Vec<f32> =
            run.state(name).unwrap().iter().enumerate().map(|(i, _)| (i % 7) as f32).collect();
        run.set_state(name, &values).unwrap();
    }
    let batch = Batch::synthetic(MICRO_BATCH, SIZE.seq, SIZE.vocab, false, 1);
    let inputs = batch.micro_batches(MICRO_BATCH).next().unwrap();
    let evaluated = run.evaluate(&inputs).unwrap();
    assert_eq!(evaluated.to_bits(), without.step(0.0, &[&inputs]).unwrap().loss.to_bits());
    assert_ne!(evaluated.to_bits(), run.step(0.0, &[&inputs]).unwrap().loss.to_bits(), "training drops");
}
