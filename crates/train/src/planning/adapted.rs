//! A model of which only the adapters are trained.

use plimsoll_graph::{Graph, GraphError};
use plimsoll_model::Lora;

use crate::planning::Model;

/// A model with adapters: the same graphs, in which everything else is frozen. Evaluation and generation use the
/// adapters without their dropout.
#[derive(Clone, Debug)]
pub struct Adapted<M> {
    /// The model.
    pub model: M,
    /// Model and method.
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

    fn needs_whole_weights(&self) -> Option<&'static str> {
        self.lora.needs_whole_weights().or_else(|| self.model.needs_whole_weights())
    }

    fn grouped_tensors(&self) -> u64 {
        self.model.grouped_tensors()
    }
}
