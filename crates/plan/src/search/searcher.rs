//! Answers requests: a loop over micro-batches, most of which are ruled out by a bound.
//!
//! Micro-batches are tried in the order of their lower bounds. Those that cannot fit, or that would lose even with the
//! least recomputation possible, are skipped. Every micro-batch has a second program, whose feed-forward networks run
//! in tiles of rows, which hold less and recompute more.

use std::collections::{BTreeMap, BTreeSet};

use super::error::SearchError;
use super::micro_batch::MicroBatch;
use super::offloaded::promise;
use super::plans::{fastest_plans, fixed_plans, named_plans, smallest_fixed_plans, smallest_plans};
use super::request::Request;
use super::tables::ProgramTables;
use super::tried::{Choice, Tried, fastest, select};
use crate::bytes::ArenaBytes;
use crate::device::Scratch;
use crate::optimum::highest_budget;
use crate::plan::assemble;
use crate::program::{Build, Program};
use crate::recompute::{Order, Strategy};

/// Sequences of a micro-batch, and whether its feed-forward networks are in tiles.
type Key = (usize, bool);

/// Answers many requests about one model, with tables that are made once.
#[derive(Debug)]
pub struct Searcher<B> {
    build: B,
    /// Bytes of tables that stay for the next request. They are large, and a run that is about to train wants the memory.
    room: u64,
    tables: BTreeMap<Key, ProgramTables>,
}

impl<B: Build> Searcher<B> {
    /// A searcher that has made nothing yet; `build` makes the programs, and may be a function of the micro-batch.
    pub fn new(build: B) -> Searcher<B> {
        Searcher::within(build, u64::MAX)
    }

    /// A searcher that keeps about `room` bytes of tables from one request to the next. Its answers do not depend on
    /// `room`.
    pub fn within(build: B, room: u64) -> Searcher<B> {
        Searcher { build, room, tables: BTreeMap::new() }
    }

    /// A searcher that keeps nothing from one request to the next, for a single question.
    pub fn once(build: B) -> Searcher<B> {
        Searcher::within(build, 0)
    }

    /// The builder of the programs.
    pub fn build(&self) -> &B {
        &self.build
    }

    /// The program of a micro-batch.
    ///
    /// # Errors
    ///
    /// When it cannot be built.
    pub fn program(&mut self, micro_batch: usize) -> Result<&Program, SearchError> {
        Ok(&self.whole(micro_batch, u64::MAX)?.program)
    }

    /// Whether the program of a micro-batch is so long that the search tries fewer combinations.
    pub(super) fn is_long(&mut self, micro_batch: usize) -> Result<bool, SearchError> {
        Ok(self.whole(micro_batch, u64::MAX)?.is_long())
    }

    /// The fastest plan that fits.
    ///
    /// # Errors
    ///
    /// When nothing fits (with the smallest plan and hints), or the request or the model is at fault.
    pub fn search(&mut self, request: Request) -> Result<Choice, SearchError> {
        let (best, lower_bound) = self.best(request)?;
        self.realise(request, best, lower_bound)
    }

    /// The fastest plan that fits, without its offsets, and a lower bound on the time of any plan in the budget, if
    /// known.
    pub(crate) fn best(&mut self, request: Request) -> Result<(Tried, Option<f64>), SearchError> {
        let request = Request { strategy: request.fixed_strategy(), ..request };
        let micro_batches = request.micro_batches()?;
        let mut tried = Vec::new();
        let lower_bound = match request.strategy {
            Some(strategy) => self.fixed_search(&request, strategy, &micro_batches, &mut tried)?,
            None => self.open_search(&request, &micro_batches, &mut tried)?,
        };
        match select(&tried, request.budget, request.slack) {
            Some(best) => Ok((best, lower_bound)),
            None => Err(self.nothing_fits(request, &tried)?),
        }
    }

    /// The smallest plan of a request, whatever its budget. A search with a budget of its size finds a plan.
    ///
    /// # Errors
    ///
    /// When the request or the model is at fault.
    pub fn smallest(&mut self, request: Request) -> Result<Tried, SearchError> {
        let request = Request { strategy: request.fixed_strategy(), budget: 0, ..request };
        let micro_batches = request.micro_batches()?;
        let mut tried = Vec::new();
        match request.strategy {
            Some(strategy) => self.smallest_fixed(&request, strategy, &micro_batches, &mut tried)?,
            None => self.smallest_named(&request, &micro_batches, &mut tried)?,
        }
        let smallest = tried.into_iter().min_by_key(|t| t.arena_bytes);
        smallest.ok_or(SearchError::Batch { micro_batch: 0, global_batch: request.global_batch })
    }

    /// Whether anything fits, without looking for the fastest. The smallest micro-batch has the smallest values, and
    /// the whole batch may need no persistent gradients: one of the two takes the least.
    ///
    /// # Errors
    ///
    /// When the request or the model is at fault.
    pub fn fits(&mut self, request: Request) -> Result<bool, SearchError> {
        let request = Request { strategy: request.fixed_strategy(), ..request };
        let micro_batches = request.micro_batches()?;
        let ends: BTreeSet<usize> =
            micro_batches.first().into_iter().chain(micro_batches.last()).copied().collect();
        let mut tried: Vec<Tried> = Vec::new();
        for key in [false, true].into_iter().flat_map(|tiled| ends.iter().map(move |&rows| (rows, tiled))) {
            let (_, tiled) = key;
            if fastest(&tried, request.budget).is_none() && !(tiled && request.strategy.is_some()) {
                self.look(&request, key, |of| match request.strategy {
                    Some(strategy) => fixed_plans(of, strategy, &mut tried),
                    None => fastest_plans(of, &mut tried),
                })?;
                self.forget_all_but(None, None);
            }
        }
        Ok(fastest(&tried, request.budget).is_some())
    }

    /// Plans `strategies` for one micro-batch without regard to a budget.
    ///
    /// # Errors
    ///
    /// When the program cannot be built or planned.
    pub fn try_named(
        &mut self,
        global_batch: usize,
        micro_batch: usize,
        strategies: &[Strategy],
    ) -> Result<Vec<Tried>, SearchError> {
        let request =
            Request { global_batch, micro_batch: None, strategy: None, budget: u64::MAX, slack: 0.0 };
        let mut tried = Vec::new();
        self.look(&request, (micro_batch, false), |of| {
            named_plans(of, strategies, &mut tried);
            Ok(())
        })?;
        Ok(tried)
    }

    /// Searches the plans of one strategy. No bound is known.
    fn fixed_search(
        &mut self,
        request: &Request,
        strategy: Strategy,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<Option<f64>, SearchError> {
        for &micro_batch in micro_batches.iter().rev() {
            self.look(request, (micro_batch, false), |of| fixed_plans(of, strategy, tried))?;
            self.forget_all_but(None, fastest(tried, request.budget));
        }
        if fastest(tried, request.budget).is_none() {
            self.smallest_fixed(request, strategy, micro_batches, tried)?;
        }
        Ok(None)
    }

    /// Searches plans of all kinds, the micro-batch with the least bound first. The bound is the time without
    /// recomputation, then also the recomputation that the budget forces. It rules out most micro-batches.
    fn open_search(
        &mut self,
        request: &Request,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<Option<f64>, SearchError> {
        let mut waiting = self.that_can_fit(request, micro_batches)?;
        let (mut lower_bound, mut bounded_all) = (f64::INFINITY, true);
        // An estimate needs tables. Without room to keep half of them, micro-batches are ordered by their bounds.
        let largest = self.tables.values().map(ProgramTables::bytes).max().unwrap_or(0);
        let keep = (waiting.len() as u64 / 2).saturating_mul(largest) <= self.room && self.room > 0;
        while let Some(next) = first(&mut waiting) {
            let known = fastest(tried, request.budget).map_or(f64::INFINITY, |best| best.step_seconds);
            if next.seconds >= known * (1.0 + request.slack) {
                lower_bound = lower_bound.min(next.seconds);
            } else if next.bounded {
                lower_bound = lower_bound.min(next.seconds);
                self.look(request, next.key, |of| fastest_plans(of, tried))?;
                self.forget_all_but(None, fastest(tried, request.budget));
            } else {
                let bound = |of: MicroBatch| {
                    bounded_all &= of.is_bounded();
                    let seconds = of.bound()?;
                    let order = if keep { promise(of, seconds)? } else { seconds };
                    Ok(Waiting { seconds, order, bounded: true, ..next })
                };
                waiting.extend(self.look(request, next.key, bound)?);
                self.forget_all_but(Some(next.key), fastest(tried, request.budget));
            }
        }
        if fastest(tried, request.budget).is_none() {
            self.smallest_named(request, micro_batches, tried)?;
        }
        Ok(Some(lower_bound).filter(|bound| bounded_all && bound.is_finite()))
    }

    /// The micro-batches whose state and largest operands fit, each with its time without recomputation.
    fn that_can_fit(
        &mut self,
        request: &Request,
        micro_batches: &[usize],
    ) -> Result<Vec<Waiting>, SearchError> {
        let mut waiting = Vec::new();
        if !self.an_end_can_fit(request, micro_batches)? {
            return Ok(waiting);
        }
        for &micro_batch in micro_batches {
            for key in [(micro_batch, false), (micro_batch, true)] {
                let seconds = self.once_if_it_can_fit(request, key)?;
                let once = |seconds| Waiting { key, seconds, order: seconds, bounded: false };
                waiting.extend(seconds.map(once));
                self.forget_all_but(Some(key), None);
            }
        }
        Ok(waiting)
    }

    /// Whether the smallest or the largest micro-batch can fit. The others have the state of the smallest and larger
    /// values: if neither of the two can fit, the others need not be built.
    fn an_end_can_fit(&mut self, request: &Request, micro_batches: &[usize]) -> Result<bool, SearchError> {
        for &micro_batch in micro_batches.first().into_iter().chain(micro_batches.last()) {
            for key in [(micro_batch, false), (micro_batch, true)] {
                if self.once_if_it_can_fit(request, key)?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The time without recomputation, where state and the largest operands fit; otherwise the program is dropped.
    fn once_if_it_can_fit(&mut self, request: &Request, key: Key) -> Result<Option<f64>, SearchError> {
        let once = |of: MicroBatch| Ok(of.can_fit()?.then(|| of.once_seconds(Scratch::Best)));
        let seconds = self.look(request, key, once)?.flatten();
        if seconds.is_none() {
            self.tables.remove(&key);
        }
        Ok(seconds)
    }

    /// The smallest plans of one strategy.
    fn smallest_fixed(
        &mut self,
        request: &Request,
        strategy: Strategy,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        for &micro_batch in micro_batches {
            self.look(request, (micro_batch, false), |of| smallest_fixed_plans(of, strategy, tried))?;
            self.forget_all_but(None, None);
        }
        Ok(())
    }

    /// The smallest plans of all kinds, from the smallest micro-batch on until one does not fit; of the whole batch,
    /// which may need no persistent gradients; and of the smallest micro-batch in tiles.
    fn smallest_named(
        &mut self,
        request: &Request,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        for &micro_batch in micro_batches {
            let before = tried.len();
            self.look_at_smallest(request, (micro_batch, false), tried)?;
            if tried[before..].iter().all(|t| t.arena_bytes > request.budget) {
                break;
            }
        }
        if let Some(&largest) = micro_batches.last() {
            self.look_at_smallest(request, (largest, false), tried)?;
        }
        if let Some(&smallest) = micro_batches.first() {
            self.look_at_smallest(request, (smallest, true), tried)?;
        }
        Ok(())
    }

    fn look_at_smallest(
        &mut self,
        request: &Request,
        key: Key,
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        let long = self.look(request, key, |of| smallest_plans(of, tried).map(|()| of.tables.is_long()))?;
        self.forget_all_but(None, None);
        // Large tables are not kept where nothing fits.
        if long == Some(true) {
            self.tables.remove(&key);
        }
        Ok(())
    }

    /// The error, with the requests that would fit.
    fn nothing_fits(&mut self, request: Request, tried: &[Tried]) -> Result<SearchError, SearchError> {
        let Some(smallest) = tried.iter().copied().min_by_key(|t| t.arena_bytes) else {
            return Ok(SearchError::Batch { micro_batch: 0, global_batch: request.global_batch });
        };
        let hints = self.hints(request)?;
        Ok(SearchError::Budget { budget: request.budget, smallest, hints })
    }

    /// Plans that would fit if the user fixed less: other strategies, then smaller micro-batches.
    fn hints(&mut self, request: Request) -> Result<Vec<Tried>, SearchError> {
        if request.micro_batch.is_none() && request.strategy.is_none() {
            return Ok(Vec::new());
        }
        let all = Request { micro_batch: None, ..request }.micro_batches()?;
        let open = Request { strategy: None, ..request };
        let micro_batches = all.into_iter().filter(|&b| request.micro_batch.is_none_or(|fixed| b <= fixed));
        let mut fitting = Vec::new();
        for micro_batch in micro_batches {
            // Each for itself: a hint that is slower than another is still a hint.
            let mut own = Vec::new();
            self.look(&open, (micro_batch, false), |of| fastest_plans(of, &mut own))?;
            self.forget_all_but(None, None);
            fitting.extend(own);
        }
        let mut tiled = Vec::new();
        self.look(&open, (1, true), |of| fastest_plans(of, &mut tiled))?;
        // A fixed strategy is never tiled, so the hint is to fix none.
        fitting.extend(tiled.into_iter().map(|tried| Tried { strategy: Strategy::Auto, ..tried }));
        fitting.retain(|t| t.arena_bytes <= request.budget);
        fitting.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        fitting.dedup_by_key(|t| (t.micro_batch, t.strategy));
        fitting.truncate(3);
        Ok(fitting)
    }

    /// Makes the plan of a combination that was tried.
    fn realise(
        &mut self,
        request: Request,
        tried: Tried,
        lower_bound_seconds: Option<f64>,
    ) -> Result<Choice, SearchError> {
        let make = |of: MicroBatch| {
            let program = of.program();
            let optimal = |rung| of.tables.optimum(tried.scratch)?.order(&program.train.graph, rung);
            let order = tried.rung.and_then(optimal);
            let order = order.unwrap_or_else(|| Order::named(&program.train.graph, tried.strategy));
            let plan = assemble(program, &order, tried.strategy, tried.scratch, tried.tiered)?;
            let (micro_batch, accumulation) = (of.rows, of.accumulation());
            Ok(Choice { plan, program: program.clone(), micro_batch, accumulation, lower_bound_seconds })
        };
        let made = self.look(&request, (tried.micro_batch, tried.tiled), make)?;
        self.forget_all_but(None, None);
        // A program that had tiles when the plan was tried has them still.
        made.ok_or(SearchError::Batch { micro_batch: tried.micro_batch, global_batch: request.global_batch })
    }

    /// Examines a micro-batch. Returns `None` if tiles are requested and its networks have none.
    fn look<T>(
        &mut self,
        request: &Request,
        (rows, tiled): Key,
        look: impl FnOnce(MicroBatch) -> Result<T, SearchError>,
    ) -> Result<Option<T>, SearchError> {
        let tables =
            if tiled { self.tiled(rows, request.budget)? } else { Some(self.whole(rows, request.budget)?) };
        tables.map(|tables| look(MicroBatch { request, rows, tiled, tables })).transpose()
    }

    /// The program of a micro-batch, with its tables.
    fn whole(&mut self, micro_batch: usize, budget: u64) -> Result<&ProgramTables, SearchError> {
        let key = (micro_batch, false);
        if !self.tables.contains_key(&key) {
            let program = self.build.whole(micro_batch)?;
            self.add_tables(key, program, budget)?;
        }
        Ok(&self.tables[&key])
    }

    /// The program of a micro-batch with feed-forward networks in tiles, if it has any, with its tables.
    fn tiled(&mut self, micro_batch: usize, budget: u64) -> Result<Option<&ProgramTables>, SearchError> {
        let key = (micro_batch, true);
        if !self.tables.contains_key(&key)
            && let Some(program) = self.build.tiled(micro_batch)?
        {
            self.add_tables(key, program, budget)?;
        }
        Ok(self.tables.get(&key))
    }

    /// Makes the tables. Tables that are kept for other requests cover every budget, and so do those of a device with a
    /// tier; others reach just above the budget of this request.
    fn add_tables(&mut self, key: Key, program: Program, budget: u64) -> Result<(), SearchError> {
        let whole = self.room > 0 || program.train.facts.link.is_some();
        let cap = if whole { ArenaBytes::MAX } else { highest_budget(ArenaBytes(budget)) };
        self.tables.insert(key, ProgramTables::new(program, cap)?);
        Ok(())
    }

    /// Drops tables that are too large to be kept together; those of the micro-batch that may be next and of the best plan
    /// so far stay in any case.
    pub(super) fn forget_all_but(&mut self, next: Option<Key>, best: Option<&Tried>) {
        let best = best.map(|best| (best.micro_batch, best.tiled));
        let wanted = |key: Key| Some(key) == next || Some(key) == best;
        let first = self.tables.iter().filter(|&(&key, _)| wanted(key));
        let mut held: u64 = first.map(|(_, tables)| tables.bytes()).sum();
        let room = self.room;
        self.tables.retain(|&key, tables| {
            let stays = wanted(key) || held.saturating_add(tables.bytes()) <= room;
            held = held.saturating_add(if stays && !wanted(key) { tables.bytes() } else { 0 });
            stays
        });
    }
}

/// A micro-batch that waits for its turn.
#[derive(Clone, Copy)]
struct Waiting {
    key: Key,
    /// None of its plans takes less time.
    seconds: f64,
    /// The least comes first, because fast plans rule out slow ones.
    order: f64,
    /// Whether the recomputation that the budget forces is counted.
    bounded: bool,
}

/// Takes the next one out; among equals the largest micro-batch, and the one without tiles.
fn first(waiting: &mut Vec<Waiting>) -> Option<Waiting> {
    let order = |a: &Waiting, b: &Waiting| {
        let ((a_rows, a_tiled), (b_rows, b_tiled)) = (a.key, b.key);
        a.order.total_cmp(&b.order).then(b_rows.cmp(&a_rows)).then(a_tiled.cmp(&b_tiled))
    };
    let index = (0..waiting.len()).min_by(|&a, &b| order(&waiting[a], &waiting[b]))?;
    Some(waiting.swap_remove(index))
}
