//! Exchanges whose operands wait on a tier, in schedules written by hand that the judge must pass or refuse.
//!
//! ```text
//! first    s = Σ x                                   x s · · ·      s may take the bytes that m has left
//! update   m ← m + g · m ← Σ m · v ← Σ v             g · m v        both come in, are exchanged, and go home
//! ```

use plimsoll_graph::op::Collective;
use plimsoll_graph::{DType, Graph, NodeId, Op, Phase, StateId, StateKind, Type};
use plimsoll_plan::{
    Action, Away, Buffer, BufferId, Contents, Copy, Direction, Fault, Judged, Lane, Purpose, ReplayError,
    Role, Schedule, Tier, replay_all, replay_ranks,
};

const BYTES: u64 = 64;
const ARENA: u64 = 5 * BYTES;
const TIER: Tier = Tier::Disk;

/// Places in the arena: of the input of either schedule, of the sum, and of the two stays.
const INPUT_AT: u64 = 0;
const SUM_AT: u64 = 1;
const M_AT: u64 = 2;
const V_AT: u64 = 3;

/// Buffers by position: both states have one without bytes, then come those of either schedule.
const INPUT: u32 = 2;
const SUM: u32 = 3;
const M: u32 = 3;
const V: u32 = 4;

/// Nodes by position.
const SUM_X: u32 = 0;
const ADD: u32 = 1;
const SUM_M: u32 = 2;
const SUM_V: u32 = 3;

/// Copies of the update.
const M_IN: usize = 0;
const M_OUT: usize = 1;
const V_IN: usize = 2;
const V_OUT: usize = 3;

use Step::{Await, Next, Run, Settle, Start, Wait};

/// One action.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Run(u32),
    Await(u32),
    Start(usize),
    Wait(usize),
    Settle,
    Next(usize),
}

/// An update whose transfers home are left open. The fetch of `v` and the way home of `m` go on beside exchanges.
const UPDATE: [Step; 11] = [
    Start(M_IN),
    Wait(M_IN),
    Run(ADD),
    Run(SUM_M),
    Start(V_IN),
    Wait(V_IN),
    Run(SUM_V),
    Await(SUM_M),
    Start(M_OUT),
    Await(SUM_V),
    Start(V_OUT),
];
const FIRST: [Step; 3] = [Settle, Run(SUM_X), Await(SUM_X)];

fn graph() -> Graph {
    let mut g = Graph::new();
    let [x, gradient] = ["x", "g"].map(|name| g.input(name, [16], DType::F32));
    let sum = |g: &mut Graph, of| g.apply_all(Op::Collective(Collective::AllReduce { ranks: 2 }), &[of]);
    let node = sum(&mut g, x);
    let s = g.node(node).outputs[0];
    g.output("s", s);
    g.set_phase(Phase::Update);
    for name in ["m", "v"] {
        g.state_range(name, Type::f32([16]), StateKind::Moment);
    }
    let [m, v] = ["m", "v"].map(|name| g.state_named(name).unwrap());
    let node = g.apply_all(Op::Accumulate { to: DType::F32 }, &[gradient]);
    g.write_state(node, 0, m);
    for state in [m, v] {
        let own = g.newest(state);
        let node = sum(&mut g, own);
        g.write_state(node, 0, state);
    }
    g.finish().unwrap()
}

fn actions(steps: &[Step]) -> Vec<Action> {
    let run = |node: u32| {
        let (input, output) = match node {
            SUM_X => (INPUT, SUM),
            ADD => (INPUT, M),
            SUM_M => (M, M),
            _ => (V, V),
        };
        Action::Run {
            node: NodeId(node),
            inputs: vec![BufferId(input)],
            outputs: vec![BufferId(output)],
            workspace: None,
            accumulate: u32::from(node == ADD),
        }
    };
    let action = |step: &Step| match *step {
        Run(node) => run(node),
        Await(node) => Action::Await { node: NodeId(node) },
        Start(copy) => Action::Start { copy },
        Wait(copy) => Action::Wait { copy },
        Settle => Action::Settle { lane: Lane::DiskWrite, left: 0 },
        Next(copy) => Action::StartNext { role: Role::Update, copy },
    };
    steps.iter().map(action).collect()
}

fn schedule(steps: &[Step], buffers: &[(Contents, u64)], copies: Vec<Copy>) -> Schedule {
    let away = |state: u32| Away {
        state: StateId(state),
        tier: TIER,
        tier_offset: u64::from(state) * BYTES,
        bytes: BYTES,
    };
    let buffer = |contents, bytes, place: u64| {
        let (purpose, offset) = (Purpose::Optimizer, place * BYTES);
        Buffer { contents, purpose, bytes, offset, start: 0, end: 1 }
    };
    let own = [0, 1].map(|state| buffer(Contents::State(StateId(state)), 0, 0));
    let others = buffers.iter().map(|&(contents, place)| buffer(contents, BYTES, place));
    Schedule {
        name: "by hand".into(),
        actions: actions(steps),
        buffers: own.into_iter().chain(others).collect(),
        copies,
        away: vec![away(0), away(1)],
    }
}

fn update(graph: &Graph, steps: &[Step], [m_at, v_at]: [u64; 2]) -> Schedule {
    let states = [0, 1].map(|state| Contents::State(StateId(state)));
    let buffers = [(Contents::Value(graph.inputs()[1]), INPUT_AT), (states[0], m_at), (states[1], v_at)];
    let copy = |stay: u32, direction| Copy::new(BufferId(stay), TIER, u64::from(stay - M) * BYTES, direction);
    let copies = [(M, Direction::In), (M, Direction::Out), (V, Direction::In), (V, Direction::Out)];
    schedule(steps, &buffers, copies.map(|(stay, direction)| copy(stay, direction)).to_vec())
}

fn first(graph: &Graph, steps: &[Step], sum_at: u64) -> Schedule {
    let sum = graph.nodes()[SUM_X as usize].outputs[0];
    let buffers = [(Contents::Value(graph.inputs()[0]), INPUT_AT), (Contents::Value(sum), sum_at)];
    schedule(steps, &buffers, Vec::new())
}

fn judge(first: &Schedule, update: &Schedule) -> Result<(), (Role, ReplayError)> {
    let graph = graph();
    let of = |role, schedule| Judged { role, graph: &graph, schedule };
    replay_all(&[of(Role::First, first), of(Role::Update, update)], ARENA)
}

/// The fault of an update with these actions and places, whose follower settles what is open.
#[track_caller]
fn fault_of(steps: &[Step], places: [u64; 2]) -> String {
    let graph = graph();
    text(judge(&first(&graph, &FIRST, SUM_AT), &update(&graph, steps, places)))
}

#[track_caller]
fn text(judged: Result<(), (Role, ReplayError)>) -> String {
    match judged.unwrap_err().1.fault {
        Fault::Copy(why) | Fault::WrongVersion(why) | Fault::NotIntact(why) => why,
        other => panic!("expected a fault about bytes, got {other:?}"),
    }
}

/// The right update without the steps `without`, and with `put` before the step `before`.
fn altered(without: &[Step], put: &[Step], before: Step) -> Vec<Step> {
    let mut steps: Vec<Step> = UPDATE.into_iter().filter(|step| !without.contains(step)).collect();
    let at = steps.iter().position(|step| *step == before).unwrap();
    steps.splice(at..at, put.iter().copied());
    steps
}

#[test]
fn exchanges_of_state_that_came_in_go_on_beside_transfers_of_other_state() {
    let graph = graph();
    let right = update(&graph, &UPDATE, [M_AT, V_AT]);
    // The sum of the next schedule may take the bytes that `m` leaves, once they are settled.
    for sum_at in [SUM_AT, M_AT] {
        assert_eq!(judge(&first(&graph, &FIRST, sum_at), &right), Ok(()));
    }
}

#[test]
fn nothing_is_sent_home_while_an_exchange_has_it_under_way() {
    let early = altered(&[Start(M_OUT)], &[Start(M_OUT)], Await(SUM_M));
    assert_eq!(
        fault_of(&early, [M_AT, V_AT]),
        "copy 1 sends what an exchange between ranks has not brought yet"
    );
}

#[test]
fn nothing_is_fetched_over_bytes_that_an_exchange_has_under_way() {
    let why = fault_of(&UPDATE, [M_AT, M_AT]);
    assert_eq!(why, "buffer 4 is written while an exchange between ranks is under way");
}

#[test]
fn nothing_is_exchanged_before_it_has_come_in_or_while_it_is_on_its_way_home() {
    let late = altered(&[Wait(V_IN)], &[Wait(V_IN)], Await(SUM_M));
    assert!(fault_of(&late, [M_AT, V_AT]).ends_with("is read before copy 2 has brought it"));
    // The sum is written over its own addend, which is being sent.
    let sent = altered(&[Start(M_OUT)], &[Start(M_OUT)], Run(SUM_M));
    assert_eq!(fault_of(&sent, [M_AT, V_AT]), "buffer 3 is written while copy 1 is under way");
}

#[test]
fn a_tier_holds_the_sum_in_the_end_and_not_what_was_there_before_the_exchange() {
    let forgotten = altered(&[Start(M_OUT)], &[], Await(SUM_V));
    assert!(fault_of(&forgotten, [M_AT, V_AT]).contains("newest bits of `m` are not in its tier"));
    let before = altered(&[Start(M_OUT)], &[Start(M_OUT), Wait(M_OUT)], Run(SUM_M));
    assert!(fault_of(&before, [M_AT, V_AT]).contains("newest bits of `m` are not in its tier"));
}

#[test]
fn an_exchange_takes_no_bytes_of_a_transfer_that_the_schedule_before_has_left_open() {
    let graph = graph();
    let update = update(&graph, &UPDATE, [M_AT, V_AT]);
    let late = [Run(SUM_X), Await(SUM_X), Settle];
    let why = text(judge(&first(&graph, &late, M_AT), &update));
    assert_eq!(
        why,
        "buffer 3 is written while a copy of `m` that the schedule before has left open is under way"
    );
    assert_eq!(judge(&first(&graph, &late, SUM_AT), &update), Ok(()));
}

#[test]
fn nothing_of_the_next_schedule_comes_in_over_an_exchange() {
    let graph = graph();
    // The update fetches to where the micro-batch has its input, whose sum is elsewhere.
    let update = update(&graph, &UPDATE, [4, V_AT]);
    let ahead = |steps: &[Step], sum_at: u64| judge(&first(&graph, steps, sum_at), &update);
    assert_eq!(ahead(&[Settle, Run(SUM_X), Next(M_IN), Await(SUM_X)], SUM_AT), Ok(()));
    let why = text(ahead(&[Settle, Run(SUM_X), Next(M_IN), Await(SUM_X)], 4));
    assert_eq!(why, "copy 0 of `update` comes in where another copy is under way");
}

#[test]
fn ranks_may_move_different_bytes_but_exchange_alike() {
    let graph = graph();
    let of = |schedule| [Judged { role: Role::Update, graph: &graph, schedule }];
    let [one, other] = [[M_AT, V_AT], [V_AT, M_AT]].map(|places| update(&graph, &UPDATE, places));
    assert_eq!(replay_ranks(&[&of(&one), &of(&other)]), Ok(()));
    let swapped = altered(&[Run(SUM_V)], &[Run(SUM_V)], Run(SUM_M));
    let swapped = update(&graph, &swapped, [M_AT, V_AT]);
    assert!(replay_ranks(&[&of(&one), &of(&swapped)]).is_err());
}
