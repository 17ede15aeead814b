//! Updates inside the backward pass: the numbers of a separate update to the bit, without gradients that persist.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use plimsoll_exec::Data;
use plimsoll_graph::Graph;
use plimsoll_model::{Architecture, Llama};
use plimsoll_plan::{
    ArenaBytes, Plan, ProcessBytes, Purpose, Request, Role, Searcher, Strategy, search, spans, timeline,
};
use plimsoll_train::memory::{Budget, BudgetOrigin};
use plimsoll_train::{LanguageModel, Optimizer, Options, Run, TrainError, Update, plan_within, program};

use crate::support::{Batch, Size, bert, gpt2, llama, options, start};

const ROWS: usize = 2;
const SIZE: Size = Size { vocab: 300, seq: 40, width: 64, layers: 4, ffn: 136, dropout: 0.1 };

fn tied() -> Architecture {
    let Architecture::Llama(model) = llama(SIZE) else { panic!("a Llama") };
    Architecture::from(Llama { tie_embeddings: true, ..model })
}

fn language(model: &Architecture) -> LanguageModel {
    LanguageModel { architecture: model.clone(), seq_len: SIZE.seq, generate: false, lora: None }
}

/// One micro-batch a step, no limit on the norm.
fn asked(update: Update, recompute: Strategy) -> Options {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    Options { update, optimizer, ..options(ROWS, ROWS, recompute, 2) }
}

fn step(run: &mut Run, salt: usize) -> Result<f32, TrainError> {
    let documents = run.plan().state("bert.embeddings.word_embeddings.weight").is_some();
    let batch = Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, documents, salt);
    let inputs: Vec<_> = batch.micro_batches(ROWS).collect();
    let stepped = run.step(1e-2, &inputs)?;
    Ok(stepped.loss + stepped.grad_norm)
}

/// Loss and norm of every step, and all weights and moments at the end, as bits.
fn trace(model: &Architecture, options: &Options) -> (Run, BTreeMap<String, Vec<u32>>) {
    let mut run = start(model, SIZE.seq, options);
    let steps: Vec<u32> = (0..3).map(|salt| step(&mut run, salt).unwrap().to_bits()).collect();
    let mut trace = BTreeMap::from([("steps".to_owned(), steps)]);
    trace.extend(weights(&run));
    assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes, "measured and planned peak");
    assert!(run.engine().device().guard_is_intact());
    (run, trace)
}

fn weights(run: &Run) -> BTreeMap<String, Vec<u32>> {
    let names = run.states().map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with("grad"));
    let bits = |name: &String| run.state(name).unwrap().into_iter().map(f32::to_bits).collect();
    names.map(|name| (name.clone(), bits(&name))).collect()
}

fn check(model: &Architecture) {
    let (separate, expected) = trace(model, &asked(Update::Separate, Strategy::None));
    assert!(separate.plan().schedules.contains_key(&Role::Update));
    assert!(expected.len() > 20 && expected.values().flatten().filter(|&&bits| bits != 0).count() > 100_000);
    for recompute in [Strategy::None, Strategy::Selective, Strategy::Full, Strategy::Minimal, Strategy::Auto]
    {
        let (run, got) = trace(model, &asked(Update::InBackward, recompute));
        assert_eq!(run.plan().schedules.keys().collect::<Vec<_>>(), [&Role::First]);
        for (name, bits) in &expected {
            assert!(got[name] == *bits, "{recompute}: {name} differs");
        }
    }
}

#[test]
fn a_llama_trains_to_the_same_bits_with_tied_embeddings_and_without() {
    check(&llama(SIZE));
    check(&tied());
}

#[test]
fn a_gpt2_and_a_bert_with_dropout_train_to_the_same_bits() {
    check(&gpt2(SIZE));
    check(&bert(SIZE));
}

/// Aligned bytes of every trained parameter's gradient, from the moments, which have the same shape.
fn gradient_bytes(plan: &Plan) -> BTreeMap<String, u64> {
    let moments = plan.states.iter().filter_map(|range| Some((range.name.strip_prefix("m.")?, range.bytes)));
    moments.map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// The most bytes of transient gradients alive at one time.
fn transient_gradients(run: &Run, graph: &Graph) -> u64 {
    let plan = run.plan();
    let schedule = &plan.schedules[&Role::First];
    let moments = timeline(&spans(graph, schedule), schedule.actions.len());
    let most = moments.iter().map(|moment| moment[Purpose::Gradients as usize]).max().unwrap();
    let persistent = plan.states.iter().filter(|range| range.purpose == Purpose::Gradients);
    most - persistent.map(|range| range.bytes).sum::<u64>()
}

#[test]
fn gradients_take_the_bytes_of_the_largest_and_not_of_all() {
    for (model, shared) in [(llama(SIZE), None), (tied(), Some("model.embed_tokens.weight"))] {
        let run = |update| start(&model, SIZE.seq, &asked(update, Strategy::Minimal));
        let (separate, within) = (run(Update::Separate), run(Update::InBackward));
        let gradients = gradient_bytes(within.plan());
        let all: u64 = gradients.values().sum();
        let persistent = |run: &Run| run.plan().states.iter().map(|range| range.bytes).sum::<u64>();
        // A scalar for each gradient's squares and one for the guard stay.
        let scalars = 64 * (gradients.len() as u64 + 1);
        assert_eq!(persistent(&separate) - persistent(&within), all - scalars);
        // A tied weight's gradient waits for the embedding, and the others come and go beside it.
        let waiting = shared.map_or(0, |name| gradients[name]);
        let others = gradients.iter().filter(|(name, _)| Some(name.as_str()) != shared);
        let largest = others.map(|(_, bytes)| bytes).max().unwrap();
        let device = plimsoll_devices::cpu(2).unwrap();
        let options = asked(Update::InBackward, Strategy::Minimal);
        let program = program(&language(&model), &*device, &options, ROWS).unwrap();
        assert_eq!(transient_gradients(&within, &program.train.graph), waiting + largest);
        // And the inputs `lr` and `step`, which are there during the whole micro-batch.
        let rates = 2 * 64;
        let saved = separate.plan().liveness_bound - within.plan().liveness_bound;
        assert!(saved >= all - scalars - waiting - largest - rates, "{saved} of {all}");
    }
}

#[test]
fn every_budget_is_kept_and_more_is_never_slower_when_gradients_come_and_go() {
    let device = plimsoll_devices::cpu(1).unwrap();
    for model in [llama(SIZE), tied()] {
        let asked = Options { global_batch: 4, ..asked(Update::Auto, Strategy::Auto) };
        let build = |rows: usize| program(&language(&model), &*device, &asked, rows);
        let request = |budget| Request {
            global_batch: 4,
            micro_batch: None,
            strategy: None,
            budget: ArenaBytes(budget),
            slack: 0.0,
        };
        let at = |budget: u64| search(request(budget), build);
        let most = at(u64::MAX).unwrap().plan.arena_bytes.0;
        let smallest = Searcher::once(build).smallest(request(0)).unwrap();
        let mut before = f64::INFINITY;
        let mut forms = std::collections::BTreeSet::new();
        for index in 0..12 {
            let budget = smallest.arena_bytes.0 + (most - smallest.arena_bytes.0) * index / 11;
            let choice = at(budget).unwrap();
            let seconds = choice.step_seconds();
            assert!(choice.plan.arena_bytes.0 <= budget && seconds <= before * (1.0 + 1e-12), "{budget}");
            assert_eq!(choice.program.updates_in_backward(), choice.accumulation == 1);
            forms.insert(choice.accumulation == 1);
            before = seconds;
        }
        assert!(forms.contains(&true), "one micro-batch with gradients that come and go is taken somewhere");
    }
}

#[test]
fn with_a_limit_on_the_norm_two_passes_train_to_the_same_bits_and_are_the_last_resort() {
    // Small enough to bind at every step.
    let limited = |update, recompute| {
        let optimizer = Optimizer { max_grad_norm: Some(0.1), ..Optimizer::default() };
        Options { optimizer, ..asked(update, recompute) }
    };
    for model in [llama(SIZE), tied(), gpt2(SIZE)] {
        let (one, expected) = trace(&model, &limited(Update::Separate, Strategy::None));
        for recompute in [Strategy::None, Strategy::Minimal] {
            let (two, got) = trace(&model, &limited(Update::TwoPass, recompute));
            assert!(expected == got, "{recompute}");
            assert!(two.plan().micro_batch_seconds > 1.9 * one.plan().micro_batch_seconds);
        }
    }
    let device = plimsoll_devices::cpu(1).unwrap();
    // Budgets of the arena alone: the process beside it grows as other tests run.
    let planned = |arena, update| {
        let budget =
            Budget { total: ProcessBytes(arena), outside: 0, origin: BudgetOrigin::Stated, ceiling: None };
        let options = limited(update, Strategy::Minimal);
        plan_within(&language(&llama(SIZE)), |graph: &Graph| device.facts(graph), &options, budget)
    };
    let open = Options { memory: Some(1 << 30), ..limited(Update::TwoPass, Strategy::Auto) };
    let choice = plimsoll_train::plan_for(&language(&llama(SIZE)), &*device, &open).unwrap().choice;
    let (seconds, bound) = (choice.plan.step_seconds(1), choice.lower_bound_seconds.unwrap());
    assert!(
        bound <= seconds * (1.0 + 1e-9) && bound > 0.99 * seconds,
        "the bound is of both passes: {bound}"
    );
    let needed = |update| planned(1 << 30, update).unwrap().choice.plan.arena_bytes.0;
    let (separate, two) = (needed(Update::Separate), needed(Update::TwoPass));
    assert!(two < separate);
    let passes = |arena| planned(arena, Update::Auto).unwrap().choice.program.passes();
    assert_eq!((passes(separate), passes(two + (separate - two) / 2)), (1, 2));
}

#[test]
fn left_free_a_step_is_never_slower_than_in_two_passes() {
    let optimizer = Optimizer { max_grad_norm: Some(1.0), ..Optimizer::default() };
    let options = |update| Options { optimizer, update, global_batch: 4, ..Options::default() };
    let model = language(&llama(SIZE));
    let device = plimsoll_devices::cpu(1).unwrap();
    // Little scratch slows a head with many words in the same way.
    let slow_in_little_scratch = |graph: &Graph| {
        let mut facts = device.facts(graph);
        for node in facts.nodes.iter_mut().filter(|node| node.workspace.least < node.workspace.best) {
            node.lean_seconds *= 10.0;
        }
        facts
    };
    let seconds = |update, arena: u64| {
        let budget =
            Budget { total: ProcessBytes(arena), outside: 0, origin: BudgetOrigin::Stated, ceiling: None };
        let planned = plan_within(&model, slow_in_little_scratch, &options(update), budget);
        planned.ok().map(|planned| planned.choice.step_seconds())
    };
    let (mut before, mut was_slower) = (f64::INFINITY, false);
    for kib in (2400..4400).step_by(40) {
        let [auto, separate, two] =
            [Update::Auto, Update::Separate, Update::TwoPass].map(|update| seconds(update, kib << 10));
        let least = separate.into_iter().chain(two).fold(f64::INFINITY, f64::min);
        let auto = auto.unwrap_or(f64::INFINITY);
        assert!(auto <= least * (1.0 + 1e-12) && auto <= before, "{kib} KiB: {auto}, {separate:?}, {two:?}");
        was_slower |= separate.zip(two).is_some_and(|(separate, two)| separate > two);
        before = auto;
    }
    assert!(was_slower, "somewhere both fit and two passes are faster");
}

#[test]
fn a_loss_that_is_not_finite_changes_nothing() {
    let mut run = start(&llama(SIZE), SIZE.seq, &asked(Update::InBackward, Strategy::None));
    step(&mut run, 0).unwrap();
    let mut head = run.state("lm_head.weight").unwrap();
    head[5] = f32::NAN;
    run.set_state("lm_head.weight", &head).unwrap();
    let before = weights(&run);
    let error = step(&mut run, 1).unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 2, what: "loss" }), "{error}");
    assert!(weights(&run) == before, "nothing was updated");
}

#[test]
fn a_gradient_that_is_not_finite_is_owned_up_to() {
    let layer = "model.layers.0.mlp";
    let [gate, down] = ["gate", "down"].map(|name| format!("{layer}.{name}_proj.weight"));
    for update in [Update::Separate, Update::TwoPass, Update::InBackward] {
        let mut run = start(&llama(SIZE), SIZE.seq, &asked(update, Strategy::None));
        // Values behind the closed gate reach no loss, but their gradient is too large to be squared.
        for (name, value) in [(&gate, 0.0), (&down, 1e25)] {
            let elements = run.state(name).unwrap().len();
            run.set_state(name, &vec![value; elements]).unwrap();
        }
        let before = weights(&run);
        let error = step(&mut run, 0).unwrap_err();
        let after = weights(&run);
        assert_eq!(after[&gate], before[&gate], "{update:?}");
        assert_eq!(run.is_whole(), update != Update::InBackward, "{update:?}");
        if update == Update::InBackward {
            assert!(matches!(error, TrainError::PartlyUpdated { step: 1 }), "{error}");
            assert!(
                error.to_string().ends_with("none are saved; `update separate` finds such a gradient first"),
                "{error}"
            );
            assert!(after["lm_head.weight"] != before["lm_head.weight"], "the head came first");
        } else {
            assert!(matches!(error, TrainError::NotFinite { .. }) && after == before, "{error}");
        }
    }
}

#[test]
fn where_no_gradient_is_finite_nothing_was_updated_and_the_weights_are_of_one_step() {
    let mut run = start(&llama(SIZE), SIZE.seq, &asked(Update::InBackward, Strategy::None));
    step(&mut run, 0).unwrap();
    let before = weights(&run);
    let batch = Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, false, 1);
    // The loss is finite, and the squares of all gradients are not.
    let scaled = batch.micro_batches(ROWS).next().unwrap().into_iter().chain([("scale", Data::F32(&[1e34]))]);
    let mut step = run.begin(1e-2, 1);
    assert!(step.backward(&scaled.collect::<Vec<_>>()).unwrap().is_finite());
    let error = step.finish().unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 2, what: "gradient norm" }), "{error}");
    assert!(run.is_whole() && weights(&run) == before);
}

#[test]
fn a_loop_that_asks_for_the_impossible_is_told() {
    let mut run = start(&llama(SIZE), SIZE.seq, &asked(Update::InBackward, Strategy::None));
    let batch = Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, false, 0);
    let inputs = batch.micro_batches(ROWS).next().unwrap();
    let mut step = run.begin(1e-3, batch.valid() as u64);
    step.backward(&inputs).unwrap();
    assert!(step.backward(&inputs).unwrap_err().to_string().contains("so a step has one micro-batch"));
    assert!(step.gradient("lm_head.weight").unwrap_err().to_string().contains("used up inside the backward"));
    step.finish().unwrap();
    let empty = run.begin(1e-3, 1).finish().unwrap_err().to_string();
    assert!(empty.contains("at least one `backward` before its `finish`"), "{empty}");

    let refused = |options: &Options| Run::new(language(&llama(SIZE)), options).unwrap_err().to_string();
    let clipped = Options { optimizer: Optimizer::default(), ..asked(Update::InBackward, Strategy::None) };
    assert!(refused(&clipped).contains("add `max_grad_norm 0`"), "{}", refused(&clipped));
    let divided = Options { global_batch: 2 * ROWS, ..asked(Update::InBackward, Strategy::None) };
    assert!(refused(&divided).contains("one micro-batch a step"), "{}", refused(&divided));
}
