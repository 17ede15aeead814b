//! Requests that fit where the user's does not: other ways of asking, each planned before it is proposed.
//!
//! A budget alone never changes results beyond the order of sums, and never makes a run use a disk. So a plan does not choose
//! these ways out: the user decides about the limit on the gradient norm, the optimizer's precision and another tier.

use std::path::Path;

use plimsoll_devices::DeviceKind;
use plimsoll_exec::cpu::{BLOCK, OUTSIDE_BYTES, disk_room};
use plimsoll_graph::{Graph, StateKind};
use plimsoll_plan::{ArenaBytes, Choice, Costed, Facts, Link, Searcher, Space, Tier, gradients};

use super::options::{Offload, Options};
use super::{Model, Programs, costed_program, fits_within};
use crate::error::{Alternative, LackingRoom, TrainError};
use crate::memory::{Budget, Size};
use crate::optimizer::{Optimizer, OptimizerKind, Update};

/// More bytes than anything takes.
const ENDLESS: u64 = 1 << 60;

/// Nodes of all programs that are built to look for other ways of asking. A thousand layers have 60,000 nodes, whose program
/// is built in half a second.
const NODES: u64 = 160_000;
/// Programs that one way of asking takes, for micro-batches of both ends and where there are two passes.
const PROGRAMS: u64 = 3;

/// How many other ways of asking are worth planning for a program of so many nodes: always one, and all for short chains.
pub(crate) fn worth_planning(nodes: u64) -> usize {
    (NODES / (PROGRAMS * nodes.max(1))).max(1) as usize
}

/// Adds the alternatives that were found to the error about a budget. Other errors stay as they are. For a long program, of
/// `nodes` nodes, only the first that are worth it are planned.
pub(crate) fn propose<M: Model, F: Fn(&Graph) -> Facts + Copy>(
    error: TrainError,
    asked: &Programs<'_, M, F>,
    nodes: u64,
) -> TrainError {
    let TrainError::Budget { budget, smallest, hints, .. } = error else { return error };
    // Where the plan itself leaves no byte to the arena, nothing fits.
    if budget.arena() == ArenaBytes(0) {
        let (alternatives, lacking) = (Vec::new(), None);
        return TrainError::Budget { budget, smallest, hints, alternatives, lacking };
    }
    let ways: [(bool, Way<'_, M, F>); 3] = [
        (asked.offers_no_tier(), Programs::offloaded),
        (asked.options.optimizer.kind == OptimizerKind::AdamW, Programs::in_eight_bits),
        (asked.limits_gradients(), Programs::unlimited),
    ];
    let open = ways.into_iter().filter(|(open, _)| *open).take(worth_planning(nodes));
    let alternatives = open.filter_map(|(_, way)| way(asked, &budget)).collect();
    let lacking = asked.roomier(&budget).map(Box::new);
    TrainError::Budget { budget, smallest, hints, alternatives, lacking }
}

/// A way of asking that is planned before it is proposed.
type Way<'a, M, F> = fn(&Programs<'a, M, F>, &Budget) -> Option<Alternative>;

impl<M: Model, F: Fn(&Graph) -> Facts + Copy> Programs<'_, M, F> {
    /// Whether gradients persist because their norm is limited or the caller asks for it.
    fn limits_gradients(&self) -> bool {
        let Options { optimizer, update, .. } = self.options;
        let limited = optimizer.max_grad_norm.is_some() || *update == Update::Separate;
        limited && !optimizer.kind.is_zeroth_order()
    }

    /// The request without a limit on the gradient norm, so that updates can run inside the backward pass.
    fn unlimited(&self, budget: &Budget) -> Option<Alternative> {
        let &Programs { model, facts, options } = self;
        let optimizer = Optimizer { max_grad_norm: None, ..options.optimizer };
        let relaxed = Options { optimizer, update: Update::InBackward, ..options.clone() };
        let separate = options.update == Update::Separate;
        relaxed.check_update().ok()?;
        let choice = found(Programs { model, facts, options: &relaxed }, budget)?;
        let states = choice.program.train.graph.states().iter();
        let all = states.filter(|state| state.kind == StateKind::Transient);
        let all: u64 = all.map(|state| state.ty.bytes() as u64).sum();
        let saved = Size { bytes: all.saturating_sub(gradients(&choice).bytes) };
        let update = if separate { "--update auto " } else { "" };
        Some(Alternative {
            flags: format!("{update}--max-grad-norm 0 --micro-batch {}", choice.micro_batch),
            why: format!("{saved} of gradients need not persist"),
        })
    }

    /// The same request with moments of eight bits.
    fn in_eight_bits(&self, budget: &Budget) -> Option<Alternative> {
        let &Programs { model, facts, options } = self;
        let optimizer = Optimizer { kind: OptimizerKind::AdamW8bit, ..options.optimizer };
        let relaxed = Options { optimizer, ..options.clone() };
        let fits = fits_within(model, facts, &relaxed, budget).unwrap_or(false);
        fits.then(|| Alternative {
            flags: "--optim adamw_8bit".into(),
            why: "the optimizer's moments take a quarter of their bytes".into(),
        })
    }

    /// With all the room that a plan could want on the tier that was offered.
    fn roomier(&self, budget: &Budget) -> Option<LackingRoom> {
        let &Programs { model, facts, options } = self;
        let offload = options.offload.as_ref()?;
        let Costed { graph, facts: of_graph } = costed_program(model, facts, options, 1).ok()?.train;
        let room = of_graph.link?.room;
        // Where all state and all values of a row could wait, it is not the room that lacks.
        if room >= everything(&graph) {
            return None;
        }
        // Most often only state must be offloaded and values may stay. That takes less than the fastest plan with
        // unlimited room.
        let mut rooms =
            [state_bytes(&graph, of_graph.alignment), ENDLESS].into_iter().filter(|more| *more > room);
        let needed = rooms.find_map(|room| self.tier_bytes(budget, room))?;
        let (place, flag) = match offload.tier {
            Tier::Disk => (format!("on the disk of {}", offload.folder.display()), "--disk-space"),
            Tier::Host => ("in the host's memory".to_owned(), "--host-memory"),
        };
        let stated = offload.budget.map(|_| flag);
        (needed > room).then_some(LackingRoom { place, room, needed, stated })
    }

    /// Bytes that the fastest plan takes on a tier with this much room.
    fn tier_bytes(&self, budget: &Budget, room: u64) -> Option<u64> {
        let &Programs { model, facts, options } = self;
        let roomy = |graph: &Graph| {
            let facts = facts(graph);
            Facts { link: facts.link.map(|link| Link { room, ..link }), ..facts }
        };
        let choice = found(Programs { model, facts: &roomy, options }, budget)?;
        let space = Space::of(0, choice.plan.schedules.values());
        Some(space.host + space.disk)
    }

    /// Whether there is another tier that was not offered. A GPU that is here offloads nothing yet, and neither do several
    /// ranks.
    fn offers_no_tier(&self) -> bool {
        let &Options { ref offload, device, .. } = self.options;
        offload.is_none() && device == DeviceKind::Cpu && self.options.world().is_none()
    }

    /// The same request with values and state that wait on another tier.
    fn offloaded(&self, budget: &Budget) -> Option<Alternative> {
        let &Programs { model, facts, options } = self;
        // A device that is described has a host beside it; the CPU has a disk.
        let (tier, outside) =
            if budget.ceiling.is_some() { (Tier::Host, 0) } else { (Tier::Disk, OUTSIDE_BYTES) };
        let folder = Path::new(".");
        let room = if tier == Tier::Disk { disk_room(folder, None).ok()? } else { u64::MAX };
        // Whether a plan fits does not depend on the rates of the link, so any rates will do.
        let link = Link { tier, room, block: BLOCK, out_rate: 1e9, in_rate: 1e9, latency: 1e-5, toll: 0.0 };
        let offload = Offload { tier, folder: folder.into(), budget: None, link: Some(link) };
        let relaxed = Options { offload: Some(offload), ..options.clone() };
        let budget = Budget { outside: budget.outside + outside, ..*budget };
        let offered = |graph: &Graph| {
            let facts = facts(graph);
            Facts { alignment: facts.alignment.max(BLOCK), link: Some(link), ..facts }
        };
        let place = if tier == Tier::Disk { "on the disk" } else { "in the host's memory" };
        fits_within(model, offered, &relaxed, &budget).unwrap_or(false).then(|| Alternative {
            flags: format!("--offload {}", tier.name()),
            why: format!("what is not at work waits {place}"),
        })
    }
}

/// The plan of an alternative, if one fits. Where none does, the smallest is not looked for.
fn found<M: Model, F: Fn(&Graph) -> Facts>(asked: Programs<'_, M, F>, budget: &Budget) -> Option<Choice> {
    let request = asked.options.request(budget);
    Searcher::once(asked).search_below(request, f64::MAX).ok().flatten()
}

/// Bytes of all state, each range as large as a device wants it.
fn state_bytes(graph: &Graph, alignment: u64) -> u64 {
    graph.states().iter().map(|state| (state.ty.bytes() as u64).next_multiple_of(alignment)).sum()
}

/// Bytes of all state and of all values of a graph.
fn everything(graph: &Graph) -> u64 {
    let values = graph.nodes().iter().flat_map(|node| &node.outputs);
    state_bytes(graph, 1) + values.map(|&value| graph.ty(value).bytes() as u64).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use plimsoll_graph::GraphError;
    use plimsoll_model::Preset;
    use plimsoll_plan::ProcessBytes;

    use super::*;
    use crate::LanguageModel;
    use crate::memory::BudgetOrigin;
    use crate::planning::plan_with;

    /// A chain that counts the nodes of the forward graphs that are built of it.
    struct Counted {
        model: LanguageModel,
        nodes: Cell<usize>,
    }

    impl Model for Counted {
        fn training(&self, rows: usize) -> Result<Graph, GraphError> {
            let graph = self.model.training(rows)?;
            self.nodes.set(self.nodes.get() + graph.nodes().len());
            Ok(graph)
        }
    }

    /// How many forward graphs a refusal builds, its ways out included.
    fn built(layers: usize) -> usize {
        let architecture = Preset::from_name("tiny").unwrap().model.with_layers(layers);
        let model = LanguageModel { architecture, seq_len: 32, generate: false, lora: None };
        let one = model.training(1).unwrap().nodes().len();
        let model = Counted { model, nodes: Cell::new(0) };
        let device = plimsoll_devices::cpu(1).unwrap();
        let facts = |graph: &Graph| device.facts(graph);
        let options = Options { global_batch: 8, ..Options::default() };
        let total = ProcessBytes((layers as u64) << 18);
        let budget = Budget { total, outside: 0, origin: BudgetOrigin::Stated, ceiling: None };
        let mut searcher = Searcher::once(Programs { model: &model, facts: &facts, options: &options });
        let error = plan_with(&mut searcher, budget).unwrap_err();
        assert!(matches!(error, TrainError::Budget { .. }), "{error}");
        model.nodes.get() / one
    }

    #[test]
    fn a_refusal_of_a_long_chain_builds_fewer_programs_than_one_of_a_short_chain() {
        let (short, long) = (built(12), built(500));
        assert!(long < short && long <= 16, "{short} programs for 12 layers, {long} for 500");
    }

    #[test]
    fn all_ways_are_planned_for_short_chains_and_one_for_the_longest() {
        assert!(worth_planning(0) > 100 && worth_planning(4_000) > 8);
        assert_eq!([20_000, 60_000, 1_000_000].map(worth_planning), [2, 1, 1]);
    }
}
