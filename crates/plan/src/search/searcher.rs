//! Answers requests: a loop over micro-batches, most of which are ruled out by a bound.
//!
//! Micro-batches are tried in the order of their lower bounds. Those that cannot fit, or that would lose even with the
//! least recomputation possible, are skipped. Every micro-batch has a second program, whose feed-forward networks run
//! in tiles of rows, which hold less and recompute more.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::Phase;

use super::error::SearchError;
use super::micro_batch::MicroBatch;
use super::offloaded::promise;
use super::plans::{fastest_plans, fixed_plans, named_plans, smallest_that_fits};
use super::request::Request;
use super::tables::ProgramTables;
use super::tried::{Choice, Tried, fastest, select};
use super::waiting::{Key, Tiles, Waiting, first};
use super::work::{SearchWork, WorkCount};
use crate::bytes::ArenaBytes;
use crate::offload::KnownUpdates;
use crate::optimum::highest_budget;
use crate::plan::assemble;
use crate::program::{Build, Program};
use crate::recompute::{Order, Strategy};

/// A program of more nodes than this is bounded as soon as it is built, because building it again takes longer.
pub(super) const LARGE: usize = 4096;

/// Answers many requests about one model, with tables that are made once.
#[derive(Debug)]
pub struct Searcher<B> {
    build: B,
    /// Bytes of tables that stay for the next request. They are large, and a run that is about to train wants the memory.
    room: u64,
    pub(super) tables: BTreeMap<Key, ProgramTables>,
    work: WorkCount,
    /// Updates with state away, which the programs of all micro-batches share.
    updates: KnownUpdates,
    /// Only plans that take less time are of use; infinite where none is known.
    pub(super) below: f64,
    /// Time of a step without recomputation, by micro-batch and global batch, of whole programs that were looked at.
    once_seconds: BTreeMap<(usize, usize), f64>,
    /// The smallest plans of large programs that were found not to fit, from the same look at them.
    pub(super) smallest: BTreeMap<Key, Vec<Tried>>,
}

impl<B: Build> Searcher<B> {
    /// A searcher that has made nothing yet; `build` makes the programs, and may be a function of the micro-batch.
    pub fn new(build: B) -> Searcher<B> {
        Searcher::within(build, u64::MAX)
    }

    /// A searcher that keeps about `room` bytes of tables from one request to the next. Its answers do not depend on
    /// `room`.
    pub fn within(build: B, room: u64) -> Searcher<B> {
        let (tables, work, updates) = (BTreeMap::new(), WorkCount::default(), KnownUpdates::default());
        let (once_seconds, smallest) = (BTreeMap::new(), BTreeMap::new());
        Searcher { build, room, tables, work, updates, below: f64::INFINITY, once_seconds, smallest }
    }

    /// A searcher that keeps nothing from one request to the next, for a single question.
    pub fn once(build: B) -> Searcher<B> {
        Searcher::within(build, 0)
    }

    /// The work that the searcher has done so far.
    pub fn work(&self) -> SearchWork {
        self.work.so_far()
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
        Ok(&self.whole(micro_batch, ArenaBytes::MAX)?.program)
    }

    /// Time of a step of the request that recomputes nothing, in micro-batches of this size. A program that was looked at for
    /// the same request is not built again.
    pub(super) fn once_seconds(&mut self, request: &Request, micro_batch: usize) -> Result<f64, SearchError> {
        let known = (micro_batch, request.global_batch);
        if !self.once_seconds.contains_key(&known) {
            // The tables that are made here may stay, and must answer for every budget.
            let any = Request { budget: ArenaBytes::MAX, ..*request };
            self.look(&any, (micro_batch, false), |_| Ok(()))?;
        }
        Ok(self.once_seconds.get(&known).copied().unwrap_or(f64::INFINITY))
    }

    /// Whether the program of a micro-batch is so long that the search tries fewer combinations.
    pub(super) fn is_long(&mut self, micro_batch: usize) -> Result<bool, SearchError> {
        Ok(self.whole(micro_batch, ArenaBytes::MAX)?.is_long())
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

    /// As [`search`](Searcher::search), for a plan that takes less than `seconds`; none if there is no such plan. Bounds rule
    /// out most of the search, and the smallest plan is not looked for.
    ///
    /// # Errors
    ///
    /// When the request or the model is at fault.
    pub fn search_below(&mut self, request: Request, seconds: f64) -> Result<Option<Choice>, SearchError> {
        self.below = seconds;
        let found = self.search(request);
        self.below = f64::INFINITY;
        match found {
            Ok(choice) => Ok(Some(choice)),
            Err(SearchError::Budget { .. } | SearchError::Batch { micro_batch: 0, .. }) => Ok(None),
            Err(other) => Err(other),
        }
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
        // Tiles change no state, so a micro-batch whose state does not fit is not built in tiles.
        let mut too_much_state = BTreeSet::new();
        for key in [false, true].into_iter().flat_map(|tiled| ends.iter().map(move |&rows| (rows, tiled))) {
            let (rows, tiled) = key;
            let pointless = tiled && (request.strategy.is_some() || too_much_state.contains(&rows));
            if fastest(&tried, request.budget).is_none() && !pointless {
                let state_fits = self.look(&request, key, |of| {
                    match request.strategy {
                        Some(strategy) => fixed_plans(of, strategy, &mut tried)?,
                        // A search in the bytes of the smallest plan finds a plan.
                        None if of.can_fit()? && of.tables.is_long() => smallest_that_fits(of, &mut tried)?,
                        None => fastest_plans(of, &mut tried)?,
                    }
                    of.state_can_fit()
                })?;
                if state_fits == Some(false) {
                    too_much_state.insert(rows);
                }
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
            Request { global_batch, micro_batch: None, strategy: None, budget: ArenaBytes::MAX, slack: 0.0 };
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
        if fastest(tried, request.budget).is_none() && self.below.is_infinite() {
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
            let known = fastest(tried, request.budget).map_or(self.below, |best| best.step_seconds);
            if next.seconds >= known * (1.0 + request.slack) {
                lower_bound = lower_bound.min(next.seconds);
            } else if let Some(knows_budget) = next.bounded {
                bounded_all &= knows_budget;
                lower_bound = lower_bound.min(next.seconds);
                self.look(request, next.key, |of| fastest_plans(of, tried))?;
                self.forget_all_but(None, fastest(tried, request.budget));
            } else {
                let bound = |of: MicroBatch| {
                    let bounded = Waiting::bounded(next.key, of)?;
                    let order = if keep { promise(of, bounded.seconds)? } else { bounded.order };
                    Ok(Waiting { order, ..bounded })
                };
                waiting.extend(self.look(request, next.key, bound)?);
                self.forget_all_but(Some(next.key), fastest(tried, request.budget));
            }
        }
        if fastest(tried, request.budget).is_none() && self.below.is_infinite() {
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
        self.smallest.clear();
        if !self.an_end_can_fit(request, micro_batches)? {
            return Ok(waiting);
        }
        for &micro_batch in micro_batches {
            let (whole, tiles) = self.outlook(request, (micro_batch, false))?;
            if whole.is_none() {
                self.tables.remove(&(micro_batch, false));
            }
            waiting.extend(whole);
            self.forget_all_but(Some((micro_batch, false)), None);
            if tiles == Tiles::Matter
                || tiles == Tiles::OfSmallest && micro_batches.first() == Some(&micro_batch)
            {
                let tiled = self.outlook(request, (micro_batch, true))?.0;
                if tiled.is_none() {
                    self.tables.remove(&(micro_batch, true));
                }
                waiting.extend(tiled);
                self.forget_all_but(Some((micro_batch, true)), None);
            }
        }
        Ok(waiting)
    }

    /// Whether the smallest or the largest micro-batch can fit. The others have the state of the smallest and larger
    /// values: if neither of the two can fit, the others need not be built.
    fn an_end_can_fit(&mut self, request: &Request, micro_batches: &[usize]) -> Result<bool, SearchError> {
        for &micro_batch in micro_batches.first().into_iter().chain(micro_batches.last()) {
            let (whole, tiles) = self.outlook(request, (micro_batch, false))?;
            if whole.is_some() {
                return Ok(true);
            }
            self.cannot_fit(request, (micro_batch, false))?;
            if tiles != Tiles::TooMuchState {
                if self.outlook(request, (micro_batch, true))?.0.is_some() {
                    return Ok(true);
                }
                self.cannot_fit(request, (micro_batch, true))?;
            }
        }
        Ok(false)
    }

    /// The micro-batch with its time without recomputation, where state and the largest operands fit, and whether its
    /// networks in tiles matter.
    fn outlook(&mut self, request: &Request, key: Key) -> Result<(Option<Waiting>, Tiles), SearchError> {
        let keeps = self.room > 0;
        let look = |of: MicroBatch| {
            let large = of.program().train.graph.nodes().len() > LARGE;
            let tiles = if !of.state_can_fit()? {
                Tiles::TooMuchState
            } else if large && of.tables.is_long() {
                Tiles::OfSmallest
            } else {
                Tiles::Matter
            };
            let waiting = if !of.can_fit()? {
                None
            } else if large && !keeps {
                Some(Waiting::bounded(key, of)?)
            } else {
                Some(Waiting::unbounded(key, of))
            };
            Ok((waiting, tiles))
        };
        Ok(self.look(request, key, look)?.unwrap_or((None, Tiles::TooMuchState)))
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
            Ok((plan, of.accumulation()))
        };
        let key = (tried.micro_batch, tried.tiled);
        let made = self.look(&request, key, make)?;
        // Where no table stays for other requests, the program is not copied.
        let program = if self.room == 0 {
            self.tables.remove(&key).map(|tables| tables.program)
        } else {
            self.tables.get(&key).map(|tables| tables.program.clone())
        };
        self.forget_all_but(None, None);
        let micro_batch = tried.micro_batch;
        let choice = made.zip(program).map(|((plan, accumulation), program)| Choice {
            plan,
            program,
            micro_batch,
            accumulation,
            lower_bound_seconds,
        });
        // A program that had tiles when the plan was tried has them still.
        choice.ok_or(SearchError::Batch { micro_batch, global_batch: request.global_batch })
    }

    /// Examines a micro-batch. Returns `None` if tiles are requested and its networks have none.
    pub(super) fn look<T>(
        &mut self,
        request: &Request,
        (rows, tiled): Key,
        look: impl FnOnce(MicroBatch) -> Result<T, SearchError>,
    ) -> Result<Option<T>, SearchError> {
        let below = self.below;
        let known = (rows, request.global_batch);
        if !tiled && !self.once_seconds.contains_key(&known) {
            let accumulation = request.global_batch / rows;
            let seconds = step_seconds(&self.whole(rows, request.budget)?.program, accumulation);
            self.once_seconds.insert(known, seconds);
        }
        let tables =
            if tiled { self.tiled(rows, request.budget)? } else { Some(self.whole(rows, request.budget)?) };
        tables.map(|tables| look(MicroBatch { request, rows, tiled, tables, below })).transpose()
    }

    /// The program of a micro-batch, with its tables.
    fn whole(&mut self, micro_batch: usize, budget: ArenaBytes) -> Result<&ProgramTables, SearchError> {
        let key = (micro_batch, false);
        if !self.tables.contains_key(&key) {
            let program = self.build.whole(micro_batch)?;
            self.add_tables(key, program, budget)?;
        }
        Ok(&self.tables[&key])
    }

    /// The program of a micro-batch with feed-forward networks in tiles, if it has any, with its tables.
    fn tiled(
        &mut self,
        micro_batch: usize,
        budget: ArenaBytes,
    ) -> Result<Option<&ProgramTables>, SearchError> {
        let key = (micro_batch, true);
        if !self.tables.contains_key(&key)
            && let Some(program) = self.build.tiled(micro_batch)?
        {
            self.add_tables(key, program, budget)?;
        }
        Ok(self.tables.get(&key))
    }

    /// Makes the tables. They cover every budget if they are kept for other requests or the device has a tier; otherwise
    /// they reach just above the budget of this request.
    fn add_tables(&mut self, key: Key, program: Program, budget: ArenaBytes) -> Result<(), SearchError> {
        let whole = self.room > 0 || program.train.facts.link.is_some();
        let cap = if whole { ArenaBytes::MAX } else { highest_budget(budget) };
        self.work.program(program.train.graph.nodes().len());
        let tables = ProgramTables::new(program, cap, self.work.clone())?.sharing(&self.updates);
        self.tables.insert(key, tables);
        Ok(())
    }

    /// Drops tables that are too large to be kept together. The tables of the micro-batch that may be next and of the best
    /// plan so far always stay.
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

/// Time of a step in which every node runs once with all the scratch it can use.
fn step_seconds(program: &Program, accumulation: usize) -> f64 {
    let part = &program.train;
    let nodes = part.graph.nodes().iter().zip(&part.facts.nodes).filter(|(node, _)| !node.op.is_view());
    let times = |phase: Phase| if phase == Phase::Update { 1.0 } else { accumulation as f64 };
    nodes.map(|(node, facts)| times(node.phase) * facts.seconds).sum()
}
