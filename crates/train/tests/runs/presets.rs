//! Every model that `plimsoll plan` knows by name, planned over grids of budgets from the smallest that works to
//! the one that keeps everything: no plan crosses its budget or beats its bound, more memory is never slower,
//! and with all of it the bound is met.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what a reader wants to see")]

use std::time::Instant;

use plimsoll_graph::Graph;
use plimsoll_model::Preset;
use plimsoll_plan::{ArenaBytes, Choice, DeviceSpec, Facts, Request, Searcher};
use plimsoll_train::{LanguageModel, Options, Programs};

/// Relative tolerance on times, which are sums in different orders.
const ROUNDING: f64 = 1e-9;

/// A preset, and at how many budgets it is planned.
struct Case {
    preset: &'static str,
    budgets: u32,
    global_batch: usize,
    micro_batch: Option<usize>,
}

impl Case {
    /// One sequence at a time.
    const fn pinned(preset: &'static str, budgets: u32) -> Case {
        Case { preset, budgets, global_batch: 1, micro_batch: Some(1) }
    }

    /// Four sequences a step, in micro-batches that the search chooses.
    const fn free(preset: &'static str, budgets: u32) -> Case {
        Case { preset, budgets, global_batch: 4, micro_batch: None }
    }

    fn check(&self, facts: impl Fn(&Graph) -> Facts + Copy) {
        let Preset { name, model, seq } = Preset::from_name(self.preset).unwrap();
        let model = LanguageModel { architecture: model, seq_len: seq, generate: false, lora: None };
        let options = Options { global_batch: self.global_batch, ..Options::default() };
        let mut searcher = Searcher::new(Programs { model: &model, facts, options: &options });
        let (global_batch, micro_batch) = (self.global_batch, self.micro_batch);
        let request = |budget| Request {
            global_batch,
            micro_batch,
            strategy: None,
            budget: ArenaBytes(budget),
            slack: 0.0,
        };
        let start = Instant::now();
        let smallest = searcher.smallest(request(0)).unwrap();
        let mut at = |budget: u64| searcher.search(request(budget));
        let most = at(u64::MAX).unwrap().plan.arena_bytes.0;
        let mut before = f64::INFINITY;
        for budget in grid(smallest.arena_bytes.0, most, self.budgets) {
            let choice = at(budget).unwrap();
            before = judged(name, budget, &choice, before);
            if budget == most {
                let bound = choice.lower_bound_seconds.unwrap();
                assert!(
                    before <= bound * (1.0 + ROUNDING),
                    "{name}: {before} s with everything, bound {bound} s"
                );
            }
        }
        println!("{name}: {} budgets in {:.1} s", self.budgets, start.elapsed().as_secs_f64());
    }
}

/// Budgets from `least` to `most`, denser where they are tight.
fn grid(least: u64, most: u64, count: u32) -> impl Iterator<Item = u64> {
    let share = move |index: u32| (f64::from(index) / f64::from(count - 1)).powi(2);
    (0..count - 1).map(move |index| least + ((most - least) as f64 * share(index)) as u64).chain([most])
}

/// Holds a plan to its budget, to its bound and to the time of the plan in less memory; returns its own time.
fn judged(name: &str, budget: u64, choice: &Choice, before: f64) -> f64 {
    let (arena, seconds) = (choice.plan.arena_bytes.0, choice.step_seconds());
    let bound = choice.lower_bound_seconds.unwrap();
    assert!(arena <= budget, "{name}: {arena} bytes of {budget}");
    assert!(seconds <= before * (1.0 + ROUNDING), "{name}, {budget} bytes: {seconds} s, in fewer {before} s");
    assert!(bound <= seconds * (1.0 + ROUNDING), "{name}, {budget} bytes: {seconds} s, bound {bound} s");
    seconds
}

#[test]
fn every_preset_keeps_every_budget_of_a_gpu_and_is_never_slower_in_more() {
    let spec = DeviceSpec::from_name("cuda:h100").unwrap();
    let cases = [
        ("tiny", 60),
        ("s", 60),
        ("m", 60),
        ("llama-3.2-1b", 60),
        ("llama-3.1-8b", 24),
        ("llama-3.1-70b", 16),
        ("qwen2.5-0.5b", 40),
        ("qwen2.5-1.5b", 40),
        ("qwen2.5-7b", 40),
        ("qwen3-0.6b", 40),
        ("tiny-moe", 40),
        ("s-moe", 40),
        ("mixtral-8x7b", 8),
        ("qwen1.5-moe-a2.7b", 8),
        ("qwen3-30b-a3b", 6),
        ("olmoe-1b-7b", 8),
        ("gpt2", 60),
        ("gpt2-xl", 24),
        ("bert-base", 40),
    ];
    let known: Vec<&str> = Preset::all().iter().map(|preset| preset.name).collect();
    assert_eq!(cases.map(|(preset, _)| preset)[..], known[..], "every preset has a line");
    for (preset, budgets) in cases {
        Case::pinned(preset, budgets).check(|graph| spec.facts(graph));
    }
}

#[test]
fn with_the_micro_batch_free_it_is_the_same() {
    let spec = DeviceSpec::from_name("cuda:4090").unwrap();
    for (preset, budgets) in [("tiny", 40), ("m", 20), ("llama-3.1-8b", 6), ("gpt2", 12), ("bert-base", 12)] {
        Case::free(preset, budgets).check(|graph| spec.facts(graph));
    }
}

#[test]
fn presets_for_a_cpu_whose_kernels_can_do_with_less_scratch_keep_every_budget_too() {
    let device = plimsoll_devices::cpu(2).unwrap();
    for case in [
        Case::pinned("tiny", 40),
        Case::pinned("s", 20),
        Case::free("tiny", 20),
        Case::pinned("tiny-moe", 20),
        Case::free("tiny-moe", 10),
    ] {
        case.check(|graph| device.facts(graph));
    }
}
