//! The plans of one micro-batch: those that could be chosen in the budget, and the smallest ones.
//!
//! There are three sources of plans. The optimum of the program is asked on its ladder of budgets, from just above the
//! available room downwards, until the real arena fits. The named strategies are planned as they are. Where the device
//! has another tier, values and state may wait there ([`offloaded`](super::offloaded)). A plan is made only if its
//! bound shows that it could be chosen over those already tried.

use super::error::SearchError;
use super::micro_batch::{MicroBatch, Unplaced};
use super::offloaded::offloaded;
use super::request::Request;
use super::tried::Tried;
use crate::bytes::{ArenaBytes, TransientBytes};
use crate::device::Scratch;
use crate::optimum::Optimum;
use crate::plan::{Tiered, closed_draft};
use crate::recompute::{Order, Strategy};

/// Smallest budgets of an optimum that are planned where nothing fits.
const SMALLEST: usize = 5;

/// The fastest plan with either amount of scratch: from the optimum, from the named strategies, and from offload if the
/// device has a tier.
pub(super) fn fastest_plans(of: MicroBatch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    if !of.can_fit()? {
        return Ok(());
    }
    for &scratch in of.amounts() {
        // No plan is faster than one without recomputation, which often settles the search.
        if !of.could_matter(of.once_seconds(scratch), tried) {
            break;
        }
        // Where not even the state fits, something has to be sent away.
        if ArenaBytes(of.tables.state_bytes()) <= of.request.budget {
            resident_plans(of, scratch, tried);
        }
        offloaded(of, scratch, tried)?;
    }
    Ok(())
}

/// The fastest plans that send nothing away.
fn resident_plans(of: MicroBatch, scratch: Scratch, tried: &mut Vec<Tried>) {
    let optimum = of.tables.optimum(scratch);
    if let Some(table) = optimum.filter(|optimum| optimum.is_table()) {
        let fastest = down_the_ladder(of, table, scratch, tried);
        if let Some(fastest) = fastest.filter(|_| of.request.slack > 0.0) {
            tried.extend(spared(of, table, scratch, fastest, tried));
        }
    }
    fitting_named(of, optimum, scratch, tried);
    // The ladder is skipped where no plan of it could be faster, as when everything can be kept.
    if let Some(search) = optimum.filter(|optimum| !optimum.is_table())
        && of.could_matter(of.once_seconds(scratch), tried)
    {
        down_the_ladder(of, search, scratch, tried);
    }
}

/// The fastest plans of the one strategy that the request fixes, with and without offload, as far as they fit.
pub(super) fn fixed_plans(
    of: MicroBatch,
    strategy: Strategy,
    tried: &mut Vec<Tried>,
) -> Result<(), SearchError> {
    offered(of, strategy)?;
    for &scratch in of.amounts() {
        if of.could_matter(of.once_seconds(scratch), tried) {
            let order = Order::named(&of.program().train.graph, strategy);
            tried.extend(of.fitted(&order, strategy, scratch, None, tried));
            offloaded(of, scratch, tried)?;
        }
    }
    Ok(())
}

/// Refuses a strategy that would take too many runs.
fn offered(of: MicroBatch, strategy: Strategy) -> Result<(), SearchError> {
    if of.tables.offers(strategy) { Ok(()) } else { Err(SearchError::TooManyRuns { strategy }) }
}

/// Plans of named strategies with either amount of scratch, in any budget, as far as they are offered.
pub(super) fn named_plans(of: MicroBatch, strategies: &[Strategy], tried: &mut Vec<Tried>) {
    for &strategy in strategies.iter().filter(|&&strategy| of.tables.offers(strategy)) {
        let order = Order::named(&of.program().train.graph, strategy);
        let entry = |&scratch: &Scratch| of.measured(&order, strategy, scratch, None);
        tried.extend(of.amounts().iter().map(entry));
    }
}

/// The smallest plans: of the named strategies, of the lowest budgets of a graph that is no chain or of a long one, and of
/// sending away everything that can be sent. Plans that neither fit nor are the smallest may be left out.
pub(super) fn smallest_plans(of: MicroBatch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    let mut offloaded = Vec::new();
    smallest_offloaded(of, Strategy::None, &mut offloaded)?;
    let least = offloaded.iter().map(|entry| entry.arena_bytes).min().unwrap_or(ArenaBytes::MAX);
    // No plan with all state in the arena takes fewer bytes than that state.
    let resident = ArenaBytes(of.tables.state_bytes());
    if resident <= least.max(of.request.budget) {
        smallest_resident(of, least, tried);
    }
    tried.extend(offloaded);
    Ok(())
}

/// The smallest plans with all state in the arena, where another one takes `least` bytes.
fn smallest_resident(of: MicroBatch, least: ArenaBytes, tried: &mut Vec<Tried>) {
    if of.tables.is_long() {
        let scratch = of.amounts().last().and_then(|&scratch| Some((of.tables.optimum(scratch)?, scratch)));
        tried.extend(scratch.and_then(|(optimum, scratch)| smallest_of_long(of, optimum, scratch)));
        return;
    }
    smallest_strategies(of, least, tried);
    for &scratch in of.amounts() {
        if let Some(optimum) = of.tables.optimum_of_smallest(scratch) {
            smallest_of_optimum(of, optimum, scratch, tried);
        }
    }
}

/// The named strategies, the one with the lowest bound first. A layout takes long, so only those get one that could fit or
/// be the smallest.
fn smallest_strategies(of: MicroBatch, mut least: ArenaBytes, tried: &mut Vec<Tried>) {
    let offered = Strategy::LADDER.into_iter().filter(|&strategy| of.tables.offers(strategy));
    let unplaced = offered.flat_map(|strategy| {
        let order = Order::named(&of.program().train.graph, strategy);
        of.amounts()
            .iter()
            .map(move |&scratch| of.unplaced(&order, strategy, scratch, None))
            .collect::<Vec<_>>()
    });
    let mut unplaced: Vec<(usize, Unplaced)> = unplaced.enumerate().collect();
    unplaced.sort_by_key(|(place, entry)| (entry.least_bytes(), *place));
    let mut found = Vec::new();
    for (place, entry) in unplaced {
        if entry.least_bytes() > least.max(of.request.budget) {
            break;
        }
        let entry = entry.placed();
        least = least.min(entry.arena_bytes);
        found.push((place, entry));
    }
    found.sort_by_key(|(place, _)| *place);
    tried.extend(found.into_iter().map(|(_, entry)| entry));
}

/// Small plans of a long chain until one fits: by sending everything away, which takes one draft, then of the lowest budgets.
pub(super) fn smallest_that_fits(of: MicroBatch, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    smallest_offloaded(of, Strategy::None, tried)?;
    if of.fastest(tried).is_infinite() {
        let least = of.amounts().last().and_then(|&scratch| Some((of.tables.optimum(scratch)?, scratch)));
        tried.extend(least.and_then(|(optimum, scratch)| smallest_of_long(of, optimum, scratch)));
    }
    Ok(())
}

/// The smallest plans of the one strategy that the request fixes.
pub(super) fn smallest_fixed_plans(
    of: MicroBatch,
    strategy: Strategy,
    tried: &mut Vec<Tried>,
) -> Result<(), SearchError> {
    offered(of, strategy)?;
    named_plans(of, &[strategy], tried);
    smallest_offloaded(of, strategy, tried)
}

/// Asks the optimum from the highest budget that could fit downwards, as long as its plans could be chosen. For a
/// table, the first plan that fits is the fastest and is returned.
fn down_the_ladder(
    of: MicroBatch,
    optimum: &dyn Optimum,
    scratch: Scratch,
    tried: &mut Vec<Tried>,
) -> Option<Tried> {
    let mut before = None;
    for bytes in optimum.budgets(of.room()) {
        if of.could_matter(of.step_seconds(optimum.seconds(bytes), scratch), tried)
            && let Some(order) = optimum.order(&of.program().train.graph, bytes)
            && before.as_ref() != Some(&order)
        {
            let fitted = of.fitted(&order, Strategy::Auto, scratch, Some(bytes), tried);
            tried.extend(fitted);
            if fitted.is_some() && optimum.is_table() {
                return fitted;
            }
            before = Some(order);
        }
        if !of.could_matter(of.step_seconds(optimum.floor_seconds(bytes), scratch), tried) {
            break;
        }
    }
    None
}

/// The lowest budget of a table that is slower than `fastest` by at most the slack: memory that hardly saves time is
/// not used.
fn spared(
    of: MicroBatch,
    table: &dyn Optimum,
    scratch: Scratch,
    fastest: Tried,
    tried: &[Tried],
) -> Option<Tried> {
    let limit = fastest.step_seconds * (1.0 + of.request.slack);
    let fast_enough = |&bytes: &TransientBytes| of.step_seconds(table.seconds(bytes), scratch) <= limit;
    let bytes = table.budgets_below(fastest.rung?).take_while(fast_enough).last()?;
    let order = table.order(&of.program().train.graph, bytes)?;
    of.fitted(&order, Strategy::Auto, scratch, Some(bytes), tried)
}

/// The named strategies, as far as they fit. A table rounds sizes up, and the layout of its answer may be larger than
/// theirs, so each of them can be slightly faster than the table's plan.
fn fitting_named(of: MicroBatch, optimum: Option<&dyn Optimum>, scratch: Scratch, tried: &mut Vec<Tried>) {
    for strategy in Strategy::LADDER {
        let least = optimum.map_or(0.0, |optimum| optimum.strategy_seconds(strategy));
        let bytes = optimum.map_or(0, |optimum| optimum.strategy_bytes(strategy));
        if bytes <= of.room().0 && of.could_matter(of.step_seconds(least, scratch), tried) {
            let order = Order::named(&of.program().train.graph, strategy);
            tried.extend(of.fitted(&order, strategy, scratch, None, tried));
        }
    }
}

/// Plans the smallest budgets of the optimum, limited to plans that a search with a budget of their own size finds again.
/// The smallest plan that an error names must itself be found.
fn smallest_of_optimum(of: MicroBatch, optimum: &dyn Optimum, scratch: Scratch, tried: &mut Vec<Tried>) {
    let graph = &of.program().train.graph;
    let budgets = optimum.smallest_budgets().into_iter();
    let orders = budgets.filter_map(|bytes| Some((bytes, optimum.order(graph, bytes)?)));
    for (bytes, order) in orders.take(SMALLEST) {
        let entry = of.measured(&order, Strategy::Auto, scratch, Some(bytes));
        let room = entry.arena_bytes.transient(of.tables.state_bytes());
        if bytes <= optimum.highest_budget(room) {
            tried.push(entry);
        }
    }
}

/// The smallest plan of a long chain: the lowest budget whose plan fits into it, with the least scratch. The error names that
/// budget and not the smaller bytes of its plan, because a search in those bytes would not try that budget.
fn smallest_of_long(of: MicroBatch, optimum: &dyn Optimum, scratch: Scratch) -> Option<Tried> {
    let graph = &of.program().train.graph;
    optimum.smallest_budgets().into_iter().find_map(|bytes| {
        let budget = bytes.arena(of.tables.state_bytes());
        let of = MicroBatch { request: &Request { budget, ..*of.request }, ..of };
        let order = optimum.order(graph, bytes)?;
        let fitted = of.fitted(&order, Strategy::Auto, scratch, Some(bytes), &[])?;
        Some(Tried { arena_bytes: budget, ..fitted })
    })
}

/// The smallest plans of a strategy with offload: every value that can wait on the tier does, once with the state in the
/// arena and once with the state on the tier too.
fn smallest_offloaded(of: MicroBatch, strategy: Strategy, tried: &mut Vec<Tried>) -> Result<(), SearchError> {
    let program = of.program();
    if program.train.facts.link.is_none() {
        return Ok(());
    }
    // For a long program only the smallest combination is tried: the least scratch, and all state away.
    let long = of.tables.is_long();
    let amounts = of.amounts();
    let order = Order::named(&program.train.graph, strategy);
    for &scratch in &amounts[if long { amounts.len() - 1 } else { 0 }..] {
        for away in [0, u64::MAX].into_iter().skip(usize::from(long)) {
            let tiered = Tiered { limit: Some(TransientBytes(0)), away };
            // This draft is not judged: a caller that chooses it makes it again.
            let draft = closed_draft(program, of.tables.states()?, &order, strategy, scratch, tiered);
            of.tables.work.look(draft.schedules.values().map(|schedule| schedule.actions.len()).sum());
            tried.push(of.entry(&draft, None, tiered));
        }
    }
    Ok(())
}
