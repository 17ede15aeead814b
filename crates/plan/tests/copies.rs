//! Schedules with copies, written by hand, that the judge must pass or refuse.
//!
//! ```text
//! a = silu(x)    b = silu(a)    c = silu(b)    y = c + a
//! ```
//!
//! `a` leaves the device after `b` has read it, `c` takes its bytes, and `a` comes back for `y`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{DType, Graph, NodeId, Phase, StateKind, Type, Value};
use plimsoll_plan::{
    Action, Buffer, BufferId, Contents, Copy, Direction, End, Fault, Lane, Purpose, Schedule, Tier, replay,
};

const BYTES: u64 = 64;
const ARENA: u64 = 4 * BYTES;

/// Buffers by position.
const X: u32 = 0;
const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;
const A_AGAIN: u32 = 4;
const Y: u32 = 5;

/// Copies by position.
const A_OUT: usize = 0;
const A_IN: usize = 1;
const B_OUT: usize = 2;

use Step::{Run, Start, Wait};

/// One action: the node's position, or the copy's.
#[derive(Clone, Copy)]
enum Step {
    Run(usize),
    Start(usize),
    Wait(usize),
}

/// The correct order; tests begin with it and break it.
const RIGHT: [Step; 8] = [Run(0), Start(A_OUT), Run(1), Wait(A_OUT), Run(2), Start(A_IN), Wait(A_IN), Run(3)];

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [16], DType::F32);
    let a = g.silu(x);
    let b = g.silu(a);
    let c = g.silu(b);
    let y = g.add(c, a);
    g.output("y", y);
    g.finish().unwrap()
}

fn schedule(graph: &Graph, order: &[Step]) -> Schedule {
    let value = |node: usize| graph.nodes()[node].outputs[0];
    let buffer = |value: Value, place: u64| Buffer {
        contents: Contents::Value(value),
        purpose: Purpose::Activations,
        bytes: BYTES,
        offset: place * BYTES,
        start: 0,
        end: 0,
    };
    let copy = |buffer: u32, direction: Direction, place: u64| {
        Copy::new(BufferId(buffer), Tier::Host, place * BYTES, direction)
    };
    let operands = [(vec![X], A), (vec![A], B), (vec![B], C), (vec![C, A_AGAIN], Y)];
    let action = |step: &Step| match *step {
        Run(node) => Action::Run {
            node: NodeId(node as u32),
            inputs: operands[node].0.iter().map(|&id| BufferId(id)).collect(),
            outputs: vec![BufferId(operands[node].1)],
            workspace: None,
            accumulate: 0,
        },
        Start(copy) => Action::Start { copy },
        Wait(copy) => Action::Wait { copy },
    };
    Schedule {
        name: "by hand".into(),
        actions: order.iter().map(action).collect(),
        // `c` takes the bytes of `a`, and `y` those of `x`.
        buffers: vec![
            buffer(graph.inputs()[0], 0),
            buffer(value(0), 1),
            buffer(value(1), 2),
            buffer(value(2), 1),
            buffer(value(0), 3),
            buffer(value(3), 0),
        ],
        copies: vec![copy(A, Direction::Out, 0), copy(A_AGAIN, Direction::In, 0), copy(B, Direction::Out, 1)],
        away: Vec::new(),
    }
}

fn judge(schedule: &Schedule) -> Result<(), Fault> {
    replay(&graph(), schedule, &[Phase::Forward], ARENA).map_err(|error| error.fault)
}

fn judge_order(order: &[Step]) -> Result<(), Fault> {
    judge(&schedule(&graph(), order))
}

/// The text of a fault that is about copies.
#[track_caller]
fn copy_fault(order: &[Step]) -> String {
    match judge_order(order) {
        Err(Fault::Copy(why)) => why,
        other => panic!("expected a fault about copies, got {other:?}"),
    }
}

#[test]
fn a_value_may_go_out_and_come_back() {
    assert_eq!(judge_order(&RIGHT), Ok(()));
}

#[test]
fn copies_of_different_directions_need_not_wait_for_each_other() {
    let order = [
        Run(0),
        Start(A_OUT),
        Run(1),
        Wait(A_OUT),
        Start(B_OUT),
        Start(A_IN),
        Run(2),
        Wait(A_IN),
        Run(3),
        Wait(B_OUT),
    ];
    // `c` takes the bytes of `a`, which is allowed once `a` has been copied out. `b` is read while it is being copied out.
    assert_eq!(judge_order(&order), Ok(()));
}

#[test]
fn what_is_coming_in_cannot_be_read_before_the_wait() {
    let order = [Run(0), Start(A_OUT), Run(1), Wait(A_OUT), Run(2), Start(A_IN), Run(3), Wait(A_IN)];
    assert!(copy_fault(&order).contains("before copy 1 has brought it"));
}

#[test]
fn what_is_going_out_cannot_be_written_over() {
    let order = [Run(0), Start(A_OUT), Run(1), Run(2), Wait(A_OUT), Start(A_IN), Wait(A_IN), Run(3)];
    assert!(copy_fault(&order).contains("written while copy 0 is under way"));
}

#[test]
fn nobody_may_write_where_a_copy_is_coming_in() {
    let graph = graph();
    let order = [Run(0), Start(A_OUT), Run(1), Wait(A_OUT), Start(A_IN), Run(2), Wait(A_IN), Run(3)];
    let mut wrong = schedule(&graph, &order);
    assert_eq!(judge(&wrong), Ok(()));
    wrong.buffers[C as usize].offset = wrong.buffers[A_AGAIN as usize].offset;
    assert_eq!(judge(&wrong), Err(Fault::Copy("buffer 3 is written while copy 1 is under way".into())));
}

#[test]
fn a_copy_cannot_come_in_over_what_is_still_needed() {
    let graph = graph();
    let mut wrong = schedule(&graph, &RIGHT);
    wrong.buffers[A_AGAIN as usize].offset = wrong.buffers[C as usize].offset;
    assert!(matches!(judge(&wrong), Err(Fault::NotIntact(_))));
}

#[test]
fn nothing_can_be_fetched_before_it_has_arrived() {
    let order = [Run(0), Start(A_OUT), Run(1), Start(A_IN), Wait(A_OUT), Run(2), Wait(A_IN), Run(3)];
    assert!(copy_fault(&order).contains("fetches what has not gone out"));
    let order = [Run(0), Run(1), Run(2), Start(A_IN), Wait(A_IN), Run(3)];
    assert!(copy_fault(&order).contains("fetches what has not gone out"));
}

#[test]
fn nothing_can_be_fetched_from_where_it_did_not_go() {
    for (tier, offset) in [(Tier::Disk, 0), (Tier::Host, BYTES), (Tier::Host, 1)] {
        let mut wrong = schedule(&graph(), &RIGHT);
        wrong.copies[A_IN] = Copy::new(BufferId(A_AGAIN), tier, offset, Direction::In);
        assert_eq!(judge(&wrong), Err(Fault::Copy("copy 1 fetches what has not gone out".into())));
    }
}

#[test]
fn what_was_written_over_in_the_tier_cannot_be_fetched() {
    let sent_twice = [
        Run(0),
        Start(A_OUT),
        Run(1),
        Wait(A_OUT),
        Start(B_OUT),
        Wait(B_OUT),
        Run(2),
        Start(A_IN),
        Wait(A_IN),
        Run(3),
    ];
    assert_eq!(judge_order(&sent_twice), Ok(()));
    for (what, place) in [("all", 0), ("one byte", BYTES - 1)] {
        let mut wrong = schedule(&graph(), &sent_twice);
        wrong.copies[B_OUT] = Copy::new(BufferId(B), Tier::Host, place, Direction::Out);
        let refused = Err(Fault::Copy("copy 1 fetches what has not gone out".into()));
        assert_eq!(judge(&wrong), refused, "{what} of it written over");
    }
}

#[test]
fn two_copies_may_not_work_on_the_same_bytes_of_a_tier() {
    // `b` is copied out to the place that `a` is being fetched from.
    let order = [
        Run(0),
        Start(A_OUT),
        Run(1),
        Wait(A_OUT),
        Start(A_IN),
        Start(B_OUT),
        Run(2),
        Wait(A_IN),
        Wait(B_OUT),
        Run(3),
    ];
    let mut wrong = schedule(&graph(), &order);
    assert_eq!(judge(&wrong), Ok(()));
    wrong.copies[B_OUT] = Copy::new(BufferId(B), Tier::Host, 0, Direction::Out);
    assert_eq!(judge(&wrong), Err(Fault::Copy("copy 2 writes where copy 1 is under way".into())));
}

#[test]
fn copies_of_one_direction_are_waited_for_in_their_order() {
    let order = [
        Run(0),
        Start(A_OUT),
        Run(1),
        Start(B_OUT),
        Wait(B_OUT),
        Wait(A_OUT),
        Run(2),
        Start(A_IN),
        Wait(A_IN),
        Run(3),
    ];
    assert!(copy_fault(&order).contains("copy 2 is waited for out of turn"));
}

#[test]
fn every_copy_is_waited_for_once() {
    let nobody = [Run(0), Start(B_OUT)];
    assert!(matches!(judge_order(&nobody), Err(Fault::NotIntact(_))), "b is not there yet");
    let mut order = RIGHT.to_vec();
    order.push(Start(B_OUT));
    assert!(copy_fault(&order).contains("nobody waits for copy 2"));
    order.extend([Wait(B_OUT), Wait(B_OUT)]);
    assert!(copy_fault(&order).contains("out of turn"));
    let never_started = [Run(0), Wait(A_OUT)];
    assert!(copy_fault(&never_started).contains("out of turn"));
}

#[test]
fn what_is_not_there_cannot_be_sent() {
    let order = [Start(A_OUT), Run(0)];
    assert!(matches!(judge_order(&order), Err(Fault::NotIntact(_))));
    // After `c` has taken its bytes, `a` is gone.
    let order = [Run(0), Run(1), Run(2), Start(A_OUT)];
    assert!(matches!(judge_order(&order), Err(Fault::NotIntact(_))));
}

#[test]
fn a_copy_or_a_buffer_that_does_not_exist_is_refused() {
    assert!(copy_fault(&[Run(0), Start(7)]).contains("there is no copy 7"));
    let mut wrong = schedule(&graph(), &RIGHT);
    wrong.copies[A_OUT].source = End::Buffer(BufferId(99));
    assert!(matches!(judge(&wrong), Err(Fault::Copy(_))));
}

#[test]
fn a_copy_has_one_end_in_the_arena_and_one_in_a_tier_and_the_lane_between_them() {
    let faulty = |change: fn(&mut Copy)| {
        let mut wrong = schedule(&graph(), &RIGHT);
        change(&mut wrong.copies[A_OUT]);
        match judge(&wrong) {
            Err(Fault::Copy(why)) => why,
            other => panic!("expected a fault about copies, got {other:?}"),
        }
    };
    let ends = "there is no copy 0 between a buffer of the arena and a tier";
    assert_eq!(faulty(|copy| copy.destination = copy.source), ends);
    assert_eq!(faulty(|copy| copy.source = copy.destination), ends);
    let lane = |name: &str| format!("copy 0 does not go the way of its lane, `{name}`");
    assert_eq!(faulty(|copy| copy.lane = Lane::FromHost), lane("from host"));
    assert_eq!(faulty(|copy| copy.lane = Lane::DiskWrite), lane("disk write"));
    // In the other direction, the copy fetches data that was never sent.
    let turned = faulty(|copy| {
        (copy.source, copy.destination, copy.lane) = (copy.destination, copy.source, Lane::FromHost);
    });
    assert_eq!(turned, "copy 0 fetches what has not gone out");
}

#[test]
fn state_that_changed_since_it_went_out_is_not_brought_back() {
    let mut g = Graph::new();
    let x = g.input("x", [16], DType::F32);
    g.state_range("sum", Type::f32([16]), StateKind::Gradient);
    let state = g.state_named("sum").unwrap();
    let node = g.apply_all(plimsoll_graph::Op::Accumulate { to: DType::F32 }, &[x]);
    g.write_state(node, 0, state);
    let graph = g.finish().unwrap();
    let buffer = |contents, place: u64| Buffer {
        contents,
        purpose: Purpose::Gradients,
        bytes: BYTES,
        offset: place * BYTES,
        start: 0,
        end: 0,
    };
    let copy = |direction| Copy::new(BufferId(0), Tier::Disk, 0, direction);
    let add = Action::Run {
        node,
        inputs: vec![BufferId(1)],
        outputs: vec![BufferId(0)],
        workspace: None,
        accumulate: 1,
    };
    let [out, back] = [0, 1].map(|copy| [Action::Start { copy }, Action::Wait { copy }]);
    let judge = |actions: Vec<Action>| {
        let schedule = Schedule {
            name: "by hand".into(),
            actions,
            buffers: vec![buffer(Contents::State(state), 0), buffer(Contents::Value(x), 1)],
            copies: vec![copy(Direction::Out), copy(Direction::In)],
            away: Vec::new(),
        };
        replay(&graph, &schedule, &[Phase::Forward], ARENA).map_err(|error| error.fault)
    };
    let unchanged = [&out[..], &back[..], std::slice::from_ref(&add)].concat();
    assert_eq!(judge(unchanged), Ok(()));
    let changed = [&out[..], &[add], &back[..]].concat();
    assert_eq!(judge(changed), Err(Fault::WrongVersion("copy 1 brings back an old version".into())));
}

/// Whether an order of the eight actions respects all dependencies, by definition and without simulation.
fn legal(order: &[usize; 8]) -> bool {
    // Positions in RIGHT: run a, start out, run b, wait out, run c, start in, wait in, run y.
    let at = |action: usize| order.iter().position(|&a| a == action).unwrap();
    let before = |a: usize, b: usize| at(a) < at(b);
    let computed = before(0, 2) && before(2, 4) && before(4, 7);
    // c takes a's bytes, so a must be out by then.
    let sent = before(0, 1) && before(1, 3) && before(3, 4);
    let fetched = before(3, 5) && before(5, 6) && before(6, 7);
    computed && sent && fetched
}

#[test]
fn of_all_orders_of_these_actions_exactly_the_legal_ones_pass() {
    let mut order = [0, 1, 2, 3, 4, 5, 6, 7];
    let (mut passed, mut refused) = (0, 0);
    // Heap's method, without recursion: every order once.
    let mut counts = [0; 8];
    let mut check = |order: &[usize; 8]| {
        let steps: Vec<Step> = order.iter().map(|&action| RIGHT[action]).collect();
        assert_eq!(judge_order(&steps).is_ok(), legal(order), "{order:?}");
        if legal(order) { passed += 1 } else { refused += 1 }
    };
    check(&order);
    let mut at = 1;
    while at < 8 {
        if counts[at] < at {
            order.swap(if at % 2 == 0 { 0 } else { counts[at] }, at);
            check(&order);
            counts[at] += 1;
            at = 1;
        } else {
            counts[at] = 0;
            at += 1;
        }
    }
    assert_eq!(passed + refused, 40_320);
    assert!(passed > 1, "there is more than one right order");
}
