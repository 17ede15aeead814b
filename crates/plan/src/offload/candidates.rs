//! The combinations on offer where the device has another tier: recomputation × residency of state × limit.
//!
//! Three numbers make a candidate. The `virtual` budget decides what is recomputed, as if that much memory were there.
//! The bytes of state that are away ([`residency`](super::residency)) decide how much of the budget is left. The
//! `limit` is the memory that values must fit into: those that do not fit wait on the tier
//! ([`transfers`](super::transfers)).
//!
//! ```text
//! limit = virtual           all that does not fit is recomputed       costs repeated runs
//! limit < virtual           less is recomputed, the rest is sent      costs repeated runs, and waits for transfers
//! virtual = whole model     nothing is recomputed                     costs waits for transfers alone
//! ```
//!
//! All numbers come from fixed ladders, and the named strategies are recomputations too. So the candidates depend
//! neither on the budget nor on the fixed choices of a request. The plan for a budget is the fastest candidate whose
//! arena fits (`search` finds it). Hence more memory never gives a slower plan, and neither does a request that fixes
//! less.
//!
//! A candidate is made when it is first needed, and all that was learnt about it is kept for the next budget.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::residency::{Division, StateAway, StateOrder, rungs};
use super::transfers::{ResidentRuns, Transfers};
use super::updates::{KnownUpdates, TimedUpdate};
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::Scratch;
use crate::optimum::{Ladder, Optimum};
use crate::program::{Costed, Program};
use crate::recompute::{Order, Strategy, micro_batch, update};

/// Limits where all state is in the arena, and where some is away.
const LIMITS: Ladder = Ladder::new(1.03);
const LIMITS_AWAY: Ladder = Ladder::new(1.2);
/// The limits of a long program.
const FEW_LIMITS: Ladder = Ladder::new(1.5);
const FEW_LIMITS_AWAY: Ladder = Ladder::new(2.0);
/// One in this many virtual budgets is combined with state that is away.
const EVERY_AWAY: usize = 3;

/// A rule for recomputing, before anything is sent away.
#[derive(Debug)]
pub(crate) struct Recomputation {
    pub(crate) strategy: Strategy,
    /// The virtual budget, where the table was asked.
    pub(crate) rung: Option<TransientBytes>,
    /// A lower bound on a micro-batch's time that needs no order.
    pub(crate) least_seconds: f64,
    /// Whether this recomputation is combined with state that is away.
    pub(crate) goes_with_away: bool,
    order: OnceCell<Option<Ordered>>,
}

/// The order of runs that a recomputation makes.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) order: Order,
    pub(crate) runs: ResidentRuns,
}

/// A residency of state, with the times that follow from it.
#[derive(Debug)]
pub(crate) struct ResidencyOption {
    /// Bytes of state that are away.
    pub(crate) away: u64,
    /// The state that is away.
    pub(crate) state: StateAway,
    /// Bytes of state that stay in the arena.
    pub(crate) resident: u64,
    /// Least time to fetch each weight that is away once.
    pub(crate) weights_seconds: f64,
    /// The update, if some of its state is away.
    update: Option<Rc<TimedUpdate>>,
    /// Whether few limits are tried.
    long: bool,
}

/// A limit, and the least time of a micro-batch that stays within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// Bytes that are alive at one time at least.
    pub(crate) least_bytes: u64,
    pub(crate) pass_seconds: f64,
}

/// A residency, a recomputation and a limit.
pub(crate) type Combination = (usize, usize, u64);

/// Knowledge about a combination so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// The time of a micro-batch, or a lower bound on it.
    pub(crate) least_seconds: f64,
    /// Times of a micro-batch and of the update, once they have been computed.
    pub(crate) seconds: Option<(f64, f64)>,
    /// Arena sizes in which it is known to fit, and known not to fit.
    pub(crate) fits: Option<ArenaBytes>,
    pub(crate) fails: ArenaBytes,
}

/// Everything on offer for one micro-batch and amount of scratch.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) recomputations: Vec<Recomputation>,
    /// Residencies of state. The first keeps all state in the arena.
    pub(crate) residencies: Vec<ResidencyOption>,
    /// Limits of a residency and a recomputation, falling.
    pub(crate) limits: RefCell<BTreeMap<(usize, usize), Vec<Limit>>>,
    pub(crate) found: RefCell<BTreeMap<Combination, Found>>,
}

impl Recomputation {
    fn named(strategy: Strategy, least_seconds: f64) -> Recomputation {
        Recomputation { strategy, rung: None, least_seconds, goes_with_away: true, order: OnceCell::new() }
    }

    /// All recomputations: the named strategies, and the budgets of the optimum where there is one.
    pub(crate) fn all(
        program: &Program,
        scratch: Scratch,
        optimum: Option<&dyn Optimum>,
    ) -> Vec<Recomputation> {
        let once = program.pass_seconds(scratch);
        let least = |strategy| optimum.map_or(once, |optimum| optimum.strategy_seconds(strategy).max(once));
        let named =
            Strategy::LADDER.into_iter().map(|strategy| Recomputation::named(strategy, least(strategy)));
        let optimal = |optimum: &dyn Optimum, (index, rung): (usize, TransientBytes)| Recomputation {
            strategy: Strategy::Auto,
            rung: Some(rung),
            least_seconds: optimum.seconds(rung),
            // Rungs are counted from the least budget that works, so that this budget is included.
            goes_with_away: index.is_multiple_of(EVERY_AWAY),
            order: OnceCell::new(),
        };
        let long = optimum.is_some_and(Optimum::is_long);
        let offered = |named: &Recomputation| !long || named.strategy == Strategy::None;
        let mut recomputations: Vec<Recomputation> = named.filter(offered).collect();
        if let Some(optimum) = optimum {
            let rising = optimum.budgets_with_tier().into_iter().rev().enumerate();
            recomputations.extend(rising.map(|rung| optimal(optimum, rung)));
        }
        recomputations
    }

    /// The one recomputation that a request fixes.
    pub(crate) fn fixed(program: &Program, scratch: Scratch, strategy: Strategy) -> Vec<Recomputation> {
        vec![Recomputation::named(strategy, program.pass_seconds(scratch))]
    }

    /// The order of runs that the recomputation makes; `None` if the device has no tier.
    pub(crate) fn order<'a>(
        &self,
        part: &Costed,
        scratch: Scratch,
        optimum: impl FnOnce() -> Option<&'a dyn Optimum>,
    ) -> Option<&Ordered> {
        let new = || {
            let order = match self.rung {
                Some(rung) => optimum()?.order(&part.graph, rung)?,
                None => Order::named(&part.graph, self.strategy),
            };
            let sequence = micro_batch(&part.graph, &order);
            let runs = ResidentRuns::new(&part.graph, &part.facts, scratch, sequence)?;
            Some(Ordered { order, runs })
        };
        self.order.get_or_init(new).as_ref()
    }
}

impl ResidencyOption {
    /// The residency that divides state so; `update` is the update, if some of its state is away.
    fn new(
        part: &Costed,
        away: u64,
        division: Division,
        update: Option<Rc<TimedUpdate>>,
        long: bool,
    ) -> ResidencyOption {
        let Division { state, resident, weights } = division;
        let in_rate = part.facts.link.map_or(f64::INFINITY, |link| link.in_rate);
        ResidencyOption { away, resident, weights_seconds: weights as f64 / in_rate, update, state, long }
    }

    /// The limits to try of a micro-batch, falling. None is above the bytes that keeping everything takes, since more brings
    /// nothing.
    pub(crate) fn limits(&self, transfers: &Transfers) -> Vec<Limit> {
        let update = self.update.as_ref().map_or(0, |update| update.transfers().most_bytes());
        let most = update.max(transfers.most_bytes());
        let ladder = match (self.away > 0, self.long) {
            (false, false) => LIMITS,
            (false, true) => FEW_LIMITS,
            (true, false) => LIMITS_AWAY,
            (true, true) => FEW_LIMITS_AWAY,
        };
        let top = if self.away > 0 { ladder.above(most) } else { most.saturating_sub(1) };
        let least_bytes = transfers.least_bytes();
        let limit = |bytes| Limit { bytes, least_bytes, pass_seconds: transfers.lower_bound(bytes) };
        // The last one sends away everything that can be sent.
        let rungs = ladder.falling(top).take_while(|&bytes| bytes > least_bytes);
        rungs.chain([0]).map(limit).collect()
    }

    /// Time of an update that keeps a limit, `whole` where all its state is in the arena; none when the tier has no
    /// room.
    pub(crate) fn update_within(&self, limit: u64, whole: f64) -> Option<f64> {
        let Some(update) = &self.update else { return Some(whole) };
        update.within(limit)
    }

    /// A lower bound on the bytes of any plan with this residency, however little a micro-batch takes. The resident
    /// state stays, and the update fetches its own.
    pub(crate) fn least_bytes(&self) -> ArenaBytes {
        let transient = self.update.as_ref().map_or(0, |update| update.transfers().least_bytes());
        TransientBytes(transient).arena(self.resident)
    }

    /// A lower bound on the time of an update with this residency that keeps the limit.
    pub(crate) fn update_bound(&self, limit: u64, whole: f64) -> f64 {
        self.update.as_ref().map_or(whole, |update| update.bound(limit))
    }

    /// A lower bound on the time of an update with this residency.
    pub(crate) fn update_least(&self, whole: f64) -> f64 {
        self.update_bound(u64::MAX, whole)
    }
}

impl Candidates {
    /// The combinations on offer with these recomputations; fewer where the program is `long`. State leaves in the order of
    /// `states`, and updates that are `known` are not timed again.
    pub(crate) fn new(
        program: &Program,
        (states, known): (&StateOrder, &KnownUpdates),
        scratch: Scratch,
        recomputations: Vec<Recomputation>,
        long: bool,
    ) -> Candidates {
        let lengths = std::iter::once(0).chain(rungs(states, long));
        let part = &program.train;
        let update = ResidentRuns::new(&part.graph, &part.facts, scratch, update(&part.graph));
        let update = |away: u64, state: &StateAway| {
            let update = update.as_ref().filter(|_| away > 0)?;
            Some(known.of(update.with_away(&part.graph, &part.facts, scratch, state)?))
        };
        let option = |away| {
            let division = states.division(part, away);
            let update = update(away, &division.state);
            ResidencyOption::new(part, away, division, update, long)
        };
        let residencies = lengths.map(option).collect();
        Candidates { recomputations, residencies, limits: RefCell::default(), found: RefCell::default() }
    }
}
