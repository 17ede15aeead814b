//! A model whose adapters are trained instead of itself, and how large they may be.

use plimsoll_graph::{Graph, GraphError};
use plimsoll_model::Lora;
use plimsoll_plan::{Facts, Searcher, largest};

use crate::budget::Budget;
use crate::error::TrainError;
use crate::options::Options;
use crate::planning::{Model, Programs};

/// A model with adapters: the same graphs, frozen but for them. Evaluation and generation use the adapters
/// without their dropout.
#[derive(Clone, Debug)]
pub struct Adapted<M> {
    /// The model.
    pub model: M,
    /// What is trained.
    pub lora: Lora,
}

impl<M: Model> Model for Adapted<M> {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        self.lora.adapt(&self.model.training(rows)?)
    }

    fn evaluation(&self, rows: usize) -> Result<Graph, GraphError> {
        self.lora.without_dropout().adapt(&self.model.evaluation(rows)?)
    }

    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        let graph = self.model.generation()?;
        Some(graph.and_then(|graph| self.lora.without_dropout().adapt(&graph)))
    }
}

/// The largest rank whose training fits into `budget` on a device that `facts` speaks for; none when not even
/// rank 1 does. Ranks end where an adapter of the widest layer could hold any matrix of its shape.
///
/// # Errors
///
/// When the model, the adapters or the options are at fault.
pub fn largest_rank<M: Model + Clone>(
    adapted: &Adapted<M>,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    budget: &Budget,
) -> Result<Option<usize>, TrainError> {
    let adapters = adapted.lora.adapters(&adapted.model.training(1)?)?;
    let most = adapters.iter().map(|adapter| adapter.input.min(adapter.output)).max().unwrap_or(1);
    let request = options.request(budget);
    let found = largest(most, |rank| {
        let lora = Lora { rank, ..adapted.lora.clone() };
        let candidate = Adapted { lora, model: adapted.model.clone() };
        let mut searcher = Searcher::new(Programs { model: &candidate, facts: &facts, options });
        let fits = searcher.fits(request).map_err(|error| TrainError::search(error, budget))?;
        Ok::<_, TrainError>(fits.then_some(()))
    })?;
    Ok(found.map(|(rank, ())| rank))
}
