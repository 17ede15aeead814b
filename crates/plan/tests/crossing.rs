//! Transfers that begin in one schedule and end in the next, in schedules written by hand that the judge must pass or
//! refuse.
//!
//! ```text
//! first    y = silu(x)                x y · m      y is written over the bytes that m stays in
//! update   m ← m + g                  · g m        m comes in, is written, and is still on its way home in the end
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_graph::{DType, Graph, NodeId, Op, Phase, StateKind, Type};
use plimsoll_plan::{
    Action, Away, Buffer, BufferId, Contents, Copy, Direction, End, Fault, Judged, Lane, Purpose,
    ReplayError, Role, Schedule, Tier, replay_all,
};

const BYTES: u64 = 64;
const ARENA: u64 = 4 * BYTES;
const HOME: u64 = 2 * BYTES;

/// Places in the arena.
const X_AT: u64 = 0;
const G_AT: u64 = 1;
const M_AT: u64 = 2;

/// Buffers by position: of the state, which has no bytes, and behind it those of each schedule.
const X: u32 = 1;
const Y: u32 = 2;
const G: u32 = 1;
const STAY: u32 = 2;

/// Copies of the update.
const IN: usize = 0;
const OUT: usize = 1;

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", [16], DType::F32);
    let gradient = g.input("g", [16], DType::F32);
    g.state_range("m", Type::f32([16]), StateKind::Moment);
    let state = g.state_named("m").unwrap();
    let y = g.silu(x);
    g.output("y", y);
    g.set_phase(Phase::Update);
    let node = g.apply_all(Op::Accumulate { to: DType::F32 }, &[gradient]);
    g.write_state(node, 0, state);
    g.finish().unwrap()
}

fn buffer(contents: Contents, bytes: u64, place: u64) -> Buffer {
    let (purpose, offset) = (Purpose::Optimizer, place * BYTES);
    Buffer { contents, purpose, bytes, offset, start: 0, end: 1 }
}

fn schedule(graph: &Graph, actions: Vec<Action>, buffers: [Buffer; 2], copies: Vec<Copy>) -> Schedule {
    let state = graph.state_named("m").unwrap();
    let [first, second] = buffers;
    Schedule {
        name: "by hand".into(),
        actions,
        buffers: vec![buffer(Contents::State(state), 0, 0), first, second],
        copies,
        away: vec![Away { state, tier: Tier::Disk, tier_offset: HOME, bytes: BYTES }],
    }
}

fn run(node: u32, input: u32, output: u32, accumulate: u32) -> Action {
    let (inputs, outputs) = (vec![BufferId(input)], vec![BufferId(output)]);
    Action::Run { node: NodeId(node), inputs, outputs, workspace: None, accumulate }
}

const SETTLE: Action = Action::Settle { lane: Lane::DiskWrite, left: 0 };

/// The micro-batch, which writes `y` to a place of its own or over the stay.
fn first(graph: &Graph, y_at: u64, actions: Vec<Action>) -> Schedule {
    let x = buffer(Contents::Value(graph.inputs()[0]), BYTES, X_AT);
    let y = buffer(Contents::Value(graph.nodes()[0].outputs[0]), BYTES, y_at);
    schedule(graph, actions, [x, y], Vec::new())
}

/// The update.
fn update(graph: &Graph, actions: Vec<Action>) -> Schedule {
    let state = graph.state_named("m").unwrap();
    let g = buffer(Contents::Value(graph.inputs()[1]), BYTES, G_AT);
    let stay = buffer(Contents::State(state), BYTES, M_AT);
    let copy = |direction| Copy::new(BufferId(STAY), Tier::Disk, HOME, direction);
    schedule(graph, actions, [g, stay], vec![copy(Direction::In), copy(Direction::Out)])
}

fn silu() -> Action {
    run(0, X, Y, 0)
}

/// An update whose transfer home is left open.
fn open_update() -> Vec<Action> {
    vec![
        Action::Start { copy: IN },
        Action::Wait { copy: IN },
        run(1, G, STAY, 1),
        Action::Start { copy: OUT },
    ]
}

/// A micro-batch that ends the transfer before it takes its bytes.
fn settling() -> Vec<Action> {
    vec![SETTLE, silu()]
}

fn judge(graph: &Graph, first: &Schedule, update: &Schedule) -> Result<(), (Role, ReplayError)> {
    let of = |role, schedule| Judged { role, graph, schedule };
    replay_all(&[of(Role::First, first), of(Role::Update, update)], ARENA)
}

/// Judges a micro-batch whose result takes the bytes of the stay, and an update.
fn judge_actions(first_actions: Vec<Action>, update_actions: Vec<Action>) -> Result<(), (Role, ReplayError)> {
    let graph = graph();
    judge(&graph, &first(&graph, M_AT, first_actions), &update(&graph, update_actions))
}

/// The text of a fault, with the schedule that it is in and the one before.
#[track_caller]
fn fault(result: Result<(), (Role, ReplayError)>) -> (Role, Option<Role>, String) {
    let (role, error) = result.unwrap_err();
    match error.fault {
        Fault::Copy(why) | Fault::WrongVersion(why) => (role, error.after, why),
        other => panic!("expected a fault about copies, got {other:?}"),
    }
}

#[test]
fn state_may_go_home_while_the_next_schedule_begins() {
    assert_eq!(judge_actions(settling(), open_update()), Ok(()));
    // A result that lies elsewhere may come before the end of the transfer.
    let graph = graph();
    let elsewhere = first(&graph, 3, vec![silu(), SETTLE]);
    assert_eq!(judge(&graph, &elsewhere, &update(&graph, open_update())), Ok(()));
}

#[test]
fn bytes_of_an_open_transfer_are_not_written_before_it_has_ended() {
    let (role, after, why) = fault(judge_actions(vec![silu(), SETTLE], open_update()));
    assert_eq!((role, after), (Role::First, Some(Role::Update)));
    assert_eq!(
        why,
        "buffer 2 is written while a copy of `m` that the schedule before has left open is under way"
    );
    let one_left = Action::Settle { lane: Lane::DiskWrite, left: 1 };
    let (_, _, late) = fault(judge_actions(vec![one_left, silu(), SETTLE], open_update()));
    assert_eq!(late, why);
}

#[test]
fn every_open_transfer_is_settled_by_the_schedule_that_follows() {
    let graph = graph();
    let elsewhere = first(&graph, 3, vec![silu()]);
    let (role, after, why) = fault(judge(&graph, &elsewhere, &update(&graph, open_update())));
    assert_eq!((role, after), (Role::First, Some(Role::Update)));
    assert_eq!(why, "nobody settles the copy of `m` that was left open");
}

#[test]
fn the_caller_writes_no_input_over_an_open_transfer() {
    let graph = graph();
    let mut over = first(&graph, 3, settling());
    over.buffers[X as usize].offset = M_AT * BYTES;
    let (_, after, why) = fault(judge(&graph, &over, &update(&graph, open_update())));
    assert_eq!(after, Some(Role::Update));
    assert!(why.starts_with("buffer 1 is written while a copy of `m`"), "{why}");
}

#[test]
fn nobody_settles_what_no_schedule_leaves_open() {
    let idle = "it settles transfers that no schedule leaves open";
    let closed = [open_update(), vec![Action::Wait { copy: OUT }]].concat();
    assert_eq!(fault(judge_actions(settling(), closed.clone())), (Role::First, None, idle.into()));
    assert_eq!(judge_actions(vec![silu()], closed), Ok(()));
    let wrong_lane = vec![Action::Settle { lane: Lane::DiskRead, left: 0 }, SETTLE, silu()];
    assert_eq!(fault(judge_actions(wrong_lane, open_update())), (Role::First, None, idle.into()));
    let twice = vec![SETTLE, SETTLE, silu()];
    assert_eq!(fault(judge_actions(twice, open_update())), (Role::First, None, idle.into()));
}

#[test]
fn only_state_on_its_way_home_may_be_left_open() {
    let graph = graph();
    let fetched = [Action::Start { copy: IN }, Action::Wait { copy: IN }, run(1, G, STAY, 1)];
    let judged = |copy: Copy, actions: Vec<Action>| {
        let mut update = update(&graph, actions);
        update.copies.push(copy);
        fault(judge(&graph, &first(&graph, 3, vec![silu(), SETTLE]), &update)).2
    };
    let home = [Action::Start { copy: OUT }, Action::Wait { copy: OUT }];
    let again = [&fetched[..], &home, &[Action::Start { copy: 2 }]].concat();
    let inward = Copy::new(BufferId(STAY), Tier::Disk, HOME, Direction::In);
    assert_eq!(judged(inward, again.clone()), "nobody waits for copy 2");
    // The copy goes to another place, or moves a value instead of state.
    let elsewhere = Copy::new(BufferId(STAY), Tier::Disk, 0, Direction::Out);
    assert_eq!(judged(elsewhere, again.clone()), "nobody waits for copy 2");
    let value = Copy::new(BufferId(G), Tier::Disk, 0, Direction::Out);
    assert_eq!(judged(value, again), "nobody waits for copy 2");
    // The newest bits must be among those on their way.
    let early = [&fetched[..2], &[Action::Start { copy: OUT }, run(1, G, STAY, 1)]].concat();
    assert!(fault(judge_actions(settling(), early)).2.contains("written while copy 1 is under way"));
}

#[test]
fn a_tier_is_read_only_after_open_transfers_have_reached_it() {
    // A micro-batch that fetches the moment, which only this test needs.
    let graph = graph();
    let fetching = |actions: Vec<Action>| {
        let mut first = first(&graph, 3, actions);
        first.buffers.push(buffer(Contents::State(graph.state_named("m").unwrap()), BYTES, 1));
        first.copies.push(Copy::new(BufferId(3), Tier::Disk, HOME, Direction::In));
        judge(&graph, &first, &update(&graph, open_update()))
    };
    let [start, wait] = [Action::Start { copy: 0 }, Action::Wait { copy: 0 }];
    assert_eq!(fetching(vec![silu(), SETTLE, start.clone(), wait.clone()]), Ok(()));
    let (_, after, why) = fault(fetching(vec![silu(), start, SETTLE, wait]));
    assert_eq!((after, why.as_str()), (Some(Role::Update), "copy 0 fetches what has not gone out"));
}

#[test]
fn a_transfer_that_is_left_open_has_the_right_ends_and_lane() {
    let graph = graph();
    let judged = |change: fn(&mut Copy)| {
        let mut update = update(&graph, open_update());
        change(&mut update.copies[OUT]);
        fault(judge(&graph, &first(&graph, M_AT, settling()), &update))
    };
    for change in [
        (|copy| copy.lane = Lane::DiskRead) as fn(&mut Copy),
        |copy| copy.lane = Lane::ToHost,
        |copy| copy.destination = End::Tier { tier: Tier::Disk, offset: HOME + BYTES },
        |copy| copy.destination = End::Tier { tier: Tier::Host, offset: HOME },
        |copy| copy.source = End::Buffer(BufferId(G)),
        |copy| copy.source = copy.destination,
    ] {
        assert_eq!(judged(change).0, Role::Update);
    }
}

/// A micro-batch that starts the update's first transfer, at its end.
fn fetching() -> Vec<Action> {
    vec![SETTLE, silu(), Action::StartNext { role: Role::Update, copy: IN }]
}

#[test]
fn a_schedule_may_start_the_first_transfers_of_the_next() {
    // The result lies beside the stay, which is free as soon as the state is home.
    let graph = graph();
    let early = |actions: Vec<Action>, y_at: u64| {
        judge(&graph, &first(&graph, y_at, actions), &update(&graph, open_update()))
    };
    assert_eq!(early(fetching(), 3), Ok(()));
    // An output is read after the schedule, so nothing comes in over it.
    assert_eq!(early(fetching(), M_AT).unwrap_err().0, Role::First);
    let start = Action::StartNext { role: Role::Update, copy: IN };
    let (_, _, why) =
        fault(early(vec![SETTLE, silu(), Action::StartNext { role: Role::Update, copy: OUT }], 3));
    assert_eq!(why, "copy 1 of `update` brings in no state of this graph");
    let (_, _, why) = fault(early(vec![SETTLE, silu(), start.clone(), start], 3));
    assert_eq!(why, "copy 0 of `update` comes in where another copy is under way");
}

#[test]
fn a_schedule_starts_what_was_started_ahead_and_waits_for_it() {
    let graph = graph();
    let judged = |actions: Vec<Action>, g_at: u64| {
        let mut update = update(&graph, actions);
        update.buffers[G as usize].offset = g_at * BYTES;
        judge(&graph, &first(&graph, 3, fetching()), &update)
    };
    assert_eq!(judged(open_update(), G_AT), Ok(()));
    // The caller's gradient lies where the moment is coming in.
    assert_eq!(fault(judged(open_update(), M_AT)).1, Some(Role::First));
    // The wait is missing: the moment is written while it comes in.
    let unwaited = [&open_update()[..1], &open_update()[2..], &[Action::Wait { copy: IN }]].concat();
    assert_eq!(fault(judged(unwaited, G_AT)).0, Role::Update);
}
