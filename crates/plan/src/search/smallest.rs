//! The smallest plans, which are asked for where nothing fits: an error names one.

use super::error::SearchError;
use super::plans::{smallest_fixed_plans, smallest_plans};
use super::request::Request;
use super::searcher::{LARGE, Searcher};
use super::tables::ProgramTables;
use super::tried::Tried;
use super::waiting::Key;
use crate::bytes::ArenaBytes;
use crate::program::Build;
use crate::recompute::Strategy;

impl<B: Build> Searcher<B> {
    /// The smallest plan of a request, whatever its budget. A search with a budget of its size finds a plan.
    ///
    /// # Errors
    ///
    /// When the request or the model is at fault.
    pub fn smallest(&mut self, request: Request) -> Result<Tried, SearchError> {
        let request = Request { strategy: request.fixed_strategy(), budget: ArenaBytes(0), ..request };
        let micro_batches = request.micro_batches()?;
        let mut tried = Vec::new();
        match request.strategy {
            Some(strategy) => self.smallest_fixed(&request, strategy, &micro_batches, &mut tried)?,
            None => self.smallest_named(&request, &micro_batches, &mut tried)?,
        }
        let smallest = tried.into_iter().min_by_key(|t| t.arena_bytes);
        smallest.ok_or(SearchError::Batch { micro_batch: 0, global_batch: request.global_batch })
    }

    /// Drops a program that cannot fit. Most likely nothing fits then, and the smallest plans are asked for. Those of a large
    /// program are found before it is dropped, because building it again would take longer.
    pub(super) fn cannot_fit(&mut self, request: &Request, key: Key) -> Result<(), SearchError> {
        let large = |tables: &ProgramTables| tables.program.train.graph.nodes().len() > LARGE;
        if self.below.is_infinite() && self.tables.get(&key).is_some_and(large) {
            let mut tried = Vec::new();
            self.look_at_smallest(request, key, &mut tried)?;
            self.smallest.insert(key, tried);
        }
        self.tables.remove(&key);
        Ok(())
    }

    /// The smallest plans of one strategy.
    pub(super) fn smallest_fixed(
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
    pub(super) fn smallest_named(
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
        if let Some(known) = self.smallest.get(&key) {
            tried.extend(known);
            return Ok(());
        }
        let long = self.look(request, key, |of| smallest_plans(of, tried).map(|()| of.tables.is_long()))?;
        self.forget_all_but(None, None);
        // Tables of long chains are large, and where nothing fits they are not kept.
        if long == Some(true) {
            self.tables.remove(&key);
        }
        Ok(())
    }
}
