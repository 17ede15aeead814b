//! State that lives on another tier, in schedules written by hand that the judge must pass or refuse.
//!
//! ```text
//! m ← m + x      y = silu(m)
//! ```
//!
//! `m` has no bytes of its own in the arena: it comes in for a stay, is written, and goes home.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{DType, Graph, NodeId, Op, Phase, StateKind, Type};
use plimsoll_plan::{
    Action, Away, Buffer, BufferId, Contents, Copy, Direction, Fault, Judged, Purpose, Role, Schedule, Space,
    Tier, replay, replay_all,
};

const BYTES: u64 = 64;
const ARENA: u64 = 4 * BYTES;
/// Where in the tier `m` lives.
const HOME: u64 = 2 * BYTES;

/// Buffers by position: the state's own, which has no bytes, the input, the result, and two stays.
const OWN: u32 = 0;
const X: u32 = 1;
const Y: u32 = 2;
const STAY: u32 = 3;
const OTHER_STAY: u32 = 4;

/// Copies by position.
const IN: usize = 0;
const OUT: usize = 1;
const IN_AGAIN: usize = 2;
const Y_OUT: usize = 3;

use Step::{Add, Silu, Start, Wait};

/// One action; runs with the buffer they find `m` in.
#[derive(Clone, Copy)]
enum Step {
    Add(u32),
    Silu(u32),
    Start(usize),
    Wait(usize),
}

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [16], DType::F32);
    g.state_range("m", Type::f32([16]), StateKind::Moment);
    let state = g.state_named("m").unwrap();
    let node = g.apply_all(Op::Accumulate { to: DType::F32 }, &[x]);
    let m = g.write_state(node, 0, state);
    let y = g.silu(m);
    g.output("y", y);
    g.finish().unwrap()
}

fn schedule(graph: &Graph, order: &[Step]) -> Schedule {
    let state = graph.state_named("m").unwrap();
    let place = |contents, bytes: u64, place: u64| {
        let (purpose, offset) = (Purpose::Optimizer, place * BYTES);
        Buffer { contents, purpose, bytes, offset, start: 0, end: 1 }
    };
    let run = |node: u32, input: u32, output: u32, accumulate: u32| Action::Run {
        node: NodeId(node),
        inputs: vec![BufferId(input)],
        outputs: vec![BufferId(output)],
        workspace: None,
        accumulate,
    };
    let action = |step: &Step| match *step {
        Add(stay) => run(0, X, stay, 1),
        Silu(stay) => run(1, stay, Y, 0),
        Start(copy) => Action::Start { copy },
        Wait(copy) => Action::Wait { copy },
    };
    let copy = |buffer: u32, direction| Copy::new(BufferId(buffer), Tier::Disk, HOME, direction);
    Schedule {
        name: "by hand".into(),
        actions: order.iter().map(action).collect(),
        buffers: vec![
            place(Contents::State(state), 0, 0),
            place(Contents::Value(graph.inputs()[0]), BYTES, 0),
            place(Contents::Value(graph.nodes()[1].outputs[0]), BYTES, 1),
            place(Contents::State(state), BYTES, 2),
            place(Contents::State(state), BYTES, 3),
        ],
        copies: vec![
            copy(STAY, Direction::In),
            copy(STAY, Direction::Out),
            copy(OTHER_STAY, Direction::In),
            copy(Y, Direction::Out),
        ],
        away: vec![Away { state, tier: Tier::Disk, tier_offset: HOME, bytes: BYTES }],
    }
}

fn judge(schedule: &Schedule) -> Result<(), Fault> {
    replay(&graph(), schedule, &[Phase::Forward], ARENA).map_err(|error| error.fault)
}

fn judge_order(order: &[Step]) -> Result<(), Fault> {
    judge(&schedule(&graph(), order))
}

const RIGHT: [Step; 6] = [Start(IN), Wait(IN), Add(STAY), Start(OUT), Silu(STAY), Wait(OUT)];

#[test]
fn state_may_come_in_be_written_and_go_home() {
    assert_eq!(judge_order(&RIGHT), Ok(()));
    // Between two stays only the tier holds `m`.
    let twice = [&RIGHT[..4], &[Wait(OUT), Start(IN_AGAIN), Wait(IN_AGAIN), Silu(OTHER_STAY)]].concat();
    assert_eq!(judge_order(&twice), Ok(()));
    let space = Space::of(ARENA, [&schedule(&graph(), &RIGHT)]);
    assert_eq!((space.disk, space.host), (HOME + BYTES, 0));
}

#[test]
fn state_is_not_there_before_it_has_come_in() {
    let unwaited = [Start(IN), Add(STAY), Wait(IN), Start(OUT), Silu(STAY), Wait(OUT)];
    assert!(matches!(judge_order(&unwaited), Err(Fault::Copy(_))), "written while it comes in");
    let never = [Add(STAY), Start(OUT), Silu(STAY), Wait(OUT)];
    assert!(matches!(judge_order(&never), Err(Fault::NotIntact(_))));
    let own = [Start(IN), Wait(IN), Add(OWN), Start(OUT), Silu(STAY), Wait(OUT)];
    assert!(matches!(judge_order(&own), Err(Fault::WrongOperand(_))), "its own buffer has no bytes");
}

#[test]
fn what_was_written_must_be_home_in_the_end() {
    let lost = Err(Fault::Copy("in the end the newest bits of `m` are not in its tier".into()));
    assert_eq!(judge_order(&[Start(IN), Wait(IN), Add(STAY), Silu(STAY)]), lost);
    // The copy that went out before the write is not the newest.
    let early = [Start(IN), Wait(IN), Start(OUT), Wait(OUT), Add(STAY), Silu(STAY)];
    assert_eq!(judge_order(&early), lost);
    // A transfer home may stay open only if some schedule may follow while it is open.
    let graph = graph();
    let open = schedule(&graph, &[Start(IN), Wait(IN), Add(STAY), Start(OUT), Silu(STAY)]);
    assert_eq!(judge(&open), Ok(()));
    let evaluation = Judged { role: Role::Evaluate, graph: &graph, schedule: &open };
    let (_, error) = replay_all(&[evaluation], ARENA).unwrap_err();
    assert_eq!(error.to_string(), "it leaves a transfer open, and nothing may follow that waits for it");
    // Another value lies at the place where `m` lives.
    let order = [&RIGHT[..], &[Start(Y_OUT), Wait(Y_OUT)]].concat();
    assert_eq!(judge_order(&order), lost);
    let mut beside = schedule(&graph, &order);
    beside.copies[Y_OUT] = Copy::new(BufferId(Y), Tier::Disk, 0, Direction::Out);
    assert_eq!(judge(&beside), Ok(()));
}

#[test]
fn of_two_stays_the_one_that_was_not_written_is_out_of_date() {
    let stale = |order: &[Step]| match judge_order(order) {
        Err(Fault::WrongVersion(why)) => why,
        other => panic!("expected a fault about versions, got {other:?}"),
    };
    let both = [Start(IN), Start(IN_AGAIN), Wait(IN), Wait(IN_AGAIN), Add(STAY)];
    let read = stale(&[&both[..], &[Start(OUT), Silu(OTHER_STAY), Wait(OUT)]].concat());
    assert_eq!(read, "buffer 4 holds an old version of `m`");
    let mut sent = schedule(&graph(), &[&both[..], &[Start(OUT), Wait(OUT), Silu(STAY)]].concat());
    sent.copies[OUT] = Copy::new(BufferId(OTHER_STAY), Tier::Disk, HOME, Direction::Out);
    assert_eq!(judge(&sent), Err(Fault::WrongVersion("buffer 4 holds an old version of `m`".into())));
    // The old bits on the tier may not be fetched once there are newer ones.
    let order = [Start(IN), Wait(IN), Add(STAY), Start(IN_AGAIN), Wait(IN_AGAIN), Silu(OTHER_STAY)];
    assert_eq!(stale(&order), "copy 2 brings back an old version");
}

#[test]
fn state_is_away_in_one_place_of_its_own() {
    let mut wrong = schedule(&graph(), &RIGHT);
    wrong.away[0].bytes = BYTES - 1;
    assert_eq!(judge(&wrong), Err(Fault::Copy("state 0 is away in no place for it".into())));
    let mut twice = schedule(&graph(), &RIGHT);
    twice.away.push(Away { tier_offset: HOME + 1, ..twice.away[0] });
    assert_eq!(
        judge(&twice),
        Err(Fault::Copy(format!("two states are away at byte {} of a tier", HOME + 1)))
    );
    let mut elsewhere = schedule(&graph(), &RIGHT);
    elsewhere.copies[IN] = Copy::new(BufferId(STAY), Tier::Disk, 0, Direction::In);
    assert_eq!(judge(&elsewhere), Err(Fault::Copy("copy 0 fetches what has not gone out".into())));
}
