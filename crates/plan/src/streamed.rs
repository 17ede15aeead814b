//! How much state lives on another tier, where the device offers one: the placements, each with the limits and the
//! ways of rebuilding that go with it.
//!
//! Three numbers decide: what is rebuilt and what values wait, as in [`offload`](crate::offload), and how many bytes of
//! state are away ([`placement`](crate::placement)). More away leaves more of the arena to values, and costs its
//! transfers in every step. All combinations of fixed ladders, coarser than those of values alone, are timed without
//! a layout; then the fastest are laid out, one after the other, until nothing faster is left. So more memory is
//! never slower, and state leaves only where nothing that keeps it fits, or is as fast.

use crate::attempt::Attempt;
use crate::chain::ChainPlanner;
use crate::offload::{limits, virtual_rungs};
use crate::placement::{Placement, persistent_bytes, rungs};
use crate::plan::{Tiered, assemble_within};
use crate::problem::Scratch;
use crate::regions::Regions;
use crate::search::{SearchError, Tried};
use crate::sequence::{Sequence, micro_batch, update};
use crate::spill::Spiller;
use crate::strategy::Strategy;

/// Ratio of neighbouring limits.
const LIMIT_RUNG: f64 = 1.15;
/// Of the virtual budgets, every so manieth is a way of rebuilding.
const SKIP: usize = 4;
/// Parts into which the state is divided for the bound.
const PARTS: u64 = 64;

/// A way of rebuilding.
struct Source {
    strategy: Strategy,
    rung: Option<u64>,
    sequence: Sequence,
}

/// A combination that was timed.
struct Timed<'a> {
    seconds: f64,
    source: &'a Source,
    tiered: Tiered,
}

impl Attempt<'_> {
    /// Plans with state on the tier; nothing where there is none.
    pub(crate) fn streamed(&self, scratch: Scratch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        let program = &self.prepared.program;
        let sources = self.coarse_sources(scratch);
        let mut timed = Vec::new();
        for away in rungs(program)? {
            let placement = Placement::new(program, away)?;
            if let Some(room) = self.request.budget.checked_sub(placement.resident_bytes()) {
                self.time(scratch, &placement, (room, away), &sources, self.fastest(tried), &mut timed);
            }
        }
        timed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        for Timed { seconds, source, tiered } in timed {
            if seconds >= self.fastest(tried) {
                break;
            }
            let optimal = |rung| self.prepared.planner(scratch)?.regions(&program.train.graph, rung);
            let regions = source.rung.and_then(optimal);
            let regions = regions.unwrap_or_else(|| Regions::new(&program.train.graph, source.strategy));
            let plan = assemble_within(program, &regions, source.strategy, scratch, tiered)?;
            tried.push(Tried { tiered, ..self.entry(&plan, source.rung) });
        }
        Ok(())
    }

    /// Times one placement: at each limit the fastest way of rebuilding, if it is faster than `fastest`.
    fn time<'s>(
        &self,
        scratch: Scratch,
        placement: &Placement,
        (room, away): (u64, u64),
        sources: &'s [Source],
        fastest: f64,
        timed: &mut Vec<Timed<'s>>,
    ) {
        let (program, part) = (&self.prepared.program, &self.prepared.program.train);
        let spiller = |sequence: Sequence| {
            Spiller::new(&part.graph, &part.facts, scratch, placement.stream(&part.graph, sequence))
        };
        let Some(update) = spiller(update(&part.graph)) else { return };
        // Everything once, and the transfers of the update: often that settles it.
        let once = self.once_seconds(scratch) - self.step_seconds(0.0, scratch);
        if once + update.lower_bound(u64::MAX) >= fastest {
            return;
        }
        let passes = program.passes() * (self.request.global_batch / self.micro_batch);
        let sources: Vec<(&Source, Spiller)> =
            sources.iter().filter_map(|source| Some((source, spiller(source.sequence.clone())?))).collect();
        let least = sources.iter().map(|(_, spiller)| spiller.least_bytes()).min().unwrap_or(0);
        if least.max(update.least_bytes()) > room {
            return;
        }
        // Beyond what keeping everything takes, more brings nothing.
        let most = sources.iter().map(|(_, spiller)| spiller.most_bytes()).max().unwrap_or(0);
        let most = most.max(update.most_bytes()) as f64 * LIMIT_RUNG;
        for limit in limits(room.min(most as u64), least, LIMIT_RUNG) {
            let step = |micro_batch: f64, update: f64| micro_batch * passes as f64 + update;
            let update_bound = update.lower_bound(limit);
            let Some(update) = update.within(limit) else { continue };
            let hopeful = sources
                .iter()
                .filter(|(_, spiller)| step(spiller.lower_bound(limit), update_bound) < fastest);
            let all = hopeful.filter_map(|&(source, ref spiller)| {
                let seconds = step(spiller.within(limit)?.seconds, update.seconds);
                Some(Timed { seconds, source, tiered: Tiered { limit: Some(limit), away } })
            });
            timed.extend(all.min_by(|a, b| a.seconds.total_cmp(&b.seconds)));
        }
    }

    /// Ways of rebuilding, from nothing to as much as ever fits, or the one that is fixed.
    fn coarse_sources(&self, scratch: Scratch) -> Vec<Source> {
        let graph = &self.prepared.program.train.graph;
        let named = |strategy| {
            let sequence = micro_batch(graph, &Regions::new(graph, strategy));
            Source { strategy, rung: None, sequence }
        };
        if let Some(fixed) = self.request.strategy {
            return vec![named(fixed)];
        }
        let Some(planner) = self.prepared.planner(scratch) else {
            return Strategy::LADDER.into_iter().map(named).collect();
        };
        let optimal = |rung| {
            let sequence = micro_batch(graph, &planner.regions(graph, rung)?);
            Some(Source { strategy: Strategy::Auto, rung: Some(rung), sequence })
        };
        // From the least that works upwards, so that it is among them.
        let rungs = virtual_rungs(planner).into_iter().rev().step_by(SKIP);
        [named(Strategy::None)].into_iter().chain(rungs.filter_map(optimal)).collect()
    }

    /// No plan of this micro-batch is faster in the request's budget, wherever its state is: what of that is not there
    /// at some moment comes in at least once a step.
    pub(crate) fn forced_seconds(&self, planner: &ChainPlanner) -> Result<f64, SearchError> {
        let program = &self.prepared.program;
        let link = program.train.facts.link.as_ref();
        let here = persistent_bytes(program, 0)?;
        let most = here - persistent_bytes(program, u64::MAX)?;
        let forced = |away: u64| {
            let bytes = self.request.budget.saturating_add(away).saturating_sub(here);
            self.step_seconds(planner.lower_bound(bytes, link), Scratch::Best)
        };
        let part = |index: u64| most / PARTS * index + most % PARTS * index / PARTS;
        let fetched = |index: u64| link.map_or(0.0, |link| part(index) as f64 / link.in_rate);
        let bounds = (0..PARTS).map(|index| forced(part(index + 1)).max(fetched(index)));
        Ok(if most == 0 { forced(0) } else { bounds.fold(f64::INFINITY, f64::min) })
    }
}

#[cfg(test)]
mod tests;
