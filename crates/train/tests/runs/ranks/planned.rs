//! Plans for several ranks, made without starting them.

use plimsoll_graph::{DType, Graph, GraphError, Init};
use plimsoll_plan::{Choice, Link, ProcessBytes, Purpose, RankLink, RankLinks, Strategy, Tier, traffic};
use plimsoll_train::memory::{Budget, BudgetOrigin};
use plimsoll_train::{Offload, Options, TrainError, ZeroStage, plan_for, plan_within};

/// Three equal layers whose sizes do not divide by powers of two.
fn model(rows: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let mut x = g.input("x", [rows, 72], DType::F32); // (N, C)
    let targets = g.input("targets", [rows], DType::I32); // (N)
    for layer in 0..3 {
        x = g.block(&format!("layers.{layer}"), |g| {
            let norm = g.param("norm", [72], Init::Fill(1.0));
            let y = g.rms_norm(x, norm, 1e-6);
            let up = g.param("up", [200, 72], Init::Normal(0.1));
            let down = g.param("down", [72, 200], Init::Normal(0.1));
            let y = g.linear(y, up, None);
            let y = g.silu(y);
            let y = g.linear(y, down, None);
            g.add(x, y)
        });
    }
    let scale = g.loss_scale();
    let head = g.param("head", [301, 72], Init::Normal(0.5)); // (V, C)
    let loss = g.head_loss(x, head, None, targets, scale, -100);
    g.output("loss", loss);
    g.finish()
}

fn options(ranks: usize, zero_stage: ZeroStage) -> Options {
    let within = RankLink { rate: 1e9, latency: 1e-6 };
    let between = RankLink { rate: 1e8, latency: 1e-5 };
    Options {
        global_batch: 8 * ranks,
        micro_batch: Some(4),
        recompute: Some(Strategy::None),
        memory: Some(1 << 30),
        threads: 1,
        ranks,
        zero_stage,
        rank_links: Some(RankLinks { within, between: Some((between, 8)) }),
        ..Options::default()
    }
}

#[test]
fn from_two_ranks_on_more_ranks_never_need_more_memory() {
    for stage in [ZeroStage::Whole, ZeroStage::Moments, ZeroStage::Gradients, ZeroStage::Weights] {
        let mut last: Option<(u64, u64)> = None;
        for ranks in [2, 3, 4, 5, 7, 8, 16, 24, 64, 100, 1024] {
            let options = options(ranks, stage);
            let device = options.device().unwrap();
            let choice = plan_for(&model, &*device, &options).unwrap().choice;
            let state = |purpose| {
                let ranges = choice.plan.states.iter().filter(|range| range.purpose == purpose);
                ranges.map(|range| range.ty.bytes() as u64).sum::<u64>()
            };
            let kept = state(Purpose::Optimizer) + state(Purpose::Gradients) + state(Purpose::Weights);
            let now = (choice.plan.arena_bytes.0, kept);
            if let Some(last) = last {
                assert!(
                    now.0 <= last.0 && now.1 <= last.1,
                    "{stage:?}, {ranks} ranks: {now:?} after {last:?}"
                );
            }
            last = Some(now);
        }
    }
}

#[test]
fn exchanges_take_the_time_of_the_stated_links_and_say_how_much_of_it_shows() {
    let of = |ranks: usize| {
        let options = options(ranks, ZeroStage::Moments);
        let device = options.device().unwrap();
        let choice = plan_for(&model, &*device, &options).unwrap().choice;
        (traffic(&choice).unwrap(), choice.step_seconds())
    };
    let (near, near_step) = of(8);
    let (far, far_step) = of(16);
    assert_eq!((near.ranks, far.ranks), (8, 16));
    // Ten parameters: a scatter and a gather for each, and one sum of the squares in two turns.
    let turns = 2.0 * 10.0 + 2.0;
    assert!((near.seconds - turns * 3.0 * 1e-6 - near.wire_bytes as f64 / 1e9).abs() < 1e-9);
    // Two nodes of eight ranks, and a card for each rank: bytes leave a node by eight cards.
    let latency = 3.0 * 1e-6 + 1e-5;
    assert!((far.seconds - turns * latency - far.wire_bytes as f64 / 8e8).abs() < 1e-9);
    assert!(far.exposed_seconds > near.exposed_seconds && far_step > near_step);
    assert!(near.exposed_seconds <= near.seconds && far.exposed_seconds <= far.seconds);
}

#[test]
fn from_two_ranks_on_the_least_memory_of_a_rank_never_grows_where_recompute_is_free() {
    for stage in [ZeroStage::Whole, ZeroStage::Moments, ZeroStage::Gradients, ZeroStage::Auto] {
        let counts = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 64, 100, 128, 1000, 1024];
        let least: Vec<u64> = counts.iter().map(|&ranks| least(stage, ranks)).collect();
        assert!(least.windows(2).all(|pair| pair[1] <= pair[0]), "{stage:?}: {least:?}");
        let divided = stage != ZeroStage::Whole;
        assert_eq!(least.last() < least.first(), divided, "{stage:?}: {least:?}");
    }
}

/// Bytes of the smallest arena of one of several ranks.
fn least(zero_stage: ZeroStage, ranks: usize) -> u64 {
    match in_arena_of(ranks, zero_stage, 1) {
        Err(TrainError::Budget { smallest, .. }) => smallest.arena_bytes.0,
        other => panic!("{other:?}"),
    }
}

/// The plan of one of four ranks in an arena of this size.
fn in_arena(zero_stage: ZeroStage, total: u64) -> Result<Choice, TrainError> {
    in_arena_of(4, zero_stage, total)
}

fn in_arena_of(ranks: usize, zero_stage: ZeroStage, total: u64) -> Result<Choice, TrainError> {
    let options = Options { rank_links: None, recompute: None, ..options(ranks, zero_stage) };
    let device = options.device().unwrap();
    let (total, ceiling) = (ProcessBytes(total), Some(ProcessBytes(1 << 40)));
    let budget = Budget { total, outside: 0, origin: BudgetOrigin::Stated, ceiling };
    plan_within(&model, |graph: &Graph| device.facts(graph), &options, budget).map(|planned| planned.choice)
}

#[test]
fn a_refused_budget_names_offload_as_a_way_out_for_ranks_too() {
    for ranks in [1, 2] {
        let error = in_arena_of(ranks, ZeroStage::Whole, least(ZeroStage::Whole, ranks) - 1).unwrap_err();
        assert!(error.hints().iter().any(|hint| hint.contains("--offload")), "{ranks}: {:?}", error.hints());
    }
}

#[test]
fn where_the_lowest_stage_has_to_offload_the_fastest_is_taken() {
    let total = least(ZeroStage::Whole, 4) - 1;
    let beside_a_disk = |zero_stage, rate: f64| {
        let disk = Link {
            tier: Tier::Disk,
            room: 1 << 30,
            block: 4096,
            out_rate: rate,
            in_rate: rate,
            latency: 1e-4,
            toll: 0.0,
        };
        let folder = std::env::temp_dir();
        let offload = Some(Offload { tier: Tier::Disk, folder, budget: None, link: Some(disk) });
        let options = Options { rank_links: None, recompute: None, offload, ..options(4, zero_stage) };
        let device = options.device().unwrap();
        let budget =
            Budget { total: ProcessBytes(total), outside: 0, origin: BudgetOrigin::Stated, ceiling: None };
        plan_within(&model, |graph: &Graph| device.facts(graph), &options, budget).unwrap().choice
    };
    let moves = |choice: &Choice| choice.plan.schedules.values().any(|schedule| !schedule.copies.is_empty());
    for rate in [1e6, 1e10] {
        assert!(moves(&beside_a_disk(ZeroStage::Whole, rate)));
        let taken = beside_a_disk(ZeroStage::Auto, rate);
        for stage in [ZeroStage::Whole, ZeroStage::Moments, ZeroStage::Gradients, ZeroStage::Weights] {
            let other = beside_a_disk(stage, rate);
            // Transfers that cross into the next schedule save time beyond what searches compare.
            let (taken, other) = (taken.step_seconds(), other.step_seconds());
            assert!(taken <= 1.02 * other, "{stage:?} at {rate} bytes/s: {taken} and {other}");
        }
        assert!(rate > 1e6 || !moves(&taken), "division costs less than a slow disk");
    }
}

#[test]
fn the_lowest_stage_that_fits_is_taken_where_none_is_named() {
    let divided = |choice: &Choice| {
        let states = choice.program.train.graph.states().iter();
        let mut names: Vec<&str> =
            states.filter(|state| state.whole.is_some()).map(|state| &*state.name).collect();
        names.retain(|name| name.rsplit('.').next() == Some("head"));
        names.len()
    };
    let stages = [ZeroStage::Whole, ZeroStage::Moments, ZeroStage::Gradients, ZeroStage::Weights];
    let [whole, moments, gradients, weights] = stages.map(|stage| least(stage, 4));
    assert!(
        weights < gradients && gradients < moments && moments < whole,
        "{weights} {gradients} {moments} {whole}"
    );
    let from = [(whole, 0), (whole - 1, 2), (moments, 2), (moments - 1, 3), (gradients, 3)];
    // As the budget shrinks, the two moments of the head are divided, then its gradient, then the head itself.
    for (bytes, expected) in from.into_iter().chain([(gradients - 1, 4), (weights, 4)]) {
        assert_eq!(divided(&in_arena(ZeroStage::Auto, bytes).unwrap()), expected, "{bytes}");
    }
    assert!(in_arena(ZeroStage::Auto, weights - 1).is_err());
    assert!(in_arena(ZeroStage::Whole, whole - 1).is_err());
}
