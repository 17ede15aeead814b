//! Best-first search for the fastest candidate that uses another tier, where the device has one.
//!
//! There are thousands of combinations of a residency, a recomputation and a limit (`offload`). Each is first known by
//! a bound, then by closer bounds, then by its time and at last by its layout. Only the one with the least figure is
//! refined:
//!
//! ```text
//! bound of the recomputation ▶ of its order ▶ with this residency and limit ▶ the time ▶ does it fit?
//! ```
//!
//! The first that fits is the fastest. Plans that send nothing away are tried before, so state and values leave only where
//! no plan that keeps them is as fast.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::error::SearchError;
use super::micro_batch::MicroBatch;
use super::tried::Tried;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::Scratch;
use crate::layout::{Effort, fits, slots_of};
use crate::offload::{Candidates, Found, Limit, Ordered, Recomputation, ResidencyOption, Transfers};
use crate::plan::{Tiered, closed_draft};
use crate::program::Costed;

/// If a layout is too large by this factor, no better one is searched for.
const HOPE: f64 = 1.05;
/// The most orders with state away that are kept for later requests; fewer for a long program, whose orders are large.
const HELD: usize = 12;
const HELD_LONG: usize = 6;

/// Combinations with their figures, the least figure first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    /// Time of a step, or less.
    seconds: f64,
    residency: usize,
    recomputation: usize,
    known: Known,
}

/// How much is known.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Known {
    /// A lower bound, before an order of runs is made.
    Recomputation,
    /// A lower bound from the order of runs with all state in the arena.
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
    /// The greatest is examined first: the one with the least figure, and among equals the one known most closely.
    fn cmp(&self, other: &Candidate) -> Ordering {
        let known = self.known.partial_cmp(&other.known).unwrap_or(Ordering::Equal);
        let residency = (other.residency, other.recomputation).cmp(&(self.residency, self.recomputation));
        other.seconds.total_cmp(&self.seconds).then(known).then(residency)
    }
}

/// A best-first search among the candidates of one micro-batch.
struct BestFirst<'a> {
    of: MicroBatch<'a>,
    scratch: Scratch,
    candidates: &'a Candidates,
    /// Time of the update with all state in the arena.
    update_seconds: f64,
    /// The orders with state away that were used last.
    held: Vec<(usize, usize, Transfers)>,
}

/// Plans of a micro-batch that offload values or state; none if the device has no tier.
pub(super) fn offloaded(of: MicroBatch, scratch: Scratch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    let program = of.program();
    // Where memory suffices, no value is sent away.
    if program.train.facts.link.is_none() || of.once_seconds(scratch) >= of.fastest(tried) {
        return Ok(());
    }
    let fixed = of.request.strategy.map(|strategy| Recomputation::fixed(program, scratch, strategy));
    let fixed = fixed.map(|recomputations| of.tables.candidates_with(scratch, recomputations)).transpose()?;
    let candidates = match &fixed {
        Some(candidates) => candidates,
        None => of.tables.candidates(scratch)?,
    };
    BestFirst::new(of, scratch, candidates).search(tried)
}

/// An estimate of a micro-batch's time, so that the most promising is tried first: its bound, or if a tier is needed
/// the time of keeping everything.
pub(super) fn promise(of: MicroBatch, bound: f64) -> Result<f64, SearchError> {
    let optimum = of.tables.optimum(Scratch::Best);
    if of.program().train.facts.link.is_none()
        || optimum.is_some_and(|optimum| optimum.keep_all_bytes() <= of.room())
    {
        return Ok(bound);
    }
    Ok(BestFirst::new(of, Scratch::Best, of.tables.candidates(Scratch::Best)?).promise())
}

impl<'a> BestFirst<'a> {
    fn new(of: MicroBatch<'a>, scratch: Scratch, candidates: &'a Candidates) -> BestFirst<'a> {
        let update_seconds = of.tables.update_seconds(scratch);
        BestFirst { of, scratch, candidates, update_seconds, held: Vec::new() }
    }

    /// Time of the first recomputation, which recomputes nothing, with the residency and the highest limit that suit it
    /// best.
    fn promise(&mut self) -> f64 {
        let mut best = f64::INFINITY;
        let fits = |(_, residency): &(usize, &ResidencyOption)| {
            ArenaBytes(residency.resident) <= self.of.request.budget
        };
        let residencies: Vec<(usize, &ResidencyOption)> =
            self.candidates.residencies.iter().enumerate().filter(fits).collect();
        for (residency, _) in residencies {
            let candidate = Candidate { seconds: 0.0, residency, recomputation: 0, known: Known::Order };
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
        for (residency, at) in self.candidates.residencies.iter().enumerate() {
            if at.least_bytes() <= self.of.request.budget {
                let least = at.update_least(self.update_seconds);
                let first = |(recomputation, of): (usize, &Recomputation)| {
                    let pass = of.least_seconds.max(at.weights_seconds);
                    let seconds = self.step_of(pass, least);
                    Candidate { seconds, residency, recomputation, known: Known::Recomputation }
                };
                let recomputations = self.candidates.recomputations.iter().enumerate();
                open.extend(recomputations.filter(|(_, of)| residency == 0 || of.goes_with_away).map(first));
            }
        }
        // Combinations whose time has been computed.
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
                Known::Recomputation => open.extend(self.ordered(candidate)),
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

    /// Bytes of the budget that a residency leaves.
    fn room(&self, residency: &ResidencyOption) -> TransientBytes {
        self.of.request.budget.transient(residency.resident)
    }

    fn order(&self, recomputation: usize) -> Option<&Ordered> {
        let (tables, scratch) = (self.of.tables, self.scratch);
        self.candidates.recomputations[recomputation]
            .order(&tables.program.train, scratch, || tables.optimum(scratch))
    }

    /// The candidate with its order; `None` if that cannot fit.
    fn ordered(&self, candidate: Candidate) -> Option<Candidate> {
        let residency = &self.candidates.residencies[candidate.residency];
        let transfers = &self.order(candidate.recomputation)?.runs.transfers;
        let pass = transfers.lower_bound(self.room(residency).0).max(residency.weights_seconds);
        let seconds = self.step_of(pass, residency.update_least(self.update_seconds));
        Some(Candidate { seconds, known: Known::Order, ..candidate })
    }

    /// One candidate for each limit that keeps the arena inside the budget.
    fn limited(&mut self, candidate: Candidate) -> Vec<Candidate> {
        let pair = (candidate.residency, candidate.recomputation);
        let residency = &self.candidates.residencies[candidate.residency];
        let room = self.room(residency);
        if !self.candidates.limits.borrow().contains_key(&pair) {
            let limits = self.asked(pair, |transfers| residency.limits(transfers));
            self.candidates.limits.borrow_mut().insert(pair, limits.unwrap_or_default());
        }
        let known = self.candidates.limits.borrow();
        let inside =
            known[&pair].iter().filter(|limit| TransientBytes(limit.bytes.max(limit.least_bytes)) <= room);
        let update = |limit: &Limit| residency.update_bound(limit.bytes, self.update_seconds);
        let bound = |limit: &Limit| Candidate {
            seconds: self.step_of(limit.pass_seconds, update(limit)),
            known: Known::Bound(limit.bytes),
            ..candidate
        };
        inside.map(bound).collect()
    }

    /// The candidate with its time, or with a better bound if that is no less than `best`; `None` if the tier has no
    /// room.
    fn timed(&mut self, candidate: Candidate, limit: u64, best: f64) -> Option<Candidate> {
        let pair = (candidate.residency, candidate.recomputation);
        let residency = &self.candidates.residencies[candidate.residency];
        let mut found = self.found(candidate, limit);
        found.least_seconds = found.least_seconds.max(self.pass_bound(pair, limit));
        // The update is timed only where its bound leaves the combination a chance.
        let least = self.step_of(found.least_seconds, residency.update_bound(limit, self.update_seconds));
        if found.seconds.is_none() && least >= best {
            return Some(Candidate { seconds: least, ..candidate });
        }
        let update = residency.update_within(limit, self.update_seconds)?;
        let enough = (best - update) / self.of.passes();
        if found.seconds.is_none() && found.least_seconds < enough {
            let pass = self.asked(pair, |transfers| transfers.seconds_below(limit, enough)).flatten()?;
            found.least_seconds = pass;
            found.seconds = (pass < enough).then_some((pass, update));
            self.keep(candidate, limit, found);
        }
        if let Some((pass, update)) = found.seconds {
            let seconds = self.step_of(pass, update);
            return Some(Candidate { seconds, known: Known::Time(limit), ..candidate });
        }
        // Rounding must not make the bound less than `best`, so that candidates whose time is known come first.
        let seconds = self.step_of(found.least_seconds, update).max(best);
        Some(Candidate { seconds, ..candidate })
    }

    /// The bound of a micro-batch for a limit.
    fn pass_bound(&self, pair: (usize, usize), limit: u64) -> f64 {
        let limits = self.candidates.limits.borrow();
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
        let (residency, recomputation) = (
            &self.candidates.residencies[candidate.residency],
            &self.candidates.recomputations[candidate.recomputation],
        );
        Ok(Some(Tried {
            micro_batch: self.of.rows,
            tiled: self.of.tiled,
            strategy: recomputation.strategy,
            scratch: self.scratch,
            arena_bytes,
            step_seconds: self.step_of(pass, update),
            rung: recomputation.rung,
            tiered: Tiered { limit: Some(TransientBytes(limit)), away: residency.away },
        }))
    }

    /// Finds out whether the candidate fits.
    fn lay_out(&mut self, candidate: Candidate, limit: u64, found: &mut Found) -> Result<(), SearchError> {
        let budget = self.of.request.budget;
        found.fails = budget;
        let residency = &self.candidates.residencies[candidate.residency];
        let pair = (candidate.residency, candidate.recomputation);
        let Costed { graph, facts } = self.part();
        let Some(Ordered { runs, .. }) = self.order(candidate.recomputation) else { return Ok(()) };
        let whole = runs.streamed(graph, &residency.state);
        let Some(sequence) = self.asked(pair, |transfers| transfers.within(limit, &whole)).flatten() else {
            return Ok(());
        };
        drop(whole);
        let slots = slots_of(graph, facts, self.scratch, &sequence);
        // The smallest budget named in the error must itself be accepted by the search.
        let ends = candidate.residency == 0 || candidate.residency + 1 == self.candidates.residencies.len();
        let smallest =
            limit == 0 && ends && self.candidates.recomputations[candidate.recomputation].rung.is_none();
        let (hope, effort) = if smallest { (f64::INFINITY, Effort::PLAN) } else { (HOPE, Effort::TRIAL) };
        let Some(peak) = fits(&slots, self.room(residency).0, hope, effort) else { return Ok(()) };
        let arena_bytes = if residency.away == 0 {
            TransientBytes(peak).max(self.of.tables.beside_bytes(self.scratch)).arena(residency.resident)
        } else {
            // The other schedules that stream state have to fit too, and may take longer for it.
            let Some(Ordered { order, .. }) = self.order(candidate.recomputation) else { return Ok(()) };
            let (program, tiered) =
                (self.of.program(), Tiered { limit: Some(TransientBytes(limit)), away: residency.away });
            let strategy = self.candidates.recomputations[candidate.recomputation].strategy;
            let plan = closed_draft(program, self.of.tables.states()?, order, strategy, self.scratch, tiered);
            let pass_seconds = plan.micro_batch_seconds / self.of.tables.passes as f64;
            found.seconds = Some((pass_seconds, plan.update_seconds));
            plan.arena_bytes
        };
        (found.fits, found.fails) = (Some(arena_bytes), ArenaBytes(arena_bytes.0.saturating_sub(1)));
        Ok(())
    }

    fn found(&self, candidate: Candidate, limit: u64) -> Found {
        let key = (candidate.residency, candidate.recomputation, limit);
        self.candidates.found.borrow().get(&key).copied().unwrap_or_default()
    }

    fn keep(&self, candidate: Candidate, limit: u64, found: Found) {
        self.candidates
            .found
            .borrow_mut()
            .insert((candidate.residency, candidate.recomputation, limit), found);
    }

    /// The answer of `ask` about an order with the state of a residency away.
    fn asked<T>(
        &mut self,
        (residency, recomputation): (usize, usize),
        ask: impl FnOnce(&Transfers) -> T,
    ) -> Option<T> {
        let candidates = self.candidates;
        let (tables, scratch) = (self.of.tables, self.scratch);
        let ordered = candidates.recomputations[recomputation]
            .order(&tables.program.train, scratch, || tables.optimum(scratch));
        let runs = &ordered?.runs;
        // Each question is a walk over all runs.
        tables.work.look(runs.transfers.runs());
        if residency == 0 {
            return Some(ask(&runs.transfers));
        }
        if let Some(at) = self.held.iter().position(|&(p, s, _)| (p, s) == (residency, recomputation)) {
            // The order that was used last stays longest.
            self.held[at..].rotate_left(1);
        } else {
            tables.work.look(runs.transfers.runs());
            let Costed { graph, facts } = self.part();
            let new = runs.with_away(graph, facts, scratch, &candidates.residencies[residency].state)?;
            if self.held.len() == if tables.is_long() { HELD_LONG } else { HELD } {
                self.held.remove(0);
            }
            self.held.push((residency, recomputation, new));
        }
        self.held.last().map(|(_, _, transfers)| ask(transfers))
    }
}

#[cfg(test)]
mod tests;
