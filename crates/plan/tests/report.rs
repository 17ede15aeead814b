//! The report of a plan agrees with its schedule.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_plan::{
    ArenaBytes, LayerReport, Plan, Program, Request, Role, Scratch, Searcher, Strategy, compare, faster,
    plan, report, spans, timeline, unbudgeted,
};

mod support;
use support::{STRATEGIES, families, family, program, residual_chain, skip_network};

fn llama() -> Program {
    program(family(&families()[0].1), 64)
}

fn planned(program: &Program, strategy: Strategy) -> Plan {
    plan(program, strategy, Scratch::Best).unwrap()
}

fn layers(program: &Program, strategy: Strategy) -> Vec<LayerReport> {
    report(program, &planned(program, strategy)).layers
}

#[test]
fn a_plan_that_recomputes_nothing_says_so_of_all_layers() {
    let layers = layers(&llama(), Strategy::None);
    assert!(layers.iter().all(|layer| layer.recompute.is_empty() && layer.offload.is_empty()));
    assert_eq!(layers.iter().map(|layer| layer.count).sum::<usize>(), 4);
    assert_eq!(layers[0].kind, "model.layers.0-3");
    let expected = [
        "input_layernorm",
        "q",
        "k",
        "v",
        "rope q",
        "rope k",
        "attention",
        "add o",
        "post_attention_layernorm",
        "gate",
        "up",
        "swiglu",
        "add down",
    ];
    for name in &layers[0].keep {
        assert!(expected.contains(&name.as_str()), "{name}");
    }
    for name in ["v", "attention", "gate", "up"] {
        assert!(layers[0].keep.iter().any(|kept| kept == name), "{name}");
    }
}

#[test]
fn full_keeps_what_passes_between_layers_and_selective_the_products() {
    let program = llama();
    for layer in layers(&program, Strategy::Full) {
        assert!(layer.keep.iter().all(|name| name == "add down"), "{layer:?}");
        assert!(layer.recompute.iter().any(|name| name == "q"), "{layer:?}");
    }
    for layer in layers(&program, Strategy::Selective) {
        assert!(layer.keep.iter().any(|name| name == "gate"), "{layer:?}");
        assert!(layer.recompute.iter().any(|name| name == "swiglu"), "{layer:?}");
        assert!(!layer.recompute.iter().any(|name| name == "gate"), "{layer:?}");
    }
}

#[test]
fn nothing_is_both_kept_and_recomputed_and_the_fraction_counts_every_extra_run() {
    for strategy in STRATEGIES {
        for graph in [family(&families()[0].1), residual_chain(7), skip_network(3)] {
            let program = program(graph, 0);
            let plan = planned(&program, strategy);
            let report = report(&program, &plan);
            for layer in &report.layers {
                assert!(layer.keep.iter().all(|name| !layer.recompute.contains(name)), "{layer:?}");
            }
            // Every node takes a second, so the extra runs are the extra seconds.
            let runs = plan.schedules[&Role::First].actions.len() as f64;
            let once = planned(&program, Strategy::None).schedules[&Role::First].actions.len() as f64;
            let nodes = program.train.graph.nodes().iter();
            let forward =
                nodes.filter(|n| n.phase == plimsoll_graph::Phase::Forward && !n.op.is_view()).count() as f64;
            assert!((report.recompute_fraction - (runs - once) / forward).abs() < 1e-9, "{strategy}");
            assert_eq!(report.offload_bytes, 0);
        }
    }
}

#[test]
fn marks_that_a_plan_does_not_follow_are_counted() {
    let program = program(residual_chain(3), 0);
    let ignored = |strategy| report(&program, &planned(&program, strategy)).ignored_marks;
    assert_eq!((ignored(Strategy::Manual), ignored(Strategy::Full)), (0, 3));
}

#[test]
fn the_highest_moment_of_the_timeline_is_the_liveness_bound() {
    for strategy in STRATEGIES {
        for (_, model) in families() {
            let program = program(family(&model), 128);
            let plan = planned(&program, strategy);
            let highest = |role: Role| {
                let schedule = &plan.schedules[&role];
                let moments = timeline(&spans(&program.train.graph, schedule), schedule.actions.len());
                moments.iter().map(|moment| moment.iter().sum::<u64>()).max().unwrap()
            };
            assert_eq!(highest(Role::First).max(highest(Role::Further)), plan.liveness_bound, "{strategy}");
        }
    }
}

#[test]
fn spans_that_share_an_action_share_no_byte() {
    let program = llama();
    let plan = planned(&program, Strategy::Sqrt);
    let spans = spans(&program.train.graph, &plan.schedules[&Role::First]);
    for (index, a) in spans.iter().enumerate() {
        for b in &spans[index + 1..] {
            let in_time = a.start < b.end && b.start < a.end;
            let in_space = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            assert!(!(in_time && in_space), "{a:?} and {b:?}");
        }
    }
}

fn request(budget: u64) -> Request {
    Request { global_batch: 4, micro_batch: None, strategy: None, budget: ArenaBytes(budget), slack: 0.0 }
}

/// A searcher over a chain of equal layers; a smaller micro-batch only takes more of them.
fn searcher() -> Searcher<impl plimsoll_plan::Build> {
    Searcher::new(|_rows: usize| Ok(llama()))
}

#[test]
fn a_searcher_answers_as_often_as_it_is_asked_and_always_the_same() {
    let mut kept = searcher();
    let smallest = planned(&llama(), Strategy::Minimal).arena_bytes.0;
    for budget in (smallest..2 * smallest).step_by(smallest as usize / 16) {
        let (known, fresh) =
            (kept.search(request(budget)).unwrap(), searcher().search(request(budget)).unwrap());
        assert_eq!(known.plan.schedules, fresh.plan.schedules);
        assert_eq!(known.lower_bound_seconds, fresh.lower_bound_seconds);
        assert!(kept.fits(request(budget)).unwrap());
    }
    let least =
        (0..=smallest).rev().step_by(64).take_while(|&b| searcher().search(request(b)).is_ok()).last();
    assert!(kept.fits(request(least.unwrap())).unwrap());
    assert!(!kept.fits(request(least.unwrap() - 64)).unwrap(), "what no search finds does not fit");
}

#[test]
fn larger_budgets_that_are_offered_are_faster_when_they_are_asked_for() {
    let mut searcher = searcher();
    let smallest = planned(&llama(), Strategy::Minimal).arena_bytes.0;
    let chosen = searcher.search(request(smallest)).unwrap();
    let chosen = plimsoll_plan::Point::of(&chosen);
    let kept = unbudgeted(&mut searcher, request(smallest)).unwrap();
    assert!(kept.step_seconds < chosen.step_seconds);
    let offered = faster(&mut searcher, request(smallest), chosen, kept).unwrap();
    assert!(offered.len() > 1);
    let mut before = chosen.step_seconds;
    for point in offered {
        let again = plimsoll_plan::Point::of(&searcher.search(request(point.arena_bytes.0)).unwrap());
        assert!(again.step_seconds <= point.step_seconds && point.step_seconds < before, "{point:?}");
        before = point.step_seconds;
    }
    assert!((before - kept.step_seconds).abs() < 1e-9, "the last brings all there is");
}

#[test]
fn the_comparison_is_made_of_plans_and_auto_is_not_beaten_by_anything_that_fits() {
    let mut searcher = searcher();
    let full = planned(&llama(), Strategy::Full).arena_bytes.0;
    let auto = searcher.search(request(full)).unwrap();
    let rows = compare(&mut searcher, request(full), &auto).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["none", "full", "sqrt", "selective", "minimal", "accumulation", "auto"]);
    assert!(rows[0].slowdown.abs() < 1e-12 && !rows[0].fits);
    assert_eq!(rows[1].arena_bytes.0, full);
    let auto = rows.last().unwrap();
    assert!(auto.fits && rows.iter().all(|row| !row.fits || row.step_seconds >= auto.step_seconds));
}
