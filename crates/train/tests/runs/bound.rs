//! Layouts of real programs, with the optimizer and the CPU's scratch, against the bound no layout can beat.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the ratios are what a reader wants to see")]

use plimsoll_model::Preset;
use plimsoll_plan::{Scratch, Strategy, plan};
use plimsoll_train::{LanguageModel, Options, program};

/// How far above the bound the transient part of an arena may lie.
const SLACK: f64 = 1.05;

#[test]
fn arenas_stay_within_a_twentieth_of_the_liveness_bound() {
    let device = plimsoll_devices::cpu(2).unwrap();
    let strategies = Strategy::LADDER.into_iter().chain([Strategy::Every(2), Strategy::Every(3)]);
    let mut worst: f64 = 1.0;
    for name in ["tiny", "s"] {
        let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
        let model = LanguageModel { architecture: model, seq_len: seq, generate: true, lora: None };
        for rows in [1, 2, 8] {
            let program = program(&model, &*device, &Options::default(), rows).unwrap();
            for strategy in strategies.clone() {
                for scratch in [Scratch::Best, Scratch::Least] {
                    let plan = plan(&program, strategy, scratch).unwrap();
                    // State takes the same bytes in the plan and in the bound, and would hide a difference between
                    // them.
                    let persistent: u64 = plan.states.iter().map(|range| range.bytes).sum();
                    let transient = (plan.arena_bytes.0 - persistent) as f64;
                    let ratio = transient / (plan.liveness_bound - persistent) as f64;
                    println!("{name}, {rows} rows, {strategy}, {scratch:?} scratch: {ratio:.4}");
                    worst = worst.max(ratio);
                }
            }
        }
    }
    assert!(worst <= SLACK, "the worst layout is {worst} times its bound");
}
