//! One micro-batch of a request: its times, its bounds, and whether an order of runs fits the budget.

use super::error::SearchError;
use super::request::Request;
use super::tables::ProgramTables;
use super::tried::Tried;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::Scratch;
use crate::layout::{Effort, Slot, fits, layout, live_bytes, order_seconds, slots_of};
use crate::plan::{Draft, Tiered};
use crate::program::{Costed, Program};
use crate::recompute::{Order, Strategy, micro_batch};

/// Number of parts into which the state is divided for the bound.
const PARTS: u64 = 64;

/// One micro-batch under consideration.
#[derive(Clone, Copy)]
pub(super) struct MicroBatch<'a> {
    pub(super) request: &'a Request,
    /// Sequences.
    pub(super) rows: usize,
    /// Whether feed-forward networks are worked on in tiles.
    pub(super) tiled: bool,
    pub(super) tables: &'a ProgramTables,
    /// Only plans that take less time are of use.
    pub(super) below: f64,
}

impl<'a> MicroBatch<'a> {
    pub(super) fn program(&self) -> &'a Program {
        &self.tables.program
    }

    /// The amounts of scratch that differ.
    pub(super) fn amounts(&self) -> &'static [Scratch] {
        let nodes = &self.program().train.facts.nodes;
        if nodes.iter().all(|node| node.workspace.least == node.workspace.best) {
            &[Scratch::Best]
        } else {
            &[Scratch::Best, Scratch::Least]
        }
    }

    /// Bytes that the budget leaves to the transient part where all state stays.
    pub(super) fn room(&self) -> TransientBytes {
        self.request.budget.transient(self.tables.state_bytes())
    }

    /// Whether state and the largest operands of a node fit: cheap, and true whenever any plan fits.
    pub(super) fn can_fit(&self) -> Result<bool, SearchError> {
        Ok(self.tables.least_bytes()? <= self.request.budget)
    }

    /// Whether the state that cannot be away fits.
    pub(super) fn state_can_fit(&self) -> Result<bool, SearchError> {
        Ok(ArenaBytes(self.tables.least_state_bytes()?) <= self.request.budget)
    }

    /// Micro-batches of one step.
    pub(super) fn accumulation(&self) -> usize {
        self.request.global_batch / self.rows
    }

    /// Passes over micro-batches in one step.
    pub(super) fn passes(&self) -> f64 {
        (self.tables.passes * self.accumulation()) as f64
    }

    /// Time of a step that recomputes nothing.
    pub(super) fn once_seconds(&self, scratch: Scratch) -> f64 {
        self.tables.pass_seconds(scratch) * self.passes() + self.tables.update_seconds(scratch)
    }

    /// Time of a step whose micro-batches take `seconds` in each pass.
    pub(super) fn step_seconds(&self, seconds: f64, scratch: Scratch) -> f64 {
        seconds * self.passes() + self.tables.update_seconds(scratch)
    }

    /// Time of the fastest that was tried and fits.
    pub(super) fn fastest(&self, tried: &[Tried]) -> f64 {
        let fits = tried.iter().filter(|t| t.arena_bytes <= self.request.budget);
        fits.map(|t| t.step_seconds).fold(self.below, f64::min)
    }

    /// Whether a plan of this many seconds could be chosen over those already tried.
    pub(super) fn could_matter(&self, seconds: f64, tried: &[Tried]) -> bool {
        seconds < self.fastest(tried) * (1.0 + self.request.slack)
    }

    /// A lower bound on the time of this micro-batch's plans in the budget. It needs no table.
    pub(super) fn bound(&self) -> Result<f64, SearchError> {
        let once = self.once_seconds(Scratch::Best);
        // The bound counts only the recomputation that a budget forces. Without any budget everything still runs once.
        if self.is_bounded() { Ok(once.max(self.forced_seconds()?)) } else { Ok(once) }
    }

    /// Whether the bound depends on the budget.
    pub(super) fn is_bounded(&self) -> bool {
        self.tables.is_bounded(Scratch::Best)
    }

    /// A lower bound on the time of any plan in the budget. State that is away at some moment comes in at least
    /// once a step. Gradients are excepted, since they may be made afterwards.
    fn forced_seconds(&self) -> Result<f64, SearchError> {
        let here = self.tables.state_bytes();
        let link = self.program().train.facts.link.as_ref();
        let forced = |away: u64| {
            let bytes = ArenaBytes(self.request.budget.0.saturating_add(away)).transient(here);
            let pass = self.tables.lower_bound(Scratch::Best, bytes, link).unwrap_or(0.0);
            self.step_seconds(pass, Scratch::Best)
        };
        let Some(link) = link else { return Ok(forced(0)) };
        let (begun, fetched) = self.tables.states()?.bytes_that_can_go(link);
        let part = |index: u64| fetched / PARTS * index + fetched % PARTS * index / PARTS;
        let seconds = |index: u64| part(index) as f64 / link.in_rate;
        let bounds = (0..PARTS).map(|index| forced(begun + part(index + 1)).max(seconds(index)));
        Ok(if fetched == 0 { forced(begun) } else { bounds.fold(f64::INFINITY, f64::min) })
    }

    /// The entry of a plan without offload; `None` if it does not fit or would not be chosen.
    pub(super) fn fitted(
        &self,
        order: &Order,
        strategy: Strategy,
        scratch: Scratch,
        rung: Option<TransientBytes>,
        tried: &[Tried],
    ) -> Option<Tried> {
        let Costed { graph, facts } = &self.program().train;
        let (state, room) = (self.tables.state_bytes(), self.room());
        if ArenaBytes(state) > self.request.budget || self.tables.beside_bytes(scratch) > room {
            return None;
        }
        let sequence = micro_batch(graph, order);
        let pass = order_seconds(graph, facts, scratch, &sequence);
        let step_seconds = self.step_seconds(pass, scratch);
        let beside = self.tables.beside_bytes(scratch);
        if !self.could_matter(step_seconds, tried) {
            return None;
        }
        self.tables.work.look(sequence.executions.len());
        let slots = slots_of(graph, facts, scratch, &sequence);
        let peak = TransientBytes(fits(&slots, room.0, f64::INFINITY, Effort::PLAN)?);
        let arena_bytes = peak.max(beside).arena(state);
        let (micro_batch, tiled, tiered) = (self.rows, self.tiled, Tiered::default());
        Some(Tried { micro_batch, tiled, strategy, scratch, arena_bytes, step_seconds, rung, tiered })
    }

    /// The entry of a plan without offload, in any budget. Its offsets are found and not kept: making the draft again
    /// gives the same bytes and time.
    pub(super) fn measured(
        &self,
        order: &Order,
        strategy: Strategy,
        scratch: Scratch,
        rung: Option<TransientBytes>,
    ) -> Tried {
        self.unplaced(order, strategy, scratch, rung).placed()
    }

    /// The tried plan, before its offsets are found.
    pub(super) fn unplaced(
        &self,
        order: &Order,
        strategy: Strategy,
        scratch: Scratch,
        rung: Option<TransientBytes>,
    ) -> Unplaced {
        let Costed { graph, facts } = &self.program().train;
        let sequence = micro_batch(graph, order);
        let pass = order_seconds(graph, facts, scratch, &sequence);
        self.tables.work.look(sequence.executions.len());
        let slots = slots_of(graph, facts, scratch, &sequence);
        drop(sequence);
        let state = self.tables.state_bytes();
        let beside = self.tables.beside_bytes(scratch);
        let bound = live_bytes(&slots).into_iter().max().unwrap_or(0);
        let micro_batches = pass * self.tables.passes as f64 * self.accumulation() as f64;
        let entry = Tried {
            micro_batch: self.rows,
            tiled: self.tiled,
            strategy,
            scratch,
            arena_bytes: TransientBytes(bound).max(beside).arena(state),
            step_seconds: micro_batches + self.tables.update_seconds(scratch),
            rung,
            tiered: Tiered::default(),
        };
        Unplaced { entry, slots, beside, state }
    }

    /// The entry of a plan that was drafted.
    pub(super) fn entry(&self, draft: &Draft, rung: Option<TransientBytes>, tiered: Tiered) -> Tried {
        Tried {
            micro_batch: self.rows,
            tiled: self.tiled,
            strategy: draft.strategy,
            scratch: draft.scratch,
            arena_bytes: draft.arena_bytes,
            step_seconds: draft.step_seconds(self.accumulation()),
            rung,
            tiered,
        }
    }
}

/// A plan without offsets, in any budget.
pub(super) struct Unplaced {
    /// The entry, with the bytes that are alive at one time.
    entry: Tried,
    slots: Vec<Slot>,
    /// Transient bytes of other schedules, and bytes of state.
    beside: TransientBytes,
    state: u64,
}

impl Unplaced {
    /// A lower bound on the bytes of any layout.
    pub(super) fn least_bytes(&self) -> ArenaBytes {
        self.entry.arena_bytes
    }

    /// The entry with the bytes of its layout.
    pub(super) fn placed(self) -> Tried {
        let peak = TransientBytes(layout(&self.slots).peak).max(self.beside);
        Tried { arena_bytes: peak.arena(self.state), ..self.entry }
    }
}
