//! Any model a trainer can be given: one question, three answers.

use plimsoll_graph::{Graph, GraphError};

use crate::language::refuse;
use crate::{Bert, Gpt2, Llama};

/// A model of one of the known families.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// Llama, Qwen2 and Qwen3.
    Llama(Llama),
    /// GPT-2.
    Gpt2(Gpt2),
    /// BERT for masked words.
    Bert(Bert),
}

impl Architecture {
    /// The forward graph that ends in the output `loss`; see [`crate`] for its inputs.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn training(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        match self {
            Architecture::Llama(model) => model.training(batch, seq),
            Architecture::Gpt2(model) => model.training(batch, seq),
            Architecture::Bert(model) => model.training(batch, seq),
        }
    }

    /// The graph that ends in the output `logits` of one position; see [`crate`] for its inputs.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together, or the model reads in both directions.
    pub fn generation(&self, seq: usize) -> Result<Graph, GraphError> {
        match self {
            Architecture::Llama(model) => model.generation(seq),
            Architecture::Gpt2(model) => model.generation(seq),
            Architecture::Bert(_) => {
                Err(refuse("bert", "reads in both directions, so it cannot write a text word by word".into()))
            }
        }
    }

    /// The same model for rows that hold several documents, or for rows that hold one. A model that reads
    /// in both directions always keeps documents apart: padding is one.
    #[must_use]
    pub fn with_documents(self, documents: bool) -> Architecture {
        match self {
            Architecture::Llama(model) => Architecture::Llama(Llama { documents, ..model }),
            Architecture::Gpt2(model) => Architecture::Gpt2(Gpt2 { documents, ..model }),
            Architecture::Bert(model) => Architecture::Bert(model),
        }
    }

    /// Whether its graphs read `doc_start`.
    pub fn reads_documents(&self) -> bool {
        match self {
            Architecture::Llama(model) => model.documents,
            Architecture::Gpt2(model) => model.documents,
            Architecture::Bert(_) => true,
        }
    }

    /// The same model with another number of layers.
    #[must_use]
    pub fn with_layers(mut self, count: usize) -> Architecture {
        match &mut self {
            Architecture::Llama(model) => model.layers = count,
            Architecture::Gpt2(model) => model.layers = count,
            Architecture::Bert(model) => model.layers = count,
        }
        self
    }

    /// Words the model knows; token ids are below.
    pub fn vocab(&self) -> usize {
        match self {
            Architecture::Llama(model) => model.vocab,
            Architecture::Gpt2(model) => model.vocab,
            Architecture::Bert(model) => model.vocab,
        }
    }
}

impl From<Llama> for Architecture {
    fn from(model: Llama) -> Architecture {
        Architecture::Llama(model)
    }
}

impl From<Gpt2> for Architecture {
    fn from(model: Gpt2) -> Architecture {
        Architecture::Gpt2(model)
    }
}

impl From<Bert> for Architecture {
    fn from(model: Bert) -> Architecture {
        Architecture::Bert(model)
    }
}
