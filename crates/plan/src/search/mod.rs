//! The fastest plan that fits: micro-batch × what is kept × scratch under a fixed global batch.
//!
//! For a chain of equal layers one table per micro-batch knows the optimum for every budget. Its answer is
//! then given offsets, and because a layout can be a little larger than its liveness bound, the
//! table is asked on a fixed ladder of budgets from just above the stated one downwards until the arena fits.
//! Since a rung that fits a budget also fits every larger one, and higher rungs are never slower, more
//! memory never makes the plan slower. The named strategies are candidates too, and what waits on another tier
//! (`offload`). What is left out is left out because a bound says that it would not be chosen,
//! so a request that leaves more open gets no slower plan (with state away, as far as the time of
//! an update is known before its layout). Graphs that are no chain have a ladder too, in
//! which every rung is planned by itself.
//!
//! Micro-batches are looked at in the order of what they take at least: those that cannot fit, or that would lose even
//! if they rebuilt no more than they must, are passed over. Every micro-batch has a second program: feed-forward
//! networks worked on in tiles of rows, which hold less and rebuild more.
//!
//! What changes the result beyond the order of sums (precision, the optimizer) is never chosen here.

mod curve;
mod graph_ladder;
mod largest;
mod micro_batch;
mod offloaded;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use plimsoll_graph::GraphError;

use micro_batch::{Attempt, one_rung_above};
use tables::Prepared;

use crate::device::Scratch;
use crate::plan::{Plan, PlanError, Tiered, assemble_within};
use crate::program::{Build, Program};
use crate::recompute::{Order, Strategy};

pub use curve::{Point, spread};
pub use largest::largest;

/// What is asked for. What is left open is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Sequences of one step.
    pub global_batch: usize,
    /// Sequences of one micro-batch, if the user fixed it.
    pub micro_batch: Option<usize>,
    /// The recompute strategy, if the user fixed it.
    pub strategy: Option<Strategy>,
    /// Bytes the arena may take.
    pub budget: u64,
    /// Among plans slower than the fastest by at most this fraction, the smallest is taken.
    pub slack: f64,
}

impl Request {
    /// The micro-batches it leaves open, or the one it fixes.
    pub(crate) fn micro_batches(&self) -> Result<Vec<usize>, SearchError> {
        micro_batches(self.global_batch, self.micro_batch)
    }
}

/// A plan with the program it is for.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Its graphs, built for the chosen micro-batch.
    pub program: Program,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulation: usize,
    /// No schedule of any micro-batch that was tried is faster in this budget, for these kernels and
    /// costs; none where the graph is too large for a planner or the strategy was fixed.
    pub lower_bound_seconds: Option<f64>,
}

impl Choice {
    /// Predicted time of a step.
    pub fn step_seconds(&self) -> f64 {
        self.plan.step_seconds(self.accumulation)
    }
}

/// One combination that was planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Whether feed-forward networks are worked on in tiles.
    pub tiled: bool,
    /// The recompute strategy.
    pub strategy: Strategy,
    /// How much scratch actions get.
    pub scratch: Scratch,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Predicted time of one step.
    pub step_seconds: f64,
    /// For [`Strategy::Auto`], the transient bytes the table was asked for.
    pub rung: Option<u64>,
    /// What waits on another tier.
    pub tiered: Tiered,
}

/// Why there is no plan.
#[derive(Clone, Debug)]
pub enum SearchError {
    /// The micro-batch does not divide the global batch, or one of them is 0.
    Batch {
        /// As asked.
        micro_batch: usize,
        /// As asked.
        global_batch: usize,
    },
    /// Nothing fits.
    Budget {
        /// Bytes the arena was allowed.
        budget: u64,
        /// The smallest plan of what was asked for.
        smallest: Tried,
        /// Plans that would fit if the user let go of what they fixed, fastest first.
        hints: Vec<Tried>,
    },
    /// The model cannot be built.
    Graph(GraphError),
    /// The program cannot be planned.
    Plan(PlanError),
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::Batch { micro_batch, global_batch } => write!(
                f,
                "a micro-batch of {micro_batch} does not divide a global batch of {global_batch} sequences"
            ),
            SearchError::Budget { budget, smallest, .. } => {
                write!(
                    f,
                    "the smallest plan needs {} bytes, the arena may take {budget}",
                    smallest.arena_bytes
                )
            }
            SearchError::Graph(error) => error.fmt(f),
            SearchError::Plan(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SearchError {}

impl From<GraphError> for SearchError {
    fn from(error: GraphError) -> SearchError {
        SearchError::Graph(error)
    }
}

impl From<PlanError> for SearchError {
    fn from(error: PlanError) -> SearchError {
        SearchError::Plan(error)
    }
}

/// The fastest plan that fits; `build` makes the programs, and may be a function of the micro-batch.
///
/// # Errors
///
/// When nothing fits (with the smallest plan and hints), or the request or the model is at fault.
pub fn search(request: Request, build: impl Build) -> Result<Choice, SearchError> {
    Searcher::once(build).search(request)
}

/// Answers many requests about one model and keeps what it made for the first for the others.
#[derive(Debug)]
pub struct Searcher<B> {
    build: B,
    /// Whether tables stay for the next request. They are large, and who is about to train wants the memory.
    keep: bool,
    /// By micro-batch, and whether in tiles.
    prepared: BTreeMap<(usize, bool), Prepared>,
}

impl<B: Build> Searcher<B> {
    /// A searcher that has made nothing yet; `build` makes the programs, and may be a function of the micro-batch.
    pub fn new(build: B) -> Searcher<B> {
        Searcher { build, keep: true, prepared: BTreeMap::new() }
    }

    /// A searcher that keeps nothing from one request to the next, for who asks once.
    pub fn once(build: B) -> Searcher<B> {
        Searcher { keep: false, ..Searcher::new(build) }
    }

    /// What makes the programs.
    pub fn build(&self) -> &B {
        &self.build
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

    /// The fastest plan that fits, without its offsets, and what none in the budget beats, if that is known.
    pub(crate) fn best(&mut self, request: Request) -> Result<(Tried, Option<f64>), SearchError> {
        let fixed = request.strategy.filter(|&strategy| strategy != Strategy::Auto);
        let request = Request { strategy: fixed, ..request };
        let micro_batches = request.micro_batches()?;
        let mut tried = Vec::new();
        let lower_bound = match fixed {
            Some(strategy) => self.fixed_search(&request, strategy, &micro_batches, &mut tried)?,
            None => self.open_search(&request, &micro_batches, &mut tried)?,
        };
        match select(&tried, request.budget, request.slack) {
            Some(best) => Ok((best, lower_bound)),
            None => Err(self.nothing_fits(request, &tried)?),
        }
    }

    /// Looks for plans of one strategy. No bound is known.
    fn fixed_search(
        &mut self,
        request: &Request,
        strategy: Strategy,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<Option<f64>, SearchError> {
        for &micro_batch in micro_batches.iter().rev() {
            self.look(request, (micro_batch, false), |attempt| attempt.fixed(strategy, tried))?;
            self.forget_all_but(None, fastest(tried, request.budget));
        }
        let nothing = fastest(tried, request.budget).is_none();
        for &micro_batch in micro_batches.iter().filter(|_| nothing) {
            self.look(request, (micro_batch, false), |attempt| attempt.fixed_sizes(strategy, tried))?;
            self.forget_all_but(None, None);
        }
        Ok(None)
    }

    /// Looks for plans of all kinds, first where the least is needed: the time of everything once, then what the
    /// budget forces besides. Most micro-batches are ruled out by theirs.
    fn open_search(
        &mut self,
        request: &Request,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<Option<f64>, SearchError> {
        let mut waiting = Vec::new();
        for &micro_batch in micro_batches {
            for key in [(micro_batch, false), (micro_batch, true)] {
                let once =
                    |attempt: Attempt| Ok(attempt.can_fit()?.then(|| attempt.once_seconds(Scratch::Best)));
                let seconds = self.look(request, key, once)?.flatten();
                let once = |seconds| Waiting { key, seconds, order: seconds, bounded: false };
                waiting.extend(seconds.map(once));
                self.forget_all_but(Some(key), None);
            }
        }
        let (mut lower_bound, mut bounded_all) = (f64::INFINITY, true);
        while let Some(next) = first(&mut waiting) {
            let known = fastest(tried, request.budget).map_or(f64::INFINITY, |best| best.step_seconds);
            if next.seconds >= known * (1.0 + request.slack) {
                lower_bound = lower_bound.min(next.seconds);
            } else if next.bounded {
                lower_bound = lower_bound.min(next.seconds);
                self.look(request, next.key, |attempt| attempt.optimal(tried))?;
                self.forget_all_but(None, fastest(tried, request.budget));
            } else {
                // To find out what is promising takes tables, which must not all be there at once to be forgotten.
                let keep = self.keep;
                let bound = |attempt: Attempt| {
                    bounded_all &= attempt.is_bounded();
                    let seconds = attempt.bound()?;
                    let order = if keep { attempt.promise(seconds)? } else { seconds };
                    Ok(Waiting { seconds, order, bounded: true, ..next })
                };
                waiting.extend(self.look(request, next.key, bound)?);
                self.forget_all_but(Some(next.key), fastest(tried, request.budget));
            }
        }
        if fastest(tried, request.budget).is_none() {
            self.named_from_the_smallest(request, micro_batches, tried)?;
        }
        Ok(Some(lower_bound).filter(|bound| bounded_all && bound.is_finite()))
    }

    /// Plans the named strategies, from the smallest micro-batch on until one does not fit.
    fn named_from_the_smallest(
        &mut self,
        request: &Request,
        micro_batches: &[usize],
        tried: &mut Vec<Tried>,
    ) -> Result<(), SearchError> {
        for &micro_batch in micro_batches {
            let before = tried.len();
            self.look(request, (micro_batch, false), |attempt| attempt.sizes(tried))?;
            self.forget_all_but(None, None);
            if tried[before..].iter().all(|t| t.arena_bytes > request.budget) {
                break;
            }
        }
        if let Some(&largest) = micro_batches.last() {
            self.look(request, (largest, false), |attempt| attempt.sizes(tried))?;
            self.forget_all_but(None, None);
        }
        if let Some(&smallest) = micro_batches.first() {
            self.look(request, (smallest, true), |attempt| attempt.sizes(tried))?;
        }
        Ok(())
    }

    /// Looks at a micro-batch, with its feed-forward networks in tiles or not; none where it has no tiles.
    fn look<T>(
        &mut self,
        request: &Request,
        (micro_batch, tiled): (usize, bool),
        look: impl FnOnce(Attempt) -> Result<T, SearchError>,
    ) -> Result<Option<T>, SearchError> {
        let prepared = if tiled {
            self.prepare_tiled(micro_batch, request.budget)?
        } else {
            Some(self.prepare(micro_batch, request.budget)?)
        };
        prepared.map(|prepared| look(Attempt { request, micro_batch, tiled, prepared })).transpose()
    }

    /// Whether anything fits, without looking for the fastest. The smallest micro-batch has the smallest values, and the
    /// whole batch may have no gradients that persist: one of the two takes the least.
    ///
    /// # Errors
    ///
    /// When the request or the model is at fault.
    pub fn fits(&mut self, request: Request) -> Result<bool, SearchError> {
        let fixed = request.strategy.filter(|&strategy| strategy != Strategy::Auto);
        let micro_batches = request.micro_batches()?;
        let ends: BTreeSet<usize> =
            micro_batches.first().into_iter().chain(micro_batches.last()).copied().collect();
        let mut tried = Vec::new();
        let fits = |tried: &[Tried]| tried.iter().any(|t| t.arena_bytes <= request.budget);
        let look = |attempt: Attempt, tried: &mut Vec<Tried>| match fixed {
            Some(strategy) => attempt.fixed(strategy, tried),
            None => attempt.optimal(tried),
        };
        for key in [false, true].into_iter().flat_map(|tiled| ends.iter().map(move |&rows| (rows, tiled))) {
            let (_, tiled) = key;
            if !fits(&tried) && (fixed.is_none() || !tiled) {
                self.look(&request, key, |attempt| look(attempt, &mut tried))?;
                self.forget_all_but(None, None);
            }
        }
        Ok(fits(&tried))
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
        let prepared = self.prepare(micro_batch, u64::MAX)?;
        Attempt { request: &request, micro_batch, tiled: false, prepared }.named(strategies, &mut tried)?;
        Ok(tried)
    }

    /// The program of a micro-batch.
    ///
    /// # Errors
    ///
    /// When it cannot be built.
    pub fn program(&mut self, micro_batch: usize) -> Result<&Program, SearchError> {
        Ok(&self.prepare(micro_batch, u64::MAX)?.program)
    }

    /// The program of a micro-batch.
    fn prepare(&mut self, micro_batch: usize, budget: u64) -> Result<&Prepared, SearchError> {
        if !self.prepared.contains_key(&(micro_batch, false)) {
            let program = self.build.whole(micro_batch)?;
            self.keep_prepared((micro_batch, false), program, budget)?;
        }
        Ok(&self.prepared[&(micro_batch, false)])
    }

    /// The program of a micro-batch with feed-forward networks in tiles, if it has any.
    fn prepare_tiled(&mut self, micro_batch: usize, budget: u64) -> Result<Option<&Prepared>, SearchError> {
        if !self.prepared.contains_key(&(micro_batch, true))
            && let Some(program) = self.build.tiled(micro_batch)?
        {
            self.keep_prepared((micro_batch, true), program, budget)?;
        }
        Ok(self.prepared.get(&(micro_batch, true)))
    }

    /// Tables that stay for other requests answer for every budget, and so do those of a device that can send away
    /// what does not fit; those made for this one reach just above its budget.
    fn keep_prepared(
        &mut self,
        key: (usize, bool),
        program: Program,
        budget: u64,
    ) -> Result<(), SearchError> {
        let whole = self.keep || program.train.facts.link.is_some();
        let cap = if whole { u64::MAX } else { one_rung_above(budget) };
        self.prepared.insert(key, Prepared::new(program, cap)?);
        Ok(())
    }

    /// Forgets what was made, but for one micro-batch that may be next and for that of the best plan so far.
    fn forget_all_but(&mut self, next: Option<(usize, bool)>, best: Option<&Tried>) {
        if !self.keep {
            let best = best.map(|best| (best.micro_batch, best.tiled));
            self.prepared.retain(|&key, _| Some(key) == next || Some(key) == best);
        }
    }

    /// Plans a combination that was tried once more.
    fn realise(
        &mut self,
        request: Request,
        tried: Tried,
        lower_bound_seconds: Option<f64>,
    ) -> Result<Choice, SearchError> {
        let (micro_batch, budget) = (tried.micro_batch, request.budget);
        let tiled = if tried.tiled { self.prepare_tiled(micro_batch, budget)? } else { None };
        let prepared = match tiled {
            Some(tiled) => tiled,
            None => self.prepare(micro_batch, budget)?,
        };
        let program = &prepared.program;
        let planned = |rung| prepared.planner(tried.scratch)?.order(&program.train.graph, rung);
        let order = tried.rung.and_then(planned);
        let order = order.unwrap_or_else(|| Order::named(&program.train.graph, tried.strategy));
        let plan = assemble_within(program, &order, tried.strategy, tried.scratch, tried.tiered)?;
        let (program, accumulation) = (program.clone(), request.global_batch / micro_batch);
        self.forget_all_but(None, None);
        Ok(Choice { plan, program, micro_batch, accumulation, lower_bound_seconds })
    }

    /// The error that says what would fit.
    fn nothing_fits(&mut self, request: Request, tried: &[Tried]) -> Result<SearchError, SearchError> {
        let Some(smallest) = tried.iter().copied().min_by_key(|t| t.arena_bytes) else {
            return Ok(SearchError::Batch { micro_batch: 0, global_batch: request.global_batch });
        };
        let hints = self.hints(request)?;
        Ok(SearchError::Budget { budget: request.budget, smallest, hints })
    }

    /// What would fit if the user fixed less: other strategies, then smaller micro-batches.
    fn hints(&mut self, request: Request) -> Result<Vec<Tried>, SearchError> {
        if request.micro_batch.is_none() && request.strategy.is_none() {
            return Ok(Vec::new());
        }
        let all = micro_batches(request.global_batch, None)?;
        let open = Request { strategy: None, ..request };
        let micro_batches = all.into_iter().filter(|&b| request.micro_batch.is_none_or(|fixed| b <= fixed));
        let mut fitting = Vec::new();
        for micro_batch in micro_batches {
            // Each for itself: a hint that is slower than another is still a hint.
            let mut own = Vec::new();
            self.look(&open, (micro_batch, false), |attempt| attempt.optimal(&mut own))?;
            self.forget_all_but(None, None);
            fitting.extend(own);
        }
        let mut tiled = Vec::new();
        self.look(&open, (1, true), |attempt| attempt.optimal(&mut tiled))?;
        // A strategy that is fixed is not tiled, so what to type is that none is.
        fitting.extend(tiled.into_iter().map(|tried| Tried { strategy: Strategy::Auto, ..tried }));
        fitting.retain(|t| t.arena_bytes <= request.budget);
        fitting.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        fitting.dedup_by_key(|t| (t.micro_batch, t.strategy));
        fitting.truncate(3);
        Ok(fitting)
    }
}

/// Plans every combination of micro-batch and named strategy.
///
/// # Errors
///
/// When a program cannot be built or planned.
pub fn try_all(
    global_batch: usize,
    micro_batches: &[usize],
    strategies: &[Strategy],
    build: impl Build,
) -> Result<Vec<Tried>, SearchError> {
    let mut searcher = Searcher::once(build);
    let mut tried = Vec::new();
    for &micro_batch in micro_batches {
        tried.extend(searcher.try_named(global_batch, micro_batch, strategies)?);
        searcher.forget_all_but(None, None);
    }
    Ok(tried)
}

/// A micro-batch that waits for its turn.
#[derive(Clone, Copy)]
struct Waiting {
    /// Sequences, and whether in tiles.
    key: (usize, bool),
    /// None of its plans takes less time.
    seconds: f64,
    /// The least comes first: what is fast rules out what is not.
    order: f64,
    /// Whether what the budget forces is counted.
    bounded: bool,
}

/// Takes out the one whose turn it is; of equals the largest, and the one that is not tiled.
fn first(waiting: &mut Vec<Waiting>) -> Option<Waiting> {
    let order = |a: &Waiting, b: &Waiting| {
        let ((a_rows, a_tiled), (b_rows, b_tiled)) = (a.key, b.key);
        a.order.total_cmp(&b.order).then(b_rows.cmp(&a_rows)).then(a_tiled.cmp(&b_tiled))
    };
    let index = (0..waiting.len()).min_by(|&a, &b| order(&waiting[a], &waiting[b]))?;
    Some(waiting.swap_remove(index))
}

/// The fastest that fits.
fn fastest(tried: &[Tried], budget: u64) -> Option<&Tried> {
    let fits = tried.iter().filter(|t| t.arena_bytes <= budget);
    fits.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds))
}

/// The smallest of those that fit and are at most `slack` slower than the fastest that fits.
fn select(tried: &[Tried], budget: u64, slack: f64) -> Option<Tried> {
    let fits: Vec<Tried> = tried.iter().copied().filter(|t| t.arena_bytes <= budget).collect();
    let fastest = fits.iter().map(|t| t.step_seconds).min_by(f64::total_cmp)?;
    let near = fits.into_iter().filter(|t| t.step_seconds <= fastest * (1.0 + slack));
    near.min_by_key(|t| (t.arena_bytes, t.scratch))
}

/// The micro-batches to try: the one asked for, or all divisors of the global batch.
fn micro_batches(global_batch: usize, fixed: Option<usize>) -> Result<Vec<usize>, SearchError> {
    let divides = |b: usize| b > 0 && global_batch > 0 && global_batch.is_multiple_of(b);
    match fixed {
        Some(micro_batch) if divides(micro_batch) => Ok(vec![micro_batch]),
        Some(micro_batch) => Err(SearchError::Batch { micro_batch, global_batch }),
        None if global_batch == 0 => Err(SearchError::Batch { micro_batch: 0, global_batch }),
        None => Ok(divisors(global_batch)),
    }
}

/// All divisors, rising: those up to the root, and what they leave.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..=number.isqrt()).filter(|&b| number.is_multiple_of(b)).collect();
    let large = small.iter().rev().map(|&b| number / b).filter(|&b| b * b != number);
    small.iter().copied().chain(large).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(micro_batch: usize, arena_bytes: u64, step_seconds: f64) -> Tried {
        let (strategy, scratch, tiered) = (Strategy::None, Scratch::Best, Tiered::default());
        Tried { micro_batch, tiled: false, strategy, scratch, arena_bytes, step_seconds, rung: None, tiered }
    }

    #[test]
    fn the_fastest_that_fits_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.5), tried(1, 100, 2.0)];
        assert_eq!(select(&all, 250, 0.0), Some(all[1]));
        assert_eq!(select(&all, 50, 0.0), None);
    }

    #[test]
    fn within_the_slack_the_smallest_is_taken() {
        let all = [tried(4, 400, 1.0), tried(2, 200, 1.005), tried(1, 100, 2.0)];
        assert_eq!(select(&all, 1000, 0.01), Some(all[1]));
    }

    #[test]
    fn only_divisors_of_the_global_batch_are_tried() {
        assert_eq!(micro_batches(12, None).unwrap(), [1, 2, 3, 4, 6, 12]);
        assert!(matches!(micro_batches(12, Some(5)), Err(SearchError::Batch { .. })));
        assert!(micro_batches(0, None).is_err());
    }
}
