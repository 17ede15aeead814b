//! The same input gives the same bytes of schedule, every strategy can plan every family, and layouts stay
//! close to the bound that no layout can beat.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the tables are what a reader wants to see")]

use plimsoll_graph::Graph;
use plimsoll_model::Preset;
use plimsoll_plan::{Plan, Scratch, plan};

mod support;
use support::{STRATEGIES, families, family, program, residual_chain, skip_network, trained};

/// How far above the liveness bound a layout may lie.
const SLACK: f64 = 1.05;

fn text(plan: &Plan, graph: &Graph) -> String {
    let schedules = plan.schedules.values().map(|schedule| schedule.display(graph).to_string());
    format!("{:?}\n{}", plan.states, schedules.collect::<String>())
}

#[test]
fn the_same_input_gives_the_same_schedule_to_the_byte() {
    // Built twice from nothing, so that no address or order of construction can leak into the plan.
    let build: [fn() -> Graph; 3] = [|| residual_chain(5), || skip_network(3), || family(&families()[0].1)];
    for build in build {
        for strategy in STRATEGIES {
            let once = program(build(), 256);
            let again = program(build(), 256);
            let plans = [&once, &again].map(|program| plan(program, strategy, Scratch::Best).unwrap());
            let texts = [(&plans[0], &once), (&plans[1], &again)]
                .map(|(plan, program)| text(plan, &program.train.graph));
            assert_eq!(texts[0], texts[1], "{strategy}");
            assert_eq!(plans[0].schedules, plans[1].schedules, "{strategy}");
        }
    }
}

#[test]
fn every_strategy_plans_every_family_and_none_takes_more_than_none() {
    for (name, model) in families() {
        let program = program(family(&model), 0);
        let all: Vec<u64> = STRATEGIES
            .iter()
            .map(|&strategy| plan(&program, strategy, Scratch::Best).unwrap().arena_bytes.0)
            .collect();
        println!("{name}: {all:?}");
        assert!(all.iter().all(|&bytes| bytes <= all[0]), "{name}: {all:?}");
        assert!(all.iter().any(|&bytes| bytes < all[0]), "{name}: recompute saves something");
    }
}

#[test]
fn purposes_at_the_peak_add_up_to_the_arena() {
    for (_, model) in families() {
        let program = program(family(&model), 512);
        for strategy in STRATEGIES {
            let plan = plan(&program, strategy, Scratch::Best).unwrap();
            let sum: u64 = plan.by_purpose.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(sum, plan.arena_bytes.0, "{strategy}");
        }
    }
}

/// Layout against bound, transient bytes only: state is the same in both and would hide a difference.
fn ratio(plan: &Plan) -> f64 {
    let persistent: u64 = plan.states.iter().map(|range| range.bytes).sum();
    (plan.arena_bytes.0 - persistent) as f64 / (plan.liveness_bound - persistent) as f64
}

#[test]
fn layouts_stay_within_a_twentieth_of_the_liveness_bound() {
    let mut worst: f64 = 1.0;
    for name in ["tiny", "s"] {
        let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
        for rows in [1, 4] {
            let forward = model.training(rows, seq).unwrap();
            let program = program(trained(&forward), 1 << 16);
            let ratios: Vec<(String, f64)> = STRATEGIES
                .iter()
                .map(|&strategy| {
                    let plan = plan(&program, strategy, Scratch::Best).unwrap();
                    (strategy.to_string(), ratio(&plan))
                })
                .collect();
            let line: Vec<String> = ratios.iter().map(|(name, ratio)| format!("{name} {ratio:.4}")).collect();
            println!("{name}, {rows} rows: {}", line.join(", "));
            worst = ratios.iter().fold(worst, |worst, (_, ratio)| worst.max(*ratio));
        }
    }
    assert!(worst <= SLACK, "the worst layout is {worst} times its bound");
}
