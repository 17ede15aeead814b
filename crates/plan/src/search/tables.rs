//! A program with the tables that answer for every budget, each made when it is first needed.
//!
//! One request needs a table once. Many requests for the same model (larger budgets that are faster, the curve of time
//! against budget) need the same tables again, and making them is most of the work.

use std::cell::OnceCell;

use plimsoll_graph::Value;

use super::work::WorkCount;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::{Link, Scratch};
use crate::layout::order_seconds;
use crate::offload::{Candidates, KnownUpdates, Recomputation, StateOrder, persistent_bytes};
use crate::optimum::{Optimum, Outline, optimum, outline};
use crate::plan::beside_bytes;
use crate::program::{Costed, Program, StateDiffers};
use crate::recompute::{Strategy, update};

/// Approximate bytes of the tables of a program: a fixed number, and more for each node. Measured were 9 million for
/// GPT-2; for a Llama of 300 small layers 35 million with a tier and 17 million without.
const FOR_ANY: u64 = 6_000_000;
const PER_NODE: u64 = 700;
const PER_NODE_WITH_TIER: u64 = 2_000;

/// The program of one micro-batch with its tables.
#[derive(Debug)]
pub(crate) struct ProgramTables {
    pub(crate) program: Program,
    /// Transient bytes up to which the tables answer.
    cap: TransientBytes,
    /// Passes over each micro-batch.
    pub(super) passes: usize,
    /// Bytes of all state when none of it is away.
    state_bytes: u64,
    /// Bytes without which no plan fits.
    least_bytes: OnceCell<ArenaBytes>,
    /// The order in which state leaves.
    states: OnceCell<StateOrder>,
    /// Updates that other programs of the searcher have too.
    updates: KnownUpdates,
    best: Tables,
    least: Tables,
    pub(super) work: WorkCount,
}

/// Tables for one amount of scratch.
#[derive(Debug, Default)]
struct Tables {
    outline: OnceCell<Option<Outline>>,
    optimum: OnceCell<Option<Box<dyn Optimum>>>,
    candidates: OnceCell<Candidates>,
    beside_bytes: OnceCell<TransientBytes>,
    /// Times of one pass over a micro-batch, without its exchanges, and of the update with them, if nothing is recomputed or
    /// away.
    seconds: OnceCell<(f64, f64)>,
}

impl ProgramTables {
    /// A program without tables yet; they will answer for arenas of up to `cap` bytes.
    pub(crate) fn new(
        program: Program,
        cap: ArenaBytes,
        work: WorkCount,
    ) -> Result<ProgramTables, StateDiffers> {
        let state_bytes = persistent_bytes(&program, 0)?;
        let cap = cap.transient(state_bytes);
        Ok(ProgramTables {
            passes: program.passes(),
            program,
            cap,
            state_bytes,
            least_bytes: OnceCell::new(),
            states: OnceCell::new(),
            updates: KnownUpdates::default(),
            best: Tables::default(),
            least: Tables::default(),
            work,
        })
    }

    /// The same tables, which share the times of updates.
    pub(crate) fn sharing(self, updates: &KnownUpdates) -> ProgramTables {
        ProgramTables { updates: updates.clone(), ..self }
    }

    /// About how many bytes the program takes with all its tables.
    pub(crate) fn bytes(&self) -> u64 {
        let Costed { graph, facts } = &self.program.train;
        let per_node = if facts.link.is_some() { PER_NODE_WITH_TIER } else { PER_NODE };
        FOR_ANY + per_node * graph.nodes().len() as u64
    }

    /// Bytes of all state when none of it is away.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Bytes of state that cannot be away and of the largest operands of a node: no plan takes fewer.
    pub(crate) fn least_bytes(&self) -> Result<ArenaBytes, StateDiffers> {
        if let Some(&bytes) = self.least_bytes.get() {
            return Ok(bytes);
        }
        let Costed { graph, facts } = &self.program.train;
        // One list for all nodes: a set for each of them would take longer than the rest of the walk.
        let mut once: Vec<Value> = Vec::new();
        let mut bytes = |values: &[Value]| -> u64 {
            once.clear();
            let transient = values.iter().map(|&value| graph.storage(value));
            once.extend(transient.filter(|&value| graph.value(value).state.is_none()));
            once.sort_unstable();
            once.dedup();
            once.iter().map(|&value| graph.ty(value).bytes() as u64).sum()
        };
        let nodes = graph.nodes().iter().zip(&facts.nodes).filter(|(node, _)| !node.op.is_view());
        // Outputs may take over the bytes of inputs, so the bytes of both must not be added.
        let needs = nodes.map(|(node, f)| bytes(&node.inputs).max(bytes(&node.outputs)) + f.workspace.least);
        let least = TransientBytes(needs.max().unwrap_or(0)).arena(self.least_state_bytes()?);
        Ok(*self.least_bytes.get_or_init(|| least))
    }

    /// Bytes of state that cannot be away. Without a tier all state stays.
    pub(crate) fn least_state_bytes(&self) -> Result<u64, StateDiffers> {
        if self.program.train.facts.link.is_none() {
            return Ok(self.state_bytes);
        }
        Ok(self.states()?.resident_bytes(self.program.train.facts.link.as_ref(), u64::MAX))
    }

    /// The order in which state leaves.
    pub(crate) fn states(&self) -> Result<&StateOrder, StateDiffers> {
        if let Some(states) = self.states.get() {
            return Ok(states);
        }
        let new = StateOrder::new(&self.program)?;
        Ok(self.states.get_or_init(|| new))
    }

    /// Transient bytes of the schedules that run no micro-batch of training, if no state is away.
    pub(crate) fn beside_bytes(&self, scratch: Scratch) -> TransientBytes {
        *self.tables(scratch).beside_bytes.get_or_init(|| beside_bytes(&self.program, scratch))
    }

    /// Time of one pass over a micro-batch without recomputation.
    pub(super) fn pass_seconds(&self, scratch: Scratch) -> f64 {
        self.seconds(scratch).0
    }

    /// Time of the update with all state in the arena, exchanges between ranks included.
    pub(super) fn update_seconds(&self, scratch: Scratch) -> f64 {
        self.seconds(scratch).1
    }

    fn seconds(&self, scratch: Scratch) -> (f64, f64) {
        let Costed { graph, facts } = &self.program.train;
        let update = || order_seconds(graph, facts, scratch, &update(graph));
        let new = || (self.program.pass_seconds(scratch), update());
        *self.tables(scratch).seconds.get_or_init(new)
    }

    /// The optimum of the program; none when it is no chain and too large for a search.
    pub(crate) fn optimum(&self, scratch: Scratch) -> Option<&dyn Optimum> {
        let new = || {
            self.work.optimum();
            optimum(&self.program.train, scratch, self.cap)
        };
        self.tables(scratch).optimum.get_or_init(new).as_deref()
    }

    /// The outline of the program's chain; none where the graph is no chain.
    fn outline(&self, scratch: Scratch) -> Option<&Outline> {
        self.tables(scratch).outline.get_or_init(|| outline(&self.program.train, scratch)).as_ref()
    }

    /// The optimum, unless the graph is a chain that is not long: there no plan is smaller than those of the named
    /// strategies.
    pub(crate) fn optimum_of_smallest(&self, scratch: Scratch) -> Option<&dyn Optimum> {
        if self.outline(scratch).is_some_and(|outline| !outline.is_long()) {
            return None;
        }
        self.optimum(scratch)
    }

    /// A lower bound on the time of any schedule of a micro-batch in these bytes, with transfers over `link`, if one is known.
    pub(super) fn lower_bound(
        &self,
        scratch: Scratch,
        bytes: TransientBytes,
        link: Option<&Link>,
    ) -> Option<f64> {
        match self.outline(scratch) {
            Some(outline) => Some(outline.lower_bound(bytes, link)),
            None => self.optimum(scratch).map(|optimum| optimum.lower_bound(bytes, link)),
        }
    }

    /// Whether bounds know the budget.
    pub(super) fn is_bounded(&self, scratch: Scratch) -> bool {
        self.outline(scratch).is_some() || self.optimum(scratch).is_some()
    }

    /// Whether fewer combinations are tried.
    pub(crate) fn is_long(&self) -> bool {
        let scratch = Scratch::Best;
        let of_optimum = || self.optimum(scratch).is_some_and(Optimum::is_long);
        self.outline(scratch).map_or_else(of_optimum, Outline::is_long)
    }

    /// Whether a strategy with a fixed rule is offered. Only one of them takes more than twice the runs.
    pub(crate) fn offers(&self, strategy: Strategy) -> bool {
        strategy != Strategy::Minimal || !self.is_long()
    }

    /// The candidates that use another tier.
    pub(crate) fn candidates(&self, scratch: Scratch) -> Result<&Candidates, StateDiffers> {
        let candidates = &self.tables(scratch).candidates;
        if let Some(candidates) = candidates.get() {
            return Ok(candidates);
        }
        let recomputations = Recomputation::all(&self.program, scratch, self.optimum(scratch));
        let new = self.candidates_with(scratch, recomputations)?;
        Ok(candidates.get_or_init(|| new))
    }

    /// The candidates with these recomputations.
    pub(crate) fn candidates_with(
        &self,
        scratch: Scratch,
        recomputations: Vec<Recomputation>,
    ) -> Result<Candidates, StateDiffers> {
        let known = (self.states()?, &self.updates);
        Ok(Candidates::new(&self.program, known, scratch, recomputations, self.is_long()))
    }

    fn tables(&self, scratch: Scratch) -> &Tables {
        match scratch {
            Scratch::Best => &self.best,
            Scratch::Least => &self.least,
        }
    }
}
