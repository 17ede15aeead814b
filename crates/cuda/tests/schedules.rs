//! Lowered schedules have no race: every byte that a step reads was written last by the action that should have written it, and
//! schedules or steps that were tampered with do not pass. Kernels use each pointer as they declare it, which the preprocessor
//! of a C++ compiler tells.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetched;
#[path = "../../model/tests/support/families.rs"]
mod models;
mod prototypes;
mod shadow;

use std::sync::OnceLock;

use fetched::not_run;
use models::Size;
use plimsoll_cuda::lower::{
    Access, Arg, Library, Limits, LoweredSchedule, NoLibrary, Place, Signature, StreamStep,
};
use plimsoll_cuda::{Rates, facts, half_cases};
use plimsoll_exec::cases;
use plimsoll_exec::conformance::DrawnCase;
use plimsoll_exec::{Device, ExecError, ScheduleId};
use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, Op, Phase, StateId, differentiate, divide};
use plimsoll_plan::{
    Action, BufferId, Contents, Costed, Facts, Program, Runnable, Schedule, Scratch, Space, Strategy, plan,
};
use prototypes::declared;
use shadow::{Declared, Steps, Walk, by_action};

/// A library that takes every product, with scratch for some.
#[derive(Debug)]
struct Products;

impl Library for Products {
    fn workspace(&self, signature: &Signature) -> Option<u64> {
        Some(64 * (signature.m as u64 % 5))
    }
}

/// Of no device; they decide no step.
const RATES: Rates = Rates { flops: 1e12, half_flops: 1e13, bytes: 1e12, launch: 1e-6 };

const LIBRARIES: [&(dyn Library + Sync); 2] = [&NoLibrary, &Products];

fn kernels() -> Option<&'static Declared> {
    static KERNELS: OnceLock<Option<Declared>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(declared).as_ref();
    if kernels.is_none() {
        not_run("declarations of kernels", "there is no g++ here");
    }
    kernels
}

/// A graph with one of its schedules.
struct Planned {
    name: String,
    graph: Graph,
    schedule: Schedule,
    library: &'static (dyn Library + Sync),
    limits: Limits,
}

impl Planned {
    fn lowered(&self, schedule: &Schedule) -> Result<Steps, ExecError> {
        LoweredSchedule::of(&self.graph, schedule, self.library, self.limits)
            .map(|program| by_action(&program))
    }

    /// Whether the schedule, lowered, passes.
    fn check(&self, schedule: &Schedule) -> Result<(), String> {
        let steps = self.lowered(schedule).map_err(|error| error.to_string())?;
        self.check_steps(schedule, &steps)
    }

    fn check_steps(&self, schedule: &Schedule, steps: &Steps) -> Result<(), String> {
        self.walk(schedule).check(steps)
    }

    /// Sees to it that the schedule does not pass once it was tampered with.
    fn refuses(&self, what: &str, tamper: impl FnOnce(&mut Schedule)) {
        let mut schedule = self.schedule.clone();
        tamper(&mut schedule);
        assert!(self.check(&schedule).is_err(), "{}, {what}", self.name);
    }

    /// The same of its steps.
    fn refuses_steps(&self, steps: &Steps, what: &str, tamper: impl FnOnce(&mut Steps)) {
        let mut steps = steps.clone();
        tamper(&mut steps);
        assert!(self.check_steps(&self.schedule, &steps).is_err(), "{}, {what}", self.name);
    }

    fn walk<'a>(&'a self, schedule: &'a Schedule) -> Walk<'a> {
        Walk { graph: &self.graph, schedule, library: self.library, declared: kernels().unwrap() }
    }
}

/// Training schedules of small models with and without recompute.
fn planned() -> Vec<Planned> {
    let size = Size { layers: 3, dropout: 0.1, ..Size::GOLDEN };
    let mut all = Vec::new();
    for (name, model) in models::families(size) {
        let forward = model.training(2, 16).unwrap();
        let graph = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
        for library in LIBRARIES {
            let facts = facts(&graph, RATES, library, Limits::default());
            let program =
                Program { train: Costed { graph: graph.clone(), facts }, evaluate: None, generate: None };
            for strategy in [Strategy::None, Strategy::Full, Strategy::Minimal] {
                for (role, schedule) in &plan(&program, strategy, Scratch::Best).unwrap().schedules {
                    let (name, schedule) = (format!("{name} {strategy:?} {role:?}"), schedule.clone());
                    let (graph, limits) = (graph.clone(), Limits::default());
                    all.push(Planned { name, graph, schedule, library, limits });
                }
            }
        }
    }
    all
}

/// The rank and the ranks whose schedules are lowered: the last shards of three have elements past the end.
const RANK: usize = 2;
const RANKS: usize = 3;

/// Training schedules of small models on one of three ranks, which divide weights, scatter one gradient and sum the next.
fn planned_for_ranks() -> Vec<Planned> {
    let size = Size { layers: 3, ..Size::GOLDEN };
    let limits = Limits { rank: RANK, ..Limits::default() };
    let mut all = Vec::new();
    for (name, model) in models::families(size) {
        let forward = model.training(2, 16).unwrap();
        let graph = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
        let mut graph = divide(graph, RANKS).unwrap();
        graph.set_phase(Phase::Update);
        let states = (0..graph.states().len() as u32).map(StateId);
        let gradients: Vec<StateId> =
            states.filter(|&id| graph.state(id).name.starts_with("grad.")).collect();
        for (index, &gradient) in gradients.iter().enumerate() {
            let own = graph.newest(gradient);
            if index % 2 == 0 {
                let scatter = Op::Collective(Collective::ReduceScatter { ranks: RANKS });
                let shard = graph.apply(scatter, &[own]);
                let squares = graph.apply(Op::SumSquares, &[shard]);
                graph.output(&format!("squares.{index}"), squares);
            } else {
                let sum = Op::Collective(Collective::AllReduce { ranks: RANKS });
                let node = graph.apply_all(sum, &[own]);
                graph.write_state(node, 0, gradient);
            }
        }
        let graph = graph.finish().unwrap();
        let facts = facts(&graph, RATES, &NoLibrary, limits);
        let program =
            Program { train: Costed { graph: graph.clone(), facts }, evaluate: None, generate: None };
        for strategy in [Strategy::None, Strategy::Full] {
            for (role, schedule) in &plan(&program, strategy, Scratch::Best).unwrap().schedules {
                let name = format!("{name} on {RANKS} ranks {strategy:?} {role:?}");
                let (schedule, library) = (schedule.clone(), &NoLibrary);
                all.push(Planned { name, graph: graph.clone(), schedule, library, limits });
            }
        }
    }
    all
}

/// Where exchanges begin and are awaited in the steps of a schedule: the actions, in this order.
fn exchanges(steps: &Steps) -> (Vec<usize>, Vec<usize>) {
    let of = |wanted: fn(&StreamStep) -> bool| {
        (0..steps.len()).filter(|&action| steps[action].iter().any(wanted)).collect()
    };
    (of(|step| matches!(step, StreamStep::Exchange(_))), of(|step| matches!(step, StreamStep::Await { .. })))
}

#[test]
fn exchanges_run_beside_steps_that_touch_none_of_their_bytes() {
    let Some(_) = kernels() else { return };
    let (mut begun, mut beside) = (0, 0);
    for planned in planned_for_ranks() {
        planned.check(&planned.schedule).unwrap_or_else(|why| panic!("{}: {why}", planned.name));
        let steps = planned.lowered(&planned.schedule).unwrap();
        let (begins, ends) = exchanges(&steps);
        assert_eq!(begins.len(), ends.len(), "{}", planned.name);
        begun += begins.len();
        beside += begins.iter().zip(&ends).filter(|(begin, end)| *begin + 1 < **end).count();
    }
    assert!(begun > 200 && 2 * beside > begun, "{beside} of {begun} exchanges have steps beside them");
}

#[test]
fn an_exchange_that_is_awaited_too_late_or_never_is_found() {
    let Some(_) = kernels() else { return };
    let (mut never, mut late) = (0, 0);
    for planned in planned_for_ranks() {
        let steps = planned.lowered(&planned.schedule).unwrap();
        let (begins, ends) = exchanges(&steps);
        if let Some(&last) = ends.last() {
            planned.refuses_steps(&steps, "without its last await", |steps| steps[last].clear());
            never += 1;
        }
        for &end in &ends {
            // Behind the next action that computes, which in most cases reads what was awaited.
            let idle = |action: usize| {
                steps[action].is_empty() || ends.contains(&action) || begins.contains(&action)
            };
            let Some(reader) = (end + 1..steps.len()).find(|&action| !idle(action)) else { continue };
            let mut moved = steps.clone();
            let mut awaits = std::mem::take(&mut moved[end]);
            moved[reader].append(&mut awaits);
            late += usize::from(planned.check_steps(&planned.schedule, &moved).is_err());
        }
    }
    assert!(never >= 12 && late > 50, "{never} never and {late} late");
}

#[test]
fn training_has_no_race_with_any_recompute() {
    let Some(_) = kernels() else { return };
    let all = planned();
    assert!(all.len() >= 36, "{} schedules", all.len());
    for planned in all {
        planned.check(&planned.schedule).unwrap_or_else(|why| panic!("{}: {why}", planned.name));
    }
}

/// Walks over every schedule that it is given, and runs none.
#[derive(Debug)]
struct Walker {
    library: &'static (dyn Library + Sync),
    walked: usize,
    faults: Vec<String>,
}

impl Device for Walker {
    fn name(&self) -> String {
        "walks over steps".into()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        facts(graph, RATES, self.library, Limits::default())
    }

    fn reserve(&mut self, _: Space) -> Result<(), ExecError> {
        Ok(())
    }

    fn prepare(&mut self, judged: &Runnable) -> Result<ScheduleId, ExecError> {
        let (graph, schedule) = (judged.graph(), judged.schedule());
        let steps = by_action(&LoweredSchedule::of(graph, schedule, self.library, Limits::default())?);
        let walk = Walk { graph, schedule, library: self.library, declared: kernels().unwrap() };
        self.faults.extend(walk.check(&steps).err());
        self.walked += 1;
        Ok(ScheduleId(0))
    }

    fn map(&mut self) -> Result<(), ExecError> {
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), ExecError> {
        Ok(())
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), ExecError> {
        Ok(())
    }

    fn run(&mut self, _: ScheduleId) -> Result<(), ExecError> {
        Ok(())
    }

    fn run_timed(&mut self, _: ScheduleId, _: &mut [Vec<f64>]) -> Result<(), ExecError> {
        Ok(())
    }
}

#[test]
fn kernels_of_every_case_write_no_input_and_read_no_scratch_before_it_is_written() {
    let Some(_) = kernels() else { return };
    let mut walkers = LIBRARIES.map(|library| Walker { library, walked: 0, faults: Vec::new() });
    for case in [cases::all(), half_cases()].concat() {
        let drawn = DrawnCase::new(&case).unwrap();
        for walker in &mut walkers {
            let before = walker.faults.len();
            // Nobody looks at the results: nothing is computed.
            drawn.run(walker, Scratch::Best).unwrap();
            for fault in &mut walker.faults[before..] {
                *fault = format!("{}: {fault}", case.name);
            }
        }
    }
    for walker in walkers {
        assert!(walker.faults.is_empty(), "{}:\n{}", walker.faults.len(), walker.faults.join("\n"));
        assert!(walker.walked > 2000, "{} schedules", walker.walked);
    }
}

/// Whether action `second` reads a value that action `first` computes; state was there before both.
fn depends(schedule: &Schedule, first: usize, second: usize) -> bool {
    let (Action::Run { outputs, .. }, Action::Run { inputs, .. }) =
        (&schedule.actions[first], &schedule.actions[second])
    else {
        return false;
    };
    let computed = |id: &&BufferId| matches!(schedule.buffer(**id).contents, Contents::Value(_));
    outputs.iter().filter(computed).any(|output| inputs.contains(output))
}

#[test]
fn an_action_before_the_one_it_reads_from_is_found() {
    let Some(_) = kernels() else { return };
    let mut turned = 0;
    for planned in planned().iter().step_by(3) {
        for first in 0..planned.schedule.actions.len() - 1 {
            if depends(&planned.schedule, first, first + 1) {
                planned
                    .refuses(&format!("action {first}"), |schedule| schedule.actions.swap(first, first + 1));
                turned += 1;
            }
        }
    }
    assert!(turned > 300, "{turned} pairs");
}

#[test]
fn steps_of_an_action_that_are_missing_or_run_in_the_place_of_others_are_found() {
    let Some(_) = kernels() else { return };
    let (mut missing, mut turned) = (0, 0);
    for planned in planned().iter().step_by(3) {
        let steps = planned.lowered(&planned.schedule).unwrap();
        for action in 0..steps.len() - 1 {
            if !steps[action].is_empty() {
                planned.refuses_steps(&steps, &format!("without {action}"), |steps| steps[action].clear());
                missing += 1;
            }
            if depends(&planned.schedule, action, action + 1) {
                planned.refuses_steps(&steps, &format!("{action} behind"), |steps| {
                    steps.swap(action, action + 1);
                });
                turned += 1;
            }
        }
    }
    assert!(missing > 500 && turned > 300, "{missing} missing, {turned} turned");
}

/// The actions that touch a computed value's buffer: the first that writes it and the last that reads it.
fn life(schedule: &Schedule, buffer: usize) -> Option<(usize, usize)> {
    let named = |ids: &[BufferId]| ids.iter().any(|id| id.index() == buffer);
    if matches!(schedule.buffers[buffer].contents, Contents::State(_)) {
        return None;
    }
    let written = schedule
        .actions
        .iter()
        .position(|action| matches!(action, Action::Run { outputs, .. } if named(outputs)))?;
    let read = schedule
        .actions
        .iter()
        .rposition(|action| matches!(action, Action::Run { inputs, .. } if named(inputs)))?;
    Some((written, read))
}

#[test]
fn a_buffer_moved_onto_bytes_that_are_read_later_is_found() {
    let Some(_) = kernels() else { return };
    let mut moved = 0;
    for planned in planned().iter().step_by(3) {
        let lives: Vec<Option<(usize, usize)>> =
            (0..planned.schedule.buffers.len()).map(|buffer| life(&planned.schedule, buffer)).collect();
        for (kept, life) in lives.iter().enumerate() {
            let Some((written, read)) = *life else { continue };
            // A buffer that is written while the kept buffer waits to be read.
            let between =
                |life: &Option<(usize, usize)>| life.is_some_and(|(at, _)| written < at && at < read);
            for other in (0..lives.len()).filter(|&other| between(&lives[other])).step_by(7) {
                planned.refuses(&format!("{other} onto {kept}"), |schedule| {
                    schedule.buffers[other].offset = schedule.buffers[kept].offset;
                });
                moved += 1;
            }
        }
    }
    assert!(moved > 300, "{moved} buffers");
}

#[test]
fn two_steps_of_which_one_reads_the_scratch_of_the_other_are_found_when_they_are_turned_round() {
    let Some(_) = kernels() else { return };
    let mut turned = 0;
    for planned in planned() {
        let steps = planned.lowered(&planned.schedule).unwrap();
        for (index, action) in planned.schedule.actions.iter().enumerate() {
            let reaches = planned.walk(&planned.schedule).reaches_of(action, &steps[index]).unwrap();
            for second in 1..reaches.len() {
                // Whether the first of the two steps is also the first that writes the byte.
                let fresh = |at: u64| {
                    let writes =
                        |reach: &shadow::Reach| reach.access != Access::Reads && reach.range.contains(&at);
                    !reaches[..second - 1].iter().flatten().any(writes)
                        && reaches[second - 1].iter().any(writes)
                };
                let reads = |reach: &shadow::Reach| reach.in_scratch && reach.access == Access::Reads;
                if reaches[second].iter().any(|reach| reads(reach) && fresh(reach.range.start)) {
                    planned.refuses_steps(&steps, &format!("steps of {index}"), |steps| {
                        steps[index].swap(second - 1, second);
                    });
                    turned += 1;
                }
            }
        }
    }
    assert!(turned > 100, "{turned} pairs");
}

#[test]
fn a_pointer_into_a_buffer_of_another_action_is_found() {
    let Some(_) = kernels() else { return };
    let mut moved = 0;
    for planned in planned().iter().step_by(5) {
        let steps = planned.lowered(&planned.schedule).unwrap();
        for (index, action) in planned.schedule.actions.iter().enumerate() {
            let Action::Run { inputs, outputs, workspace, .. } = action else { continue };
            let own = |id: usize| inputs.iter().chain(outputs).chain(workspace).any(|own| own.index() == id);
            let range = |id: usize| {
                let buffer = &planned.schedule.buffers[id];
                buffer.offset..buffer.offset + buffer.bytes
            };
            let own_ranges: Vec<_> =
                (0..planned.schedule.buffers.len()).filter(|&id| own(id)).map(range).collect();
            let outside = |id: &usize| {
                let range = range(*id);
                range.end > range.start
                    && own_ranges.iter().all(|own| range.end <= own.start || own.end <= range.start)
            };
            let Some(target) = (0..planned.schedule.buffers.len()).filter(outside).nth(index % 5) else {
                continue;
            };
            for step in 0..steps[index].len() {
                let mut strayed = steps[index][step].clone();
                if point(&mut strayed, Place(range(target).start)) {
                    planned.refuses_steps(&steps, &format!("{index}"), |steps| steps[index][step] = strayed);
                    moved += 1;
                }
            }
        }
    }
    assert!(moved > 300, "{moved} pointers");
}

/// Moves the last place of a step.
fn point(step: &mut StreamStep, to: Place) -> bool {
    let place = match step {
        StreamStep::Launch(launch) => launch.args.iter_mut().rev().find_map(|arg| match arg {
            Arg::Pointer(place) => Some(place),
            _ => None,
        }),
        StreamStep::Product(product) => Some(&mut product.c),
        StreamStep::Copy { to, .. } | StreamStep::Zero { to, .. } => Some(to),
        StreamStep::Attention(_) | StreamStep::Exchange(_) | StreamStep::Await { .. } => None,
    };
    place.map(|place| *place = to).is_some()
}
