//! The fastest of what is on offer with another tier, where the device has one.
//!
//! There are thousands of combinations of a place for the state, a way of rebuilding and a limit
//! (`offload`), so the best comes first: each is known by a bound, then by better ones, then by its
//! time and at last by its layout, and only the one with the least figure is looked at more closely:
//!
//! ```text
//! what is rebuilt takes ▶ its order takes ▶ with this state away and this limit ▶ its time ▶ does it fit?
//! ```
//!
//! The first that fits is the fastest. What sends nothing away and fits is known before, so state and values leave only
//! where nothing that keeps them is as fast.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::error::SearchError;
use super::micro_batch::MicroBatch;
use super::tried::Tried;
use crate::bytes::TransientBytes;
use crate::device::Scratch;
use crate::layout::{Effort, fits, slots_of};
use crate::offload::{Found, Limit, Offers, Ordered, Place, Source, Spiller, streamed};
use crate::plan::{Tiered, draft};
use crate::program::Costed;

/// A layout that is too large by this factor is not worth the search for a better one.
const HOPE: f64 = 1.05;
/// Orders with state away that are held for the next question about them.
const HELD: usize = 12;

/// Combinations with what is known of them, those with the least figure first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    /// Time of a step, or less.
    seconds: f64,
    place: usize,
    source: usize,
    known: Known,
}

/// How much is known.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Known {
    /// What is rebuilt.
    Source,
    /// The order of runs with all state in the arena.
    Order,
    /// A bound for this limit.
    Bound(u64),
    /// The time with this limit.
    Time(u64),
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    /// The greatest is looked at first: the one with the least figure, then the one of which the most is known.
    fn cmp(&self, other: &Candidate) -> Ordering {
        let known = self.known.partial_cmp(&other.known).unwrap_or(Ordering::Equal);
        let place = (other.place, other.source).cmp(&(self.place, self.source));
        other.seconds.total_cmp(&self.seconds).then(known).then(place)
    }
}

/// A best-first search among the candidates of one micro-batch.
struct BestFirst<'a> {
    of: MicroBatch<'a>,
    scratch: Scratch,
    offers: &'a Offers,
    /// Time of the update with all state in the arena.
    update_seconds: f64,
    /// The orders with state away that were asked for last.
    held: Vec<(usize, usize, Spiller)>,
}

/// Plans of a micro-batch that send values or state away; nothing where the device has nowhere to send them.
pub(super) fn offloaded(of: MicroBatch, scratch: Scratch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    let program = of.program();
    // Nothing is sent away to spare memory that is there.
    if program.train.facts.link.is_none() || of.once_seconds(scratch) >= of.fastest(tried) {
        return Ok(());
    }
    let fixed = of.request.strategy.map(|strategy| Source::fixed(program, scratch, strategy));
    let fixed = fixed.map(|source| Offers::new(program, scratch, source)).transpose()?;
    let offers = match &fixed {
        Some(offers) => offers,
        None => of.tables.offers(scratch)?,
    };
    BestFirst::new(of, scratch, offers).search(tried)
}

/// About what a micro-batch will take, to look at the most promising first: its bound, or with a tier that is needed the
/// time of keeping everything.
pub(super) fn promise(of: MicroBatch, bound: f64) -> Result<f64, SearchError> {
    let optimum = of.tables.optimum(Scratch::Best);
    if of.program().train.facts.link.is_none()
        || optimum.is_some_and(|optimum| optimum.keep_all_bytes() <= of.room())
    {
        return Ok(bound);
    }
    Ok(BestFirst::new(of, Scratch::Best, of.tables.offers(Scratch::Best)?).promise())
}

impl<'a> BestFirst<'a> {
    fn new(of: MicroBatch<'a>, scratch: Scratch, offers: &'a Offers) -> BestFirst<'a> {
        let update_seconds = of.program().update_seconds(scratch);
        BestFirst { of, scratch, offers, update_seconds, held: Vec::new() }
    }

    /// Time of the first way of rebuilding, which rebuilds nothing, at the place and with the highest limit that suit
    /// it best.
    fn promise(&mut self) -> f64 {
        let mut best = f64::INFINITY;
        let fits = |(_, place): &(usize, &Place)| place.resident <= self.of.request.budget;
        let places: Vec<(usize, &Place)> = self.offers.places.iter().enumerate().filter(fits).collect();
        for (place, _) in places {
            let candidate = Candidate { seconds: 0.0, place, source: 0, known: Known::Order };
            let highest = self.limited(candidate).into_iter().next();
            if let Some(candidate) = highest
                && let Known::Bound(limit) = candidate.known
                && let Some(timed) = self.timed(candidate, limit, best)
            {
                best = best.min(timed.seconds);
            }
        }
        best
    }

    fn search(&mut self, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        let mut open = BinaryHeap::new();
        for (place, at) in self.offers.places.iter().enumerate() {
            if at.least_bytes() <= self.of.request.budget {
                let least = at.update_least(self.update_seconds);
                let first = |(source, of): (usize, &Source)| {
                    let pass = of.least_seconds.max(at.weights_seconds);
                    let seconds = self.step_of(pass, least);
                    Candidate { seconds, place, source, known: Known::Source }
                };
                let sources = self.offers.sources.iter().enumerate();
                open.extend(sources.filter(|(_, of)| place == 0 || of.goes_with_away).map(first));
            }
        }
        // Those whose time is known.
        let mut timed = BinaryHeap::new();
        loop {
            let next = if timed.peek() > open.peek() { timed.pop() } else { open.pop() };
            let Some(candidate) = next else { break };
            let fastest = self.of.fastest(tried);
            if candidate.seconds >= fastest {
                break;
            }
            match candidate.known {
                Known::Time(limit) => tried.extend(self.laid_out(candidate, limit)?),
                Known::Bound(limit) => {
                    let best = timed.peek().map_or(fastest, |best: &Candidate| best.seconds.min(fastest));
                    let closer = self.timed(candidate, limit, best);
                    let known = closer.filter(|closer| closer.known == Known::Time(limit));
                    if known.is_some() { timed.extend(known) } else { open.extend(closer) }
                }
                Known::Order => open.extend(self.limited(candidate)),
                Known::Source => open.extend(self.ordered(candidate)),
            }
        }
        Ok(())
    }

    fn part(&self) -> &'a Costed {
        &self.of.program().train
    }

    /// Time of a step whose micro-batches take `pass` seconds in one pass, and whose update takes `update`.
    fn step_of(&self, pass: f64, update: f64) -> f64 {
        pass * self.of.passes() + update
    }

    /// What is left of the budget at a place.
    fn room(&self, place: &Place) -> u64 {
        self.of.request.budget.saturating_sub(place.resident)
    }

    fn order(&self, source: usize) -> Option<&Ordered> {
        let (tables, scratch) = (self.of.tables, self.scratch);
        self.offers.sources[source].order(&tables.program.train, scratch, || tables.optimum(scratch))
    }

    /// The candidate with its order; none where that cannot fit.
    fn ordered(&self, candidate: Candidate) -> Option<Candidate> {
        let place = &self.offers.places[candidate.place];
        let spiller = &self.order(candidate.source)?.spiller;
        let pass = spiller.lower_bound(self.room(place)).max(place.weights_seconds);
        let seconds = self.step_of(pass, place.update_least(self.update_seconds));
        Some(Candidate { seconds, known: Known::Order, ..candidate })
    }

    /// One candidate for each limit that leaves what is there inside the budget.
    fn limited(&mut self, candidate: Candidate) -> Vec<Candidate> {
        let pair = (candidate.place, candidate.source);
        let place = &self.offers.places[candidate.place];
        let room = self.room(place);
        if !self.offers.limits.borrow().contains_key(&pair) {
            let limits = self.asked(pair, |spiller| place.limits(spiller));
            self.offers.limits.borrow_mut().insert(pair, limits.unwrap_or_default());
        }
        let known = self.offers.limits.borrow();
        let inside = known[&pair].iter().filter(|limit| limit.bytes.max(limit.least_bytes) <= room);
        let update = place.update_least(self.update_seconds);
        let bound = |limit: &Limit| Candidate {
            seconds: self.step_of(limit.pass_seconds, update),
            known: Known::Bound(limit.bytes),
            ..candidate
        };
        inside.map(bound).collect()
    }

    /// The candidate with its time, or with a better bound where that is no less than `best`; none where the tier has no
    /// room.
    fn timed(&mut self, candidate: Candidate, limit: u64, best: f64) -> Option<Candidate> {
        let pair = (candidate.place, candidate.source);
        let update = self.offers.places[candidate.place].update_within(limit, self.update_seconds)?;
        let mut found = self.found(candidate, limit);
        found.least_seconds = found.least_seconds.max(self.pass_bound(pair, limit));
        let enough = (best - update) / self.of.passes();
        if found.seconds.is_none() && found.least_seconds < enough {
            let pass = self.asked(pair, |spiller| spiller.seconds_below(limit, enough)).flatten()?;
            found.least_seconds = pass;
            found.seconds = (pass < enough).then_some((pass, update));
            self.keep(candidate, limit, found);
        }
        if let Some((pass, update)) = found.seconds {
            let seconds = self.step_of(pass, update);
            return Some(Candidate { seconds, known: Known::Time(limit), ..candidate });
        }
        // However the sum is rounded, those whose time is known come first.
        let seconds = self.step_of(found.least_seconds, update).max(best);
        Some(Candidate { seconds, ..candidate })
    }

    /// The bound of a micro-batch for a limit.
    fn pass_bound(&self, pair: (usize, usize), limit: u64) -> f64 {
        let limits = self.offers.limits.borrow();
        let known = limits.get(&pair).and_then(|limits| limits.iter().find(|known| known.bytes == limit));
        known.map_or(0.0, |known| known.pass_seconds)
    }

    /// The candidate as a plan, if it fits.
    fn laid_out(&mut self, candidate: Candidate, limit: u64) -> Result<Option<Tried>, SearchError> {
        let budget = self.of.request.budget;
        let mut found = self.found(candidate, limit);
        if budget <= found.fails {
            return Ok(None);
        }
        if found.fits.is_none_or(|bytes| bytes > budget) {
            self.lay_out(candidate, limit, &mut found)?;
            self.keep(candidate, limit, found);
        }
        let fits = found.fits.filter(|&bytes| bytes <= budget);
        let Some((arena_bytes, (pass, update))) = fits.zip(found.seconds) else { return Ok(None) };
        let (place, source) = (&self.offers.places[candidate.place], &self.offers.sources[candidate.source]);
        Ok(Some(Tried {
            micro_batch: self.of.rows,
            tiled: self.of.tiled,
            strategy: source.strategy,
            scratch: self.scratch,
            arena_bytes,
            step_seconds: self.step_of(pass, update),
            rung: source.rung,
            tiered: Tiered { limit: Some(TransientBytes(limit)), away: place.away },
        }))
    }

    /// Finds out whether the candidate fits.
    fn lay_out(&mut self, candidate: Candidate, limit: u64, found: &mut Found) -> Result<(), SearchError> {
        let budget = self.of.request.budget;
        found.fails = budget;
        let place = &self.offers.places[candidate.place];
        let pair = (candidate.place, candidate.source);
        let Some(sequence) = self.asked(pair, |spiller| spiller.within(limit)).flatten() else {
            return Ok(());
        };
        let Costed { graph, facts } = self.part();
        let slots = slots_of(graph, facts, self.scratch, &sequence);
        // What is called the smallest where nothing fits must be found where it does.
        let ends = candidate.place == 0 || candidate.place + 1 == self.offers.places.len();
        let smallest = limit == 0 && ends && self.offers.sources[candidate.source].rung.is_none();
        let (hope, effort) = if smallest { (f64::INFINITY, Effort::PLAN) } else { (HOPE, Effort::TRIAL) };
        let Some(peak) = fits(&slots, self.room(place), hope, effort) else { return Ok(()) };
        let arena_bytes = if place.away == 0 {
            TransientBytes(peak).max(self.of.tables.beside_bytes(self.scratch)).arena(place.resident).0
        } else {
            // What streams state beside the micro-batch has to fit too, and may take longer for it.
            let Some(Ordered { order, .. }) = self.order(candidate.source) else { return Ok(()) };
            let (program, tiered) =
                (self.of.program(), Tiered { limit: Some(TransientBytes(limit)), away: place.away });
            let strategy = self.offers.sources[candidate.source].strategy;
            let plan = draft(program, order, strategy, self.scratch, tiered)?;
            let pass_seconds = plan.micro_batch_seconds / program.passes() as f64;
            found.seconds = Some((pass_seconds, plan.update_seconds));
            plan.arena_bytes
        };
        (found.fits, found.fails) = (Some(arena_bytes), arena_bytes.saturating_sub(1));
        Ok(())
    }

    fn found(&self, candidate: Candidate, limit: u64) -> Found {
        let key = (candidate.place, candidate.source, limit);
        self.offers.found.borrow().get(&key).copied().unwrap_or_default()
    }

    fn keep(&self, candidate: Candidate, limit: u64, found: Found) {
        self.offers.found.borrow_mut().insert((candidate.place, candidate.source, limit), found);
    }

    /// What `ask` makes of the order with the state of a place away.
    fn asked<T>(&mut self, (place, source): (usize, usize), ask: impl FnOnce(&Spiller) -> T) -> Option<T> {
        let offers = self.offers;
        let (tables, scratch) = (self.of.tables, self.scratch);
        let ordered =
            offers.sources[source].order(&tables.program.train, scratch, || tables.optimum(scratch));
        let spiller = &ordered?.spiller;
        if place == 0 {
            return Some(ask(spiller));
        }
        if let Some(at) = self.held.iter().position(|&(p, s, _)| (p, s) == (place, source)) {
            // The one asked last stays longest.
            self.held[at..].rotate_left(1);
        } else {
            let new =
                streamed(self.part(), self.scratch, &offers.places[place].placement, spiller.sequence())?;
            if self.held.len() == HELD {
                self.held.remove(0);
            }
            self.held.push((place, source, new));
        }
        self.held.last().map(|(_, _, spiller)| ask(spiller))
    }
}

#[cfg(test)]
mod tests;
