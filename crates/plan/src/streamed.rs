//! How much state lives on another tier, where the device offers one: the placements, each with the limits and the
//! ways of rebuilding that go with it.
//!
//! Three numbers decide: what is rebuilt and what values wait, as in [`offload`](crate::offload), and how many bytes of
//! state are away ([`placement`](crate::placement)). More away leaves more of the arena to values, and costs its
//! transfers in every step. Each comes from a fixed ladder, coarser than those of values alone, so more memory is
//! never slower, and state leaves only where nothing that keeps it fits, or is as fast.
//!
//! There are a thousand combinations, so the best comes first: each is known by a bound, then by a better one, then by
//! its time and at last by its layout, and only the one with the least figure is looked at more closely. The
//! first that was laid out and fits is the fastest.

use crate::attempt::Attempt;
use crate::chain::ChainPlanner;
use crate::layout::{Effort, solve};
use crate::liveness::{Gradients, draft};
use crate::offload::{limits, virtual_rungs};
use crate::placement::{Placement, persistent_bytes, rungs};
use crate::plan::{Costed, StateRange, Tiered, assemble_within};
use crate::problem::Scratch;
use crate::regions::Regions;
use crate::schedule::Purpose;
use crate::search::{SearchError, Tried};
use crate::sequence::{Sequence, micro_batch, update};
use crate::spill::Spiller;
use crate::strategy::Strategy;

/// Ratio of neighbouring limits.
const LIMIT_RUNG: f64 = 1.2;
/// Of the virtual budgets, every so manieth is a way of rebuilding.
const SKIP: usize = 5;
/// A layout that is too large by this factor is not worth the search for a better one.
const HOPE: f64 = 1.08;
/// Parts into which the state is divided for the bound.
const PARTS: u64 = 64;

/// A way of rebuilding.
struct Source {
    strategy: Strategy,
    rung: Option<u64>,
    /// Time of all runs.
    busy_seconds: f64,
    sequence: Sequence,
}

/// Where some state is away.
struct Away {
    bytes: u64,
    placement: Placement,
    /// What is left of the budget.
    room: u64,
    update: Spiller,
}

/// A combination with what is known of it.
#[derive(Clone, Copy)]
struct Candidate {
    /// Time of a step, or less.
    seconds: f64,
    away: usize,
    source: usize,
    known: Known,
}

/// How much is known.
#[derive(Clone, Copy)]
enum Known {
    /// The time when nothing stands still in a micro-batch, whatever its limit.
    Busy,
    /// A bound for this limit.
    Bound(u64),
    /// The time with this limit.
    Time(u64),
}

impl Attempt<'_> {
    /// Plans with state on the tier; nothing where there is none.
    pub(crate) fn streamed(&self, scratch: Scratch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        let program = &self.prepared.program;
        let (places, sources) = (self.places(scratch)?, self.coarse_sources(scratch));
        let passes = program.passes() * (self.request.global_batch / self.micro_batch);
        let step = |micro_batch: f64, update: f64| micro_batch * passes as f64 + update;
        let mut open = Vec::new();
        for (away, place) in places.iter().enumerate() {
            let update = place.update.lower_bound(u64::MAX);
            open.extend(sources.iter().enumerate().map(|(source, Source { busy_seconds, .. })| Candidate {
                seconds: step(*busy_seconds, update),
                away,
                source,
                known: Known::Busy,
            }));
        }
        // The spiller that was asked last: neighbours are asked one after another.
        let mut asked: Option<(usize, usize, Spiller)> = None;
        while let Some(candidate) = pop(&mut open) {
            let Candidate { seconds, away, source: index, known } = candidate;
            if seconds >= self.fastest(tried) {
                break;
            }
            let (place, source) = (&places[away], &sources[index]);
            if let Known::Time(limit) = known {
                let tiered = Tiered { limit: Some(limit), away: place.bytes };
                let plan = assemble_within(
                    program,
                    &self.regions(source, scratch),
                    source.strategy,
                    scratch,
                    tiered,
                )?;
                tried.push(Tried { tiered, ..self.entry(&plan, source.rung) });
                continue;
            }
            if asked.as_ref().is_none_or(|(a, s, _)| (*a, *s) != (away, index)) {
                asked =
                    self.spiller(scratch, &place.placement, &source.sequence).map(|new| (away, index, new));
            }
            let Some((_, _, spiller)) = &asked else { return Ok(()) };
            match known {
                Known::Bound(limit) => {
                    if let (Some(pass), Some(update)) = (spiller.within(limit), place.update.within(limit)) {
                        let (seconds, known) = (step(pass.seconds, update.seconds), Known::Time(limit));
                        if seconds < self.fastest(tried) && self.may_fit(scratch, &pass.sequence, place.room)
                        {
                            open.push(Candidate { seconds, known, ..candidate });
                        }
                    }
                }
                _ => open.extend(limits_of(spiller, place).map(|limit| {
                    let seconds = step(spiller.lower_bound(limit), place.update.lower_bound(limit));
                    Candidate { seconds, known: Known::Bound(limit), ..candidate }
                })),
            }
        }
        Ok(())
    }

    /// The placements in which state alone fits.
    fn places(&self, scratch: Scratch) -> Result<Vec<Away>, SearchError> {
        let program = &self.prepared.program;
        let mut places = Vec::new();
        for bytes in rungs(program)? {
            let placement = Placement::new(program, bytes)?;
            let Some(room) = self.request.budget.checked_sub(placement.resident_bytes()) else { continue };
            let update = self.spiller(scratch, &placement, &update(&program.train.graph));
            let fits = |update: &Spiller| update.least_bytes() <= room;
            places.extend(update.filter(fits).map(|update| Away { bytes, placement, room, update }));
        }
        Ok(places)
    }

    fn spiller(&self, scratch: Scratch, placement: &Placement, sequence: &Sequence) -> Option<Spiller> {
        let part = &self.prepared.program.train;
        Spiller::new(&part.graph, &part.facts, scratch, placement.stream(&part.graph, sequence.clone()))
    }

    /// Whether a search could find a layout that fits: the first at hand is not much too large.
    fn may_fit(&self, scratch: Scratch, sequence: &Sequence, room: u64) -> bool {
        let Costed { graph, facts } = &self.prepared.program.train;
        let slots = draft("", graph, sequence, facts, scratch, Gradients::Add).slots;
        solve(&slots, Some(room), Effort::NONE).peak as f64 <= room as f64 * HOPE
    }

    fn regions(&self, source: &Source, scratch: Scratch) -> Regions {
        let graph = &self.prepared.program.train.graph;
        let optimal = |rung| self.prepared.planner(scratch)?.regions(graph, rung);
        source.rung.and_then(optimal).unwrap_or_else(|| Regions::new(graph, source.strategy))
    }

    /// Ways of rebuilding, from nothing to as much as ever fits, or the one that is fixed.
    fn coarse_sources(&self, scratch: Scratch) -> Vec<Source> {
        let Costed { graph, facts } = &self.prepared.program.train;
        let source = |strategy, rung, sequence: Sequence| {
            let runs = sequence.executions.iter();
            let busy_seconds = runs.map(|run| facts.nodes[run.node.index()].seconds_with(scratch)).sum();
            Source { strategy, rung, busy_seconds, sequence }
        };
        let named = |strategy| source(strategy, None, micro_batch(graph, &Regions::new(graph, strategy)));
        if let Some(fixed) = self.request.strategy {
            return vec![named(fixed)];
        }
        let Some(planner) = self.prepared.planner(scratch) else {
            return Strategy::LADDER.into_iter().map(named).collect();
        };
        let optimal = |rung| {
            let sequence = micro_batch(graph, &planner.regions(graph, rung)?);
            Some(source(Strategy::Auto, Some(rung), sequence))
        };
        // From the least that works upwards, so that it is among them.
        let rungs = virtual_rungs(planner).into_iter().rev().step_by(SKIP);
        [named(Strategy::None)].into_iter().chain(rungs.filter_map(optimal)).collect()
    }

    /// No plan of this micro-batch is faster in the request's budget, wherever its state is: what of that is not there
    /// at some moment comes in at least once a step, but for gradients, which may begin afterwards.
    pub(crate) fn forced_seconds(&self, planner: &ChainPlanner) -> Result<f64, SearchError> {
        let program = &self.prepared.program;
        let link = program.train.facts.link.as_ref();
        let here = persistent_bytes(program, 0)?;
        let away = Placement::new(program, u64::MAX)?.states.into_iter().filter(|range| range.tier.is_some());
        let (gradients, others): (Vec<StateRange>, Vec<StateRange>) =
            away.partition(|range| range.purpose == Purpose::Gradients);
        let bytes = |ranges: &[StateRange]| ranges.iter().map(|range| range.bytes).sum::<u64>();
        let (begun, fetched) = (bytes(&gradients), bytes(&others));
        let forced = |away: u64| {
            let bytes = self.request.budget.saturating_add(away).saturating_sub(here);
            self.step_seconds(planner.lower_bound(bytes, link), Scratch::Best)
        };
        let part = |index: u64| fetched / PARTS * index + fetched % PARTS * index / PARTS;
        let seconds = |index: u64| link.map_or(0.0, |link| part(index) as f64 / link.in_rate);
        let bounds = (0..PARTS).map(|index| forced(begun + part(index + 1)).max(seconds(index)));
        Ok(if fetched == 0 { forced(begun) } else { bounds.fold(f64::INFINITY, f64::min) })
    }
}

/// Takes out the candidate with the least figure, the first of equals.
fn pop(open: &mut Vec<Candidate>) -> Option<Candidate> {
    let figures = open.iter().enumerate().map(|(index, candidate)| (candidate.seconds, index));
    let (_, index) = figures.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
    Some(open.swap_remove(index))
}

/// The limits to try: none beyond what keeping everything takes, which more brings nothing.
fn limits_of(spiller: &Spiller, place: &Away) -> impl Iterator<Item = u64> + use<> {
    let most = spiller.most_bytes().max(place.update.most_bytes()) as f64 * LIMIT_RUNG;
    let (room, least) = (place.room, spiller.least_bytes());
    limits(room.min(most as u64), least, LIMIT_RUNG).take_while(move |_| least <= room)
}

#[cfg(test)]
mod tests;
