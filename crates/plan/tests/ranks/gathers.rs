//! Weights that ranks divide: where the planner gathers them, how long they stay, and which mutations the judge refuses.

use std::collections::BTreeMap;

use plimsoll_graph::{DType, Graph, Init, Op, divide};
use plimsoll_plan::{
    Action, ArenaBytes, Buffer, Contents, Fault, Judged, Plan, Program, Purpose, Request, Role, Schedule,
    Scratch, Strategy, exchanges, plan, replay, replay_ranks, search, wire_bytes,
};

use super::{choice, is_await, is_exchange, places, planned, support};

const WIDTH: usize = 64;
/// Bytes of a weight, which is as large as those that are gathered ahead.
const WEIGHT: u64 = (WIDTH * WIDTH * 4) as u64;

/// `x ← x + w₂·silu(w₁·x)` for each layer, with its derivative; `ranks` ranks divide the weights.
fn graph(layers: usize, ranks: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", [4, WIDTH], DType::F32);
    for layer in 0..layers {
        x = g.block(&format!("layer.{layer}"), |g| {
            g.checkpoint(|g| {
                let w1 = g.param("w1", [WIDTH, WIDTH], Init::Normal(0.1));
                let w2 = g.param("w2", [WIDTH, WIDTH], Init::Normal(0.1));
                let h = g.linear(x, w1, None);
                let h = g.silu(h);
                let h = g.linear(h, w2, None);
                g.add(x, h)
            })
        });
    }
    let loss = g.sum(x, &[0, 1]);
    g.output("loss", loss);
    divide(support::trained(&g.finish().unwrap()), ranks).unwrap()
}

fn program(layers: usize, ranks: usize) -> Program {
    support::program(graph(layers, ranks), 0)
}

fn first(plan: &Plan) -> &Schedule {
    &plan.schedules[&Role::First]
}

/// Gathers of each weight in a schedule.
fn counts(graph: &Graph, schedule: &Schedule) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for exchange in exchanges(graph, schedule) {
        *counts.entry(exchange.subject.trim_end_matches("@0").to_owned()).or_default() += 1;
    }
    counts
}

/// The most bytes of gathered weights that are alive at one time.
fn most_gathered(schedule: &Schedule) -> u64 {
    let gathered: Vec<&Buffer> =
        schedule.buffers.iter().filter(|buffer| buffer.purpose == Purpose::Gathered).collect();
    let alive = |at: usize| {
        let alive = gathered.iter().filter(|buffer| (buffer.start..buffer.end).contains(&at));
        alive.map(|buffer| buffer.bytes).sum::<u64>()
    };
    (0..schedule.actions.len()).map(alive).max().unwrap_or(0)
}

#[test]
fn a_weight_is_gathered_behind_the_product_with_the_one_before_it() {
    let program = program(2, 2);
    let graph = &program.train.graph;
    let plan = planned(&program);
    let kind = |action: &Action| match action {
        Action::Await { .. } => 'w',
        Action::Run { .. } if is_exchange(graph, action) => 'g',
        Action::Run { node, .. } => match graph.node(*node).op {
            Op::Linear { .. } | Op::LinearGradInput { .. } => 'L',
            _ => '.',
        },
        _ => '?',
    };
    let text: String = first(&plan).actions.iter().map(kind).collect();
    let forward = "ggwL.wL.";
    assert!(text.starts_with(&format!("{forward}{forward}")), "{text}");
    // The second layer's weights in falling order, and of the first layer only the second weight: its input needs no gradient.
    let backward: String = text[2 * forward.len()..].chars().filter(|of| "gwL".contains(*of)).collect();
    assert_eq!(backward, "ggwLwLgwL", "{text}");
}

#[test]
fn no_strategy_keeps_a_gathered_weight_for_the_backward_pass() {
    for layers in [3, 6] {
        let program = program(layers, 4);
        let graph = &program.train.graph;
        for strategy in support::STRATEGIES {
            let plan = plan(&program, strategy, Scratch::Best).unwrap();
            let counts = counts(graph, first(&plan));
            let lowest = counts["layer.0.w1"];
            assert!((1..=2).contains(&lowest) || strategy == Strategy::Minimal, "{strategy}: {counts:?}");
            let twice = counts.iter().filter(|(name, _)| *name != "layer.0.w1").all(|(_, &count)| count == 2);
            assert!(twice || strategy == Strategy::Minimal, "{strategy}: {counts:?}");
            // A group of layers that is recomputed together holds its weights until it has gone backward.
            let group = match strategy {
                Strategy::Every(group) => group,
                Strategy::Sqrt => 2,
                _ => 1,
            };
            let most = most_gathered(first(&plan));
            assert!(most <= 2 * group as u64 * WEIGHT, "{strategy}, {layers} layers: {most}");
        }
    }
}

#[test]
fn bytes_on_the_wire_are_two_gathers_of_every_weight_that_both_passes_read() {
    for ranks in [2, 4, 8] {
        let program = program(3, ranks);
        let choice = choice(&program);
        let share = WEIGHT * (ranks as u64 - 1) / ranks as u64;
        // Six weights, of which the lowest is read in the forward pass alone.
        assert_eq!(wire_bytes(&choice, Role::First), 11 * share);
        assert_eq!(wire_bytes(&choice, Role::Further), 11 * share);
    }
}

/// The fault of the plan whose first schedule was altered.
fn fault(program: &Program, alter: impl Fn(&mut Schedule)) -> Option<Fault> {
    let plan = planned(program);
    let mut schedule = first(&plan).clone();
    alter(&mut schedule);
    replay(&program.train.graph, &schedule, Role::First.phases(), plan.arena_bytes.0)
        .err()
        .map(|error| error.fault)
}

#[test]
fn a_gathered_weight_that_is_read_before_its_await_is_refused() {
    let program = program(2, 2);
    for which in 0..7 {
        let early = |schedule: &mut Schedule| {
            let place = places(schedule, is_await)[which];
            let action = schedule.actions.remove(place);
            schedule.actions.insert(place + 1, action);
        };
        assert!(matches!(fault(&program, early), Some(Fault::Copy(_))), "await {which}");
    }
}

#[test]
fn bytes_that_are_used_while_a_gather_is_under_way_are_refused() {
    let program = program(2, 2);
    let graph = &program.train.graph;
    let over = |schedule: &mut Schedule| {
        let second = places(schedule, |action| is_exchange(graph, action))[1];
        let outputs = |schedule: &Schedule, at: usize| match &schedule.actions[at] {
            Action::Run { outputs, .. } => outputs.clone(),
            _ => Vec::new(),
        };
        // The first product, which runs beside the gather.
        let (gathered, product) = (outputs(schedule, second)[0], outputs(schedule, second + 2)[0]);
        schedule.buffers[product.index()].offset = schedule.buffers[gathered.index()].offset;
    };
    assert!(matches!(fault(&program, over), Some(Fault::Copy(why)) if why.contains("an exchange")));
    let shard = |schedule: &mut Schedule| {
        // A value in the place of the shard that is being sent.
        let first = places(schedule, |action| is_exchange(graph, action))[0];
        let Action::Run { inputs, .. } = &schedule.actions[first] else { return };
        let offset = schedule.buffers[inputs[0].index()].offset;
        let value = |buffer: &&mut Buffer| matches!(buffer.contents, Contents::Value(_));
        schedule.buffers.iter_mut().filter(value).for_each(|buffer| buffer.offset = offset);
    };
    assert!(fault(&program, shard).is_some());
}

#[test]
fn a_backward_pass_that_reads_a_weight_that_was_not_gathered_again_is_refused() {
    let program = program(2, 2);
    let graph = &program.train.graph;
    let without_last = |schedule: &mut Schedule| {
        let last = *places(schedule, |action| is_exchange(graph, action)).last().unwrap();
        schedule.actions.remove(last);
        let last = *places(schedule, is_await).last().unwrap();
        schedule.actions.remove(last);
    };
    assert!(fault(&program, without_last).is_some());
}

/// The first difference that the judge of all ranks finds, if the exchanges of rank 1 are altered.
fn differs(alter: impl Fn(&mut Schedule, &Graph)) -> String {
    let program = program(2, 2);
    let graph = &program.train.graph;
    let plan = planned(&program);
    let schedule = first(&plan);
    let mut other = schedule.clone();
    alter(&mut other, graph);
    let of = |schedule| [Judged { role: Role::First, graph, schedule }];
    replay_ranks(&[&of(schedule), &of(&other)]).unwrap_err().to_string()
}

/// The first schedule of a plan, for the judge of all ranks.
fn of<'a>(program: &'a Program, plan: &'a Plan) -> [Judged<'a>; 1] {
    [Judged { role: Role::First, graph: &program.train.graph, schedule: first(plan) }]
}

#[test]
fn a_gather_that_one_rank_lacks_begins_in_another_order_or_in_another_size_is_refused() {
    let gathers = |schedule: &Schedule, graph: &Graph| places(schedule, |action| is_exchange(graph, action));
    for which in [0, 2, 6] {
        let missing = differs(|schedule, graph| {
            schedule.actions.remove(gathers(schedule, graph)[which]);
        });
        assert!(missing.starts_with(&format!("rank 1, schedule `first`: exchange {which} is ")), "{missing}");
    }
    let swapped = differs(|schedule, graph| {
        let places = gathers(schedule, graph);
        schedule.actions.swap(places[0], places[1]);
    });
    assert!(swapped.contains("exchange 0 is all_gather of layer.0.w2"), "{swapped}");
    let (two, three) = (program(2, 2), program(2, 3));
    let (plan, other) = (planned(&two), planned(&three));
    let error = replay_ranks(&[&of(&two, &plan), &of(&three, &other)]).unwrap_err();
    assert!(error.why.ends_with("expects 3 ranks, and there are 2"), "{error}");
}

/// Two layers that differ, so that no chain of equal layers is found.
fn uneven(ranks: usize) -> Program {
    let mut g = Graph::new();
    let x = g.input("x", [4, WIDTH], DType::F32);
    let mut y = x;
    for (name, products) in [("a", 2), ("b", 3)] {
        y = g.block(name, |g| {
            (0..products).fold(y, |y, at| {
                let w = g.param(&format!("w{at}"), [WIDTH, WIDTH], Init::Normal(0.1));
                let h = g.linear(y, w, None);
                g.silu(h)
            })
        });
    }
    let loss = g.sum(y, &[0, 1]);
    g.output("loss", loss);
    support::program(divide(support::trained(&g.finish().unwrap()), ranks).unwrap(), 0)
}

#[test]
fn a_graph_that_is_no_chain_keeps_no_gathered_weight_either() {
    let program = uneven(2);
    let graph = &program.train.graph;
    let most = planned(&program).arena_bytes.0;
    let mut found = 0;
    for bytes in (most * 3 / 4..=most).step_by(1024) {
        let strategy = Some(Strategy::Auto);
        let request = Request {
            global_batch: 4,
            micro_batch: Some(4),
            strategy,
            budget: ArenaBytes(bytes),
            slack: 0.0,
        };
        let Ok(choice) = search(request, |_: usize| Ok(program.clone())) else { continue };
        found += 1;
        let again = counts(graph, first(&choice.plan)).values().filter(|&&count| count >= 2).count();
        assert!(again >= 4, "all weights but the lowest are gathered again, in {bytes} bytes");
        assert!(most_gathered(first(&choice.plan)) <= 3 * WEIGHT, "{bytes} bytes");
    }
    assert!(found > 1);
}
