//! The architectures of models, behind one type: each function asks a question, which every architecture answers.

use plimsoll_graph::{Graph, GraphError};

use crate::language::refuse;
use crate::{Bert, Gpt2, Labels, Llama};

/// A model of one of the known families.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// Llama, Mistral, Qwen2 and Qwen3.
    Llama(Llama),
    /// GPT-2.
    Gpt2(Gpt2),
    /// BERT for masked words, or for labels of whole texts.
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

    /// The forward graph of the same loss with nothing dropped; a classifier's `logits` are an output too.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn evaluation(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        match self {
            Architecture::Llama(model) => model.evaluation(batch, seq),
            Architecture::Gpt2(model) => Gpt2 { dropout: 0.0, ..model.clone() }.training(batch, seq),
            Architecture::Bert(model) => model.evaluation(batch, seq),
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

    /// The same model for rows of several documents, or for rows of one. A bidirectional model always keeps documents
    /// apart, because padding counts as one.
    #[must_use]
    pub fn with_documents(self, documents: bool) -> Architecture {
        match self {
            Architecture::Llama(model) => Architecture::Llama(Llama { documents, ..model }),
            Architecture::Gpt2(model) => Architecture::Gpt2(Gpt2 { documents, ..model }),
            Architecture::Bert(model) => Architecture::Bert(model),
        }
    }

    /// Whether graphs of the architecture read `doc_start`.
    pub fn reads_documents(&self) -> bool {
        match self {
            Architecture::Llama(model) => model.documents,
            Architecture::Gpt2(model) => model.documents,
            Architecture::Bert(_) => true,
        }
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        match self {
            Architecture::Llama(model) => model.layers,
            Architecture::Gpt2(model) => model.layers,
            Architecture::Bert(model) => model.layers,
        }
    }

    /// Tensors that lie with others in one range of state, each under a name of its own: those of experts. A graph holds
    /// their names, so this is known before one is built.
    pub fn grouped_tensors(&self) -> u64 {
        match self {
            Architecture::Llama(model) => {
                model.mixture.as_ref().map_or(0, |mixture| mixture.tensors(model.layers))
            }
            Architecture::Gpt2(_) | Architecture::Bert(_) => 0,
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

    /// The same model with another head, which classifies whole texts into `count` labels. The classifier's input has
    /// the model's dropout rate.
    ///
    /// # Errors
    ///
    /// When the model is none that can.
    pub fn with_labels(self, count: usize) -> Result<Architecture, GraphError> {
        match self {
            Architecture::Bert(model) => {
                let labels = Some(Labels { count, dropout: model.dropout });
                Ok(Architecture::Bert(Bert { labels, ..model }))
            }
            Architecture::Llama(_) => Err(refuse("llama", NO_LABELS.into())),
            Architecture::Gpt2(_) => Err(refuse("gpt2", NO_LABELS.into())),
        }
    }

    /// The number of labels of a classifier; none for other models.
    pub fn labels(&self) -> Option<usize> {
        match self {
            Architecture::Bert(model) => model.labels.map(|labels| labels.count),
            Architecture::Llama(_) | Architecture::Gpt2(_) => None,
        }
    }

    /// The longest sequence the model can read, where there is one; graphs for longer ones are refused.
    pub fn positions(&self) -> Option<usize> {
        match self {
            Architecture::Llama(model) => model.positions,
            Architecture::Gpt2(model) => Some(model.positions),
            Architecture::Bert(model) => Some(model.positions),
        }
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

/// Why a model of words is not made a classifier.
const NO_LABELS: &str = "predicts words; texts are sorted into labels by a BERT";

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
