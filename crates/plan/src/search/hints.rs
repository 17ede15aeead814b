//! The answer where nothing fits: the smallest plan, and what would fit if the user fixed less.

use super::error::SearchError;
use super::plans::fastest_plans;
use super::request::Request;
use super::searcher::{LARGE, Searcher};
use super::tried::Tried;
use crate::program::Build;
use crate::recompute::Strategy;

impl<B: Build> Searcher<B> {
    /// The error, with the requests that would fit.
    pub(super) fn nothing_fits(
        &mut self,
        request: Request,
        tried: &[Tried],
    ) -> Result<SearchError, SearchError> {
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
        // For a large program, only one other micro-batch is worth the time.
        let large = self.work().largest > LARGE as u64;
        let micro_batches = all.into_iter().filter(|&b| request.micro_batch.is_none_or(|fixed| b <= fixed));
        let mut fitting = Vec::new();
        for micro_batch in micro_batches.take(if large { 1 } else { usize::MAX }) {
            // Each hint is sought alone: a hint that is slower than another is still useful.
            let mut own = Vec::new();
            self.look(&open, (micro_batch, false), |of| fastest_plans(of, &mut own))?;
            self.forget_all_but(None, None);
            fitting.extend(own);
        }
        let mut tiled = Vec::new();
        if !large {
            self.look(&open, (1, true), |of| fastest_plans(of, &mut tiled))?;
        }
        // A fixed strategy is never tiled, so the hint is to fix none.
        fitting.extend(tiled.into_iter().map(|tried| Tried { strategy: Strategy::Auto, ..tried }));
        fitting.retain(|t| t.arena_bytes <= request.budget);
        fitting.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        fitting.dedup_by_key(|t| (t.micro_batch, t.strategy));
        fitting.truncate(3);
        Ok(fitting)
    }
}
