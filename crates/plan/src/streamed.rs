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
use crate::layout::{Effort, solve};
use crate::liveness::{Gradients, draft};
use crate::offload::{Source, limits};
use crate::placement::{Placement, persistent_bytes, rungs};
use crate::plan::{Costed, StateRange, Tiered, assemble_within};
use crate::planner::Planner;
use crate::problem::Scratch;
use crate::schedule::Purpose;
use crate::search::{SearchError, Tried};
use crate::sequence::{Sequence, update};
use crate::spill::Spiller;

/// Ratio of neighbouring limits.
const LIMIT_RUNG: f64 = 1.2;
/// Of the virtual budgets, every so manieth is a way of rebuilding.
const SKIP: usize = 5;
/// A layout that is too large by this factor is not worth the search for a better one.
const HOPE: f64 = 1.08;
/// Parts into which the state is divided for the bound.
const PARTS: u64 = 64;

/// Where some state is away.
struct Away {
    bytes: u64,
    placement: Placement,
    /// What is left of the budget.
    room: u64,
    /// Least time in which the weights that are away come in, once each.
    weights_seconds: f64,
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
    /// A bound from values and weights each by themselves, whatever the limit.
    Apart,
    /// A bound for this limit.
    Bound(u64),
    /// The time with this limit.
    Time(u64),
}

impl Attempt<'_> {
    /// Plans with state on the tier; nothing where there is none.
    pub(crate) fn streamed(
        &self,
        scratch: Scratch,
        sources: &[Source],
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        let program = &self.prepared.program;
        let (places, sources) = (self.places(scratch)?, coarse(sources));
        let pairs = (0..places.len()).flat_map(|away| (0..sources.len()).map(move |source| (away, source)));
        let first = |(away, source): (usize, usize)| {
            let (place, values) = (&places[away], &sources[source].spiller);
            let micro_batch = values.lower_bound(place.room).max(place.weights_seconds);
            let seconds = self.step_of(micro_batch, place.update.lower_bound(u64::MAX));
            Candidate { seconds, away, source, known: Known::Apart }
        };
        let mut open: Vec<Candidate> = pairs.map(first).collect();
        // The spiller that was asked last: neighbours are asked one after another.
        let mut asked: Option<(usize, usize, Spiller)> = None;
        while let Some(candidate) = pop(&mut open) {
            let fastest = self.fastest(tried);
            if candidate.seconds >= fastest {
                break;
            }
            let (place, source) = (&places[candidate.away], sources[candidate.source]);
            let pair = (candidate.away, candidate.source);
            if asked.as_ref().is_none_or(|(away, source, _)| (*away, *source) != pair) {
                let new = self.spiller(scratch, &place.placement, source.spiller.sequence());
                asked = new.map(|new| (pair.0, pair.1, new));
            }
            let Some((_, _, spiller)) = &asked else { continue };
            let Known::Time(limit) = candidate.known else {
                let closer = self.closer(place, spiller, candidate);
                open.extend(closer.into_iter().filter(|candidate| candidate.seconds < fastest));
                continue;
            };
            let sequence = spiller.within(limit);
            if sequence.is_some_and(|sequence| self.may_fit(scratch, &sequence, place.room)) {
                let (tiered, strategy) = (Tiered { limit: Some(limit), away: place.bytes }, source.strategy);
                let plan = assemble_within(program, &source.order, strategy, scratch, tiered)?;
                tried.push(Tried { tiered, ..self.entry(&plan, source.rung) });
            }
        }
        Ok(())
    }

    /// What a closer look makes of a candidate: one for each limit, or the one with its time.
    fn closer(&self, place: &Away, spiller: &Spiller, candidate: Candidate) -> Vec<Candidate> {
        let Known::Bound(limit) = candidate.known else {
            let bound = |limit| {
                let seconds = self.step_of(spiller.lower_bound(limit), place.update.lower_bound(limit));
                Candidate { seconds, known: Known::Bound(limit), ..candidate }
            };
            return limits_of(spiller, place).map(bound).collect();
        };
        let timed = spiller.seconds_within(limit).zip(place.update.seconds_within(limit));
        let known = Known::Time(limit);
        let candidate =
            timed.map(|(pass, update)| Candidate { seconds: self.step_of(pass, update), known, ..candidate });
        candidate.into_iter().collect()
    }

    /// Time of a step whose micro-batches take `micro_batch` seconds in one pass, and whose update takes `update`.
    fn step_of(&self, micro_batch: f64, update: f64) -> f64 {
        micro_batch * self.passes() + update
    }

    /// The placements in which state alone fits.
    fn places(&self, scratch: Scratch) -> Result<Vec<Away>, SearchError> {
        let program = &self.prepared.program;
        let in_rate = program.train.facts.link.map_or(f64::INFINITY, |link| link.in_rate);
        let mut places = Vec::new();
        for bytes in rungs(program)? {
            let placement = Placement::new(program, bytes)?;
            let Some(room) = self.request.budget.checked_sub(placement.resident_bytes()) else { continue };
            let update = self.spiller(scratch, &placement, &update(&program.train.graph));
            let Some(update) = update.filter(|update| update.least_bytes() <= room) else { continue };
            let weights_seconds = placement.bytes_away(Purpose::Weights) as f64 / in_rate;
            places.push(Away { bytes, placement, room, weights_seconds, update });
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

    /// No plan of this micro-batch is faster in the request's budget, wherever its state is: what of that is not there
    /// at some moment comes in at least once a step, but for gradients, which may begin afterwards.
    pub(crate) fn forced_seconds(&self, planner: &Planner) -> Result<f64, SearchError> {
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

/// Every named way of rebuilding, and some of the others, from the least that works upwards, so that it is among them.
fn coarse(sources: &[Source]) -> Vec<&Source> {
    let (named, optimal): (Vec<&Source>, Vec<&Source>) =
        sources.iter().partition(|source| source.rung.is_none());
    named.into_iter().chain(optimal.into_iter().rev().step_by(SKIP)).collect()
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
