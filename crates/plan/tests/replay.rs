//! The judge against mutated schedules: each mutation is harmful by construction, so each must be refused.
//!
//! Valid schedules come from three graphs (a chain, a network with skips, a Llama) under every strategy.
//! The facts that a mutation needs (who writes a buffer, who reads it) are found here from the actions alone,
//! not from the lifetimes the planner wrote down.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use plimsoll_graph::{Graph, Phase};
use plimsoll_plan::{
    Action, BufferId, Contents, Draft, Fault, PlanError, Program, ReplayError, Role, Schedule, Scratch, plan,
    replay,
};
use proptest::prelude::*;
use proptest::sample::Index;

mod support;
use support::{STRATEGIES, families, family, program, residual_chain, skip_network};

/// Scratch of every node, so that there is some to misplace.
const SCRATCH: u64 = 128;

struct Valid {
    program: &'static Program,
    schedule: Schedule,
    arena: u64,
}

static VALID: LazyLock<Vec<Valid>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for graph in [residual_chain(6), skip_network(3), family(&families()[0].1)] {
        let program: &'static Program = Box::leak(Box::new(program(graph, SCRATCH)));
        for strategy in STRATEGIES {
            let mut plan = plan(program, strategy, Scratch::Best).unwrap().to_draft();
            for role in [Role::First, Role::Further] {
                let schedule = plan.schedules.remove(&role).unwrap();
                all.push(Valid { program, schedule, arena: plan.arena_bytes.0 });
            }
        }
    }
    all
});

/// Whole drafts of the same programs: alignment and scratch are facts of the device, which the judge has and the replay has
/// not.
static DRAFTS: LazyLock<Vec<(&'static Program, Draft)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for graph in [residual_chain(6), skip_network(3), family(&families()[0].1)] {
        let program: &'static Program = Box::leak(Box::new(program(graph, SCRATCH)));
        for strategy in STRATEGIES {
            all.push((program, plan(program, strategy, Scratch::Best).unwrap().to_draft()));
        }
    }
    all
});

/// A draft with one of its training schedules, to be altered.
fn a_draft(which: Index, further: bool) -> (&'static Program, Draft, Role) {
    let (program, draft) = &DRAFTS[which.index(DRAFTS.len())];
    (program, draft.clone(), if further { Role::Further } else { Role::First })
}

fn refused_as_unsound(draft: Draft, program: &Program, expected: &str) -> bool {
    matches!(draft.judge(program), Err(PlanError::Unsound { expected: why, .. }) if why.contains(expected))
}

impl Valid {
    fn graph(&self) -> &'static Graph {
        &self.program.train.graph
    }

    fn judge(&self, schedule: &Schedule) -> Result<(), ReplayError> {
        replay(self.graph(), schedule, Role::First.phases(), self.arena)
    }

    /// Buffers that are neither state nor scratch.
    fn values(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.buffers(|contents| matches!(contents, Contents::Value(_)))
    }

    fn buffers(&self, wanted: impl Fn(Contents) -> bool) -> impl Iterator<Item = BufferId> {
        let all = self.schedule.buffers.iter().enumerate();
        all.filter(move |(_, buffer)| wanted(buffer.contents)).map(|(index, _)| BufferId(index as u32))
    }

    /// Executions in order: action, buffers read, buffers written (scratch last).
    fn runs(&self) -> impl Iterator<Item = (usize, &[BufferId], Vec<BufferId>)> {
        self.schedule.actions.iter().enumerate().filter_map(|(index, action)| match action {
            Action::Run { inputs, outputs, workspace, .. } => {
                Some((index, &inputs[..], outputs.iter().copied().chain(*workspace).collect()))
            }
            _ => None,
        })
    }

    fn writer(&self, id: BufferId) -> Option<usize> {
        self.runs().find(|(_, _, written)| written.contains(&id)).map(|(index, ..)| index)
    }

    fn last_reader(&self, id: BufferId) -> Option<usize> {
        self.runs().filter(|(_, read, _)| read.contains(&id)).map(|(index, ..)| index).last()
    }

    fn phase(&self, action: &Action) -> Phase {
        match action {
            Action::Run { node, .. } => self.graph().node(*node).phase,
            _ => unreachable!("planned schedules have no copies"),
        }
    }
}

fn pick<T>(choices: Vec<T>, index: Index) -> T {
    let at = index.index(choices.len());
    choices.into_iter().nth(at).unwrap()
}

fn operands(action: &mut Action) -> (&mut Vec<BufferId>, &mut Vec<BufferId>, &mut Option<BufferId>) {
    match action {
        Action::Run { inputs, outputs, workspace, .. } => (inputs, outputs, workspace),
        _ => unreachable!("planned schedules have no copies"),
    }
}

#[test]
fn what_the_planner_made_is_accepted_and_there_is_enough_of_it() {
    assert_eq!(VALID.len(), 3 * STRATEGIES.len() * 2);
    for valid in VALID.iter() {
        valid.judge(&valid.schedule).unwrap();
    }
    for (program, draft) in DRAFTS.iter() {
        draft.clone().judge(program).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_buffer_written_over_one_that_is_still_read_is_refused(
        which: Index, first: Index, second: Index, shift: Index,
    ) {
        let valid = &VALID[which.index(VALID.len())];
        // Victims are read at least one action after they were written, so that there is a moment between.
        let victims: Vec<_> = valid.values()
            .filter_map(|id| {
                let written = valid.writer(id)?;
                let read = valid.last_reader(id)?;
                (read > written + 1).then_some((id, written, read))
            })
            .collect();
        let (victim, written, read) = pick(victims, first);
        let culprits = valid.runs()
            .filter(|&(index, ..)| index > written && index < read)
            .flat_map(|(_, _, outputs)| outputs)
            .filter(|&id| !matches!(valid.schedule.buffer(id).contents, Contents::State(_)))
            .collect::<Vec<_>>();
        prop_assume!(!culprits.is_empty());
        let culprit = pick(culprits, second);
        let mut schedule = valid.schedule.clone();
        // Any offset at which the two share at least one byte and the arena is not left.
        let (victim, bytes) = (*schedule.buffer(victim), schedule.buffer(culprit).bytes);
        let lowest = (victim.offset + 1).saturating_sub(bytes);
        let highest = (victim.offset + victim.bytes - 1).min(valid.arena - bytes);
        let offset = lowest + shift.index((highest - lowest + 1) as usize) as u64;
        schedule.buffers[culprit.index()].offset = offset;
        prop_assert!(valid.judge(&schedule).is_err());
    }

    #[test]
    fn an_action_that_is_left_out_is_missed(which: Index, at: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let executions = valid.schedule.executions(valid.graph());
        let needed = |index: &usize| {
            let Action::Run { node, outputs, .. } = &valid.schedule.actions[*index] else { return false };
            executions[node.index()] == 1
                || outputs.iter().any(|&id| valid.last_reader(id).is_some_and(|reader| reader > *index))
        };
        let candidates: Vec<usize> = (0..valid.schedule.actions.len()).filter(needed).collect();
        let mut schedule = valid.schedule.clone();
        schedule.actions.remove(pick(candidates, at));
        prop_assert!(valid.judge(&schedule).is_err());
    }

    #[test]
    fn a_recomputation_that_is_left_out_leaves_a_read_without_its_bytes(which: Index, at: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut seen = vec![false; valid.graph().nodes().len()];
        let recomputes: Vec<usize> = (valid.schedule.actions.iter().enumerate())
            .filter_map(|(index, action)| match action {
                Action::Run { node, .. } => {
                    std::mem::replace(&mut seen[node.index()], true).then_some(index)
                }
                _ => None,
            })
            .collect();
        prop_assume!(!recomputes.is_empty());
        let mut schedule = valid.schedule.clone();
        schedule.actions.remove(pick(recomputes, at));
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::NotIntact(_)), "{fault:?}");
    }

    #[test]
    fn an_operand_that_holds_another_value_is_refused(which: Index, at: Index, operand: Index, other: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut schedule = valid.schedule.clone();
        let index = at.index(schedule.actions.len());
        let (inputs, outputs, _) = operands(&mut schedule.actions[index]);
        let place = operand.index(inputs.len() + outputs.len());
        let slot = inputs.iter_mut().chain(outputs).nth(place).unwrap();
        let contents = valid.schedule.buffer(*slot).contents;
        *slot = pick(valid.buffers(|held| held != contents).collect(), other);
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::WrongOperand(_)), "{fault:?}");
    }

    #[test]
    fn a_lifetime_that_begins_later_cannot_be_read_now(which: Index, at: Index, other: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut reads = Vec::new();
        for (index, read, _) in valid.runs() {
            for (operand, &id) in read.iter().enumerate() {
                let contents = valid.schedule.buffer(id).contents;
                let later: Vec<BufferId> = valid
                    .buffers(|held| held == contents && matches!(held, Contents::Value(_)))
                    .filter(|&twin| valid.writer(twin).is_some_and(|writer| writer >= index))
                    .collect();
                if !later.is_empty() {
                    reads.push((index, operand, later));
                }
            }
        }
        prop_assume!(!reads.is_empty());
        let (index, operand, later) = pick(reads, at);
        let mut schedule = valid.schedule.clone();
        operands(&mut schedule.actions[index]).0[operand] = pick(later, other);
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::NotIntact(_)), "{fault:?}");
    }

    #[test]
    fn an_action_cannot_run_before_the_one_it_reads_from(which: Index, at: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let pairs: Vec<(usize, usize)> = valid.values()
            .filter_map(|id| Some((valid.writer(id)?, valid.last_reader(id)?)))
            .collect();
        let (writer, reader) = pick(pairs, at);
        let mut schedule = valid.schedule.clone();
        schedule.actions.swap(writer, reader);
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::NotIntact(_) | Fault::WrongVersion(_)), "{fault:?}");
    }

    #[test]
    fn a_buffer_too_small_for_its_value_is_refused(which: Index, at: Index, cut: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let used = valid.values().filter(|&id| valid.writer(id).is_some()).collect::<Vec<_>>();
        let id = pick(used, at);
        let Contents::Value(value) = valid.schedule.buffer(id).contents else { unreachable!() };
        let needed = valid.graph().ty(value).bytes();
        let mut schedule = valid.schedule.clone();
        schedule.buffers[id.index()].bytes = cut.index(needed) as u64;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::WrongOperand(_)), "{fault:?}");
    }

    #[test]
    fn a_buffer_that_leaves_the_arena_is_refused(which: Index, at: Index, by in 1u64..1 << 40) {
        let valid = &VALID[which.index(VALID.len())];
        let mut schedule = valid.schedule.clone();
        let buffer = at.index(schedule.buffers.len());
        schedule.buffers[buffer].offset = valid.arena - schedule.buffers[buffer].bytes + by;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert_eq!(fault, Fault::BeyondArena { end: valid.arena + by, arena: valid.arena });
    }

    #[test]
    fn a_backward_action_that_runs_twice_is_refused(which: Index, at: Index, to: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let backward: Vec<usize> = (0..valid.schedule.actions.len())
            .filter(|&index| valid.phase(&valid.schedule.actions[index]) == Phase::Backward)
            .collect();
        let index = pick(backward, at);
        let mut schedule = valid.schedule.clone();
        let again = schedule.actions[index].clone();
        let place = index + 1 + to.index(schedule.actions.len() - index);
        schedule.actions.insert(place, again);
        prop_assert!(valid.judge(&schedule).is_err());
    }

    #[test]
    fn nothing_may_be_written_over_state(which: Index, at: Index, state: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let written = valid.values().filter(|&id| valid.writer(id).is_some()).collect::<Vec<_>>();
        let id = pick(written, at);
        let states: Vec<BufferId> = valid.buffers(|held| matches!(held, Contents::State(_))).collect();
        let mut schedule = valid.schedule.clone();
        schedule.buffers[id.index()].offset = schedule.buffer(pick(states, state)).offset;
        prop_assert!(valid.judge(&schedule).is_err());
    }

    #[test]
    fn two_ranges_of_state_may_not_share_a_byte(which: Index, first: Index, second: Index, shift: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut states: Vec<BufferId> = valid.buffers(|held| matches!(held, Contents::State(_))).collect();
        let a = states.remove(first.index(states.len()));
        let b = pick(states, second);
        let mut schedule = valid.schedule.clone();
        let target = *schedule.buffer(b);
        let highest = target.bytes.min(valid.arena - target.offset - schedule.buffer(a).bytes + 1);
        schedule.buffers[a.index()].offset = target.offset + shift.index(highest as usize) as u64;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::Overlap(_)), "{fault:?}");
    }

    #[test]
    fn an_output_may_cover_an_input_only_where_the_op_allows(which: Index, at: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut forbidden = Vec::new();
        for action in &valid.schedule.actions {
            let Action::Run { node, inputs, outputs, .. } = action else { continue };
            let op = &valid.graph().node(*node).op;
            for (output, &to) in outputs.iter().enumerate() {
                let allowed = op.may_overwrite(output);
                for (_, &from) in inputs.iter().enumerate().filter(|(input, _)| !allowed.contains(input)) {
                    let (to_buffer, from_buffer) = (valid.schedule.buffer(to), valid.schedule.buffer(from));
                    let is_value = matches!(to_buffer.contents, Contents::Value(_));
                    // A buffer that occurs twice is skipped, since one occurrence may be allowed.
                    let once = inputs.iter().filter(|&&id| id == from).count() == 1;
                    if is_value && once && from_buffer.offset + to_buffer.bytes <= valid.arena {
                        forbidden.push((to, from));
                    }
                }
            }
        }
        let (to, from) = pick(forbidden, at);
        let mut schedule = valid.schedule.clone();
        schedule.buffers[to.index()].offset = schedule.buffer(from).offset;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::Overlap(_) | Fault::NotIntact(_)), "{fault:?}");
    }

    #[test]
    fn scratch_may_cover_no_operand_of_its_action(which: Index, at: Index, operand: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let mut schedule = valid.schedule.clone();
        let index = at.index(schedule.actions.len());
        let (inputs, outputs, workspace) = operands(&mut schedule.actions[index]);
        let all: Vec<BufferId> = inputs.iter().chain(outputs.iter()).copied().collect();
        let (id, target) = (workspace.unwrap(), pick(all, operand));
        let offset = schedule.buffer(target).offset;
        prop_assume!(offset + SCRATCH <= valid.arena);
        schedule.buffers[id.index()].offset = offset;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::Overlap(_)), "{fault:?}");
    }

    #[test]
    fn an_operand_or_scratch_that_is_not_aligned_is_refused(
        which: Index, further: bool, at: Index, shift in 1u64..64, grows: bool
    ) {
        let (program, mut draft, role) = a_draft(which, further);
        let alignment = program.train.facts.alignment;
        prop_assert!(alignment >= 64 && alignment.is_power_of_two());
        let schedule = draft.schedules.get_mut(&role).unwrap();
        // Only values and scratch are moved: for state another rule applies, that it lies where the plan's table has it.
        let own = program.train.graph.states().len();
        let movable = own + at.index(schedule.buffers.len() - own);
        let buffer = &mut schedule.buffers[movable];
        if grows { buffer.bytes += shift } else { buffer.offset += shift }
        // The arena has room for it, so that its alignment alone is at fault.
        draft.arena_bytes.0 += 64;
        prop_assert!(refused_as_unsound(draft, program, "aligned as the device wants it"));
    }

    #[test]
    fn scratch_that_is_smaller_than_its_kernel_needs_is_refused(
        which: Index, further: bool, at: Index, kept in 0u64..SCRATCH / 64, way in 0..3
    ) {
        let (program, mut draft, role) = a_draft(which, further);
        let schedule = draft.schedules.get_mut(&role).unwrap();
        let index = at.index(schedule.actions.len());
        let (inputs, outputs, workspace) = operands(&mut schedule.actions[index]);
        let scratch = workspace.unwrap();
        match way {
            // Too small, left out, or an operand that something else lies in.
            0 => schedule.buffers[scratch.index()].bytes = 64 * kept,
            1 => *workspace = None,
            _ => *workspace = inputs.first().or(outputs.first()).copied(),
        }
        prop_assert!(refused_as_unsound(draft, program, "the scratch its kernel needs"));
    }

    #[test]
    fn gradients_of_one_schedule_are_all_replaced_or_all_added_to(which: Index, at: Index) {
        let valid = &VALID[which.index(VALID.len())];
        let sums: Vec<(usize, usize)> = (valid.schedule.actions.iter().enumerate())
            .flat_map(|(index, action)| {
                let Action::Run { node, .. } = action else { unreachable!("no copies here") };
                let node = valid.graph().node(*node);
                let is_sum = move |output: &usize| {
                    node.op.can_accumulate(*output) && valid.graph().value(node.outputs[*output]).state.is_some()
                };
                (0..node.outputs.len()).filter(is_sum).map(move |output| (index, output))
            })
            .collect();
        let (index, output) = pick(sums, at);
        let mut schedule = valid.schedule.clone();
        let Action::Run { accumulate, .. } = &mut schedule.actions[index] else { unreachable!() };
        *accumulate ^= 1 << output;
        prop_assert!(valid.judge(&schedule).is_err());
    }

    #[test]
    fn a_node_that_only_writes_cannot_be_told_to_add(which: Index, at: Index, output in 0usize..32) {
        let valid = &VALID[which.index(VALID.len())];
        let mut schedule = valid.schedule.clone();
        let index = at.index(schedule.actions.len());
        let Action::Run { node, accumulate, .. } = &mut schedule.actions[index] else { unreachable!() };
        let node = valid.graph().node(*node);
        let is_state = node.outputs.get(output).is_some_and(|&v| valid.graph().value(v).state.is_some());
        prop_assume!(!(is_state && node.op.can_accumulate(output)));
        *accumulate |= 1 << output;
        let fault = valid.judge(&schedule).unwrap_err().fault;
        prop_assert!(matches!(fault, Fault::WrongOperand(_)), "{fault:?}");
    }
}
