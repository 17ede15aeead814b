//! The fastest plan that fits: micro-batch × kept values × scratch under a fixed global batch.
//!
//! For a chain of equal layers one table per micro-batch knows the optimum for every budget. Its answer is then given
//! offsets. A layout can be a little larger than its liveness bound, so the table is asked on a fixed ladder of
//! budgets, from just above the stated one downwards, until the arena fits. A rung that fits a budget also fits every
//! larger one, and higher rungs are never slower; so more memory never makes the plan slower. The named strategies are
//! candidates too, and so are plans that offload values or state to another tier. A plan is skipped only if a bound
//! shows that it would not be chosen. So a request that fixes less gets no slower plan (with state away, as far as the
//! time of an update is known before its layout). Graphs that are no chain have a ladder too, in which every rung is
//! planned by itself.
//!
//! ```text
//! request, tried, error    question and answers
//! tables                   a program with what was made of it, each part when first asked for
//! micro_batch              times and bounds of one micro-batch; whether an order fits
//! offloaded                best-first search among plans that use a tier
//! plans                    all plans of one micro-batch that could be chosen
//! searcher, smallest       the loop over micro-batches; the smallest plans where nothing fits
//! hints                    what would fit if the user fixed less
//! curve, largest           questions that ask many times
//! ```
//!
//! Choices that change the result beyond the order of sums (precision, the optimizer) are never made here.

mod curve;
mod error;
mod hints;
mod largest;
mod micro_batch;
mod offloaded;
mod plans;
mod request;
mod searcher;
mod smallest;
mod tables;
mod tried;
mod waiting;
mod work;

use crate::program::Build;
use crate::recompute::Strategy;

pub use curve::{Point, curve, faster, spread, unbudgeted};
pub use error::SearchError;
pub use largest::largest;
pub use request::Request;
pub use searcher::Searcher;
pub use tried::{Choice, Tried};
pub use work::SearchWork;

/// The fastest plan that fits; `build` makes the programs, and may be a function of the micro-batch.
///
/// # Errors
///
/// When nothing fits (with the smallest plan and hints), or the request or the model is at fault.
pub fn search(request: Request, build: impl Build) -> Result<Choice, SearchError> {
    Searcher::once(build).search(request)
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
