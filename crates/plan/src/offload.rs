//! How much waits on another tier, where the device offers one: the trade of rebuilding against sending away.
//!
//! Two numbers decide. What would be kept if there were `virtual` bytes says what is rebuilt; sending away what
//! then does not fit into `limit` bytes ([`spill`](crate::spill)) says what is offloaded:
//!
//! ```text
//! limit = virtual           everything rebuilt, nothing sent       time: what runs again
//! limit < virtual           less rebuilt, the difference sent      time: what runs again, and standing still
//! virtual = whole model     nothing rebuilt                        time: standing still alone
//! ```
//!
//! Both come from fixed ladders, and which pairs are considered at a limit does not depend on the budget. The plan
//! for a budget is the fastest of them whose arena fits, so more memory is never slower. Times are known
//! without a layout, and most pairs are ruled out by theirs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::attempt::Attempt;
use crate::order::Order;
use crate::placement::persistent_bytes;
use crate::plan::{Costed, Tiered, assemble_within};
use crate::planner::Planner;
use crate::problem::Scratch;
use crate::search::{SearchError, Tried};
use crate::sequence::micro_batch;
use crate::spill::Spiller;
use crate::strategy::Strategy;

/// Ratio of neighbouring limits.
const LIMIT_RUNG: f64 = 1.03;
/// Ratio of neighbouring virtual budgets.
const VIRTUAL_RUNG: f64 = 1.1;

/// Of the pairs with one limit, so many of the fastest are given offsets, which takes most of the time.
const LAID_OUT: usize = 2;

/// What is rebuilt, before anything is sent away.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) strategy: Strategy,
    /// The virtual budget, where the table was asked.
    pub(crate) rung: Option<u64>,
    pub(crate) order: Order,
    pub(crate) spiller: Spiller,
    /// Times by limit, as far as they were asked for.
    seconds: RefCell<BTreeMap<u64, Option<f64>>>,
}

impl Source {
    fn new(
        part: &Costed,
        scratch: Scratch,
        strategy: Strategy,
        rung: Option<u64>,
        order: Order,
    ) -> Option<Source> {
        let sequence = micro_batch(&part.graph, &order);
        let spiller = Spiller::new(&part.graph, &part.facts, scratch, sequence)?;
        Some(Source { strategy, rung, order, spiller, seconds: RefCell::default() })
    }

    fn named(part: &Costed, scratch: Scratch, strategy: Strategy) -> Option<Source> {
        Source::new(part, scratch, strategy, None, Order::named(&part.graph, strategy))
    }

    /// Ways of rebuilding, from nothing to as much as ever fits.
    pub(crate) fn all(part: &Costed, scratch: Scratch, planner: Option<&Planner>) -> Vec<Source> {
        let named = |strategy| Source::named(part, scratch, strategy);
        let Some(planner) = planner else {
            return Strategy::LADDER.into_iter().filter_map(named).collect();
        };
        let optimal = |rung| {
            let order = planner.order(&part.graph, rung)?;
            Source::new(part, scratch, Strategy::Auto, Some(rung), order)
        };
        let fixed = planner.fixed_strategies().iter().filter_map(|&strategy| named(strategy));
        fixed.chain(planner.virtual_rungs(VIRTUAL_RUNG).into_iter().filter_map(optimal)).collect()
    }

    /// Time of a micro-batch that keeps at most `limit` bytes alive; none when the tier has no room for the rest.
    fn seconds(&self, limit: u64) -> Option<f64> {
        *self.seconds.borrow_mut().entry(limit).or_insert_with(|| self.spiller.seconds_within(limit))
    }
}

impl Attempt<'_> {
    /// Plans that also send values away; nothing where the device has nowhere to send them.
    pub(crate) fn offloaded(&self, scratch: Scratch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
        let program = &self.prepared.program;
        // Nothing is sent away to spare memory that is there.
        let faster = |seconds: f64, tried: &[Tried]| seconds < self.fastest(tried);
        if program.train.facts.link.is_none() || !faster(self.once_seconds(scratch), tried) {
            return Ok(());
        }
        let room = self.request.budget.saturating_sub(persistent_bytes(program, 0)?);
        let fixed = self.request.strategy.map(|fixed| Source::named(&program.train, scratch, fixed));
        let all = match &fixed {
            Some(source) => source.as_slice(),
            None => self.prepared.sources(scratch),
        };
        // Where state alone is too large, nothing fits unless some of it is away.
        let mut sources: Vec<&Source> = if room > 0 { all.iter().collect() } else { Vec::new() };
        let least = sources.iter().map(|source| source.spiller.least_bytes()).min().unwrap_or(0);
        for limit in limits(room, least, LIMIT_RUNG).take_while(|_| room > 0) {
            let bound = |source: &Source| self.step_seconds(source.spiller.lower_bound(limit), scratch);
            sources.retain(|source| faster(bound(source), tried));
            let beyond = sources.iter().filter(|source| source.spiller.most_bytes() > limit);
            let mut timed: Vec<(f64, &Source)> =
                beyond.filter_map(|source| Some((source.seconds(limit)?, *source))).collect();
            timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            for (seconds, source) in timed.into_iter().take(LAID_OUT) {
                if faster(self.step_seconds(seconds, scratch), tried) {
                    let Source { strategy, rung, order, .. } = source;
                    let tiered = Tiered { limit: Some(limit), away: 0 };
                    let plan = assemble_within(program, order, *strategy, scratch, tiered)?;
                    tried.push(Tried { tiered, ..self.entry(&plan, *rung) });
                }
            }
        }
        self.streamed(scratch, all, tried)
    }
}

/// Limits, falling, from just below `room` to the last above `least`, and one that sends away what can be sent.
pub(crate) fn limits(room: u64, least: u64, ratio: f64) -> impl Iterator<Item = u64> {
    let top = ((room.max(1) as f64).ln() / ratio.ln()).floor() as i32;
    let rungs = (0..=top).rev().map(move |rung| ratio.powi(rung) as u64);
    rungs.take_while(move |&limit| limit > least).chain([0])
}
