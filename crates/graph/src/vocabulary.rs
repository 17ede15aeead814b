//! The tables of words of a model: the embedding, which turns words into vectors, and the head, which scores every word.
//!
//! They are read in another way than linear layers, and are large in small models. Where one table serves as both, it is
//! counted once.

use std::collections::BTreeSet;

use crate::graph::{Graph, Node, StateId, StateKind};
use crate::{Op, Value};

/// Bytes of a model's tables of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabularyBytes {
    /// Of tables that words are looked up in.
    pub embedding: u64,
    /// Bytes of the head's table, if it has one of its own.
    pub head: u64,
    /// Whether the head is an embedding as well.
    pub tied: bool,
}

impl Graph {
    /// Bytes of the tables of words, as they are kept.
    pub fn vocabulary_bytes(&self) -> VocabularyBytes {
        let (looked_up, scored) = (self.tables(table_of_words), self.tables(table_of_scores));
        let bytes = |id: &StateId| self.state(*id).ty.bytes() as u64;
        VocabularyBytes {
            embedding: looked_up.iter().map(bytes).sum(),
            head: scored.difference(&looked_up).map(bytes).sum(),
            tied: !scored.is_disjoint(&looked_up),
        }
    }

    /// The parameters that nodes read as tables, in the place that `table` names.
    fn tables(&self, table: fn(&Op) -> Option<usize>) -> BTreeSet<StateId> {
        let read = |node: &Node| table(&node.op).map(|input| node.inputs[input]);
        self.nodes().iter().filter_map(read).filter_map(|value| self.parameter(value)).collect()
    }

    /// The parameter that a value is, or is a moved or dequantised copy of.
    fn parameter(&self, value: Value) -> Option<StateId> {
        let stored = self.storage(value);
        match (self.value(stored).state, self.producer(stored)) {
            (Some((id, _)), _) => matches!(self.state(id).kind, StateKind::Parameter { .. }).then_some(id),
            (None, Some(copy)) => match self.node(copy).op {
                Op::Perturb { .. } | Op::Subspace { .. } | Op::Dequantise(_) => {
                    self.parameter(self.node(copy).inputs[0])
                }
                _ => None,
            },
            (None, None) => None,
        }
    }
}

fn table_of_words(op: &Op) -> Option<usize> {
    matches!(op, Op::Embedding).then_some(0)
}

fn table_of_scores(op: &Op) -> Option<usize> {
    matches!(op, Op::HeadLoss(_) | Op::HeadLossGrad { .. } | Op::HeadErrors { .. }).then_some(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, perturb};

    fn model(tied: bool) -> Graph {
        let mut g = Graph::new();
        let (ids, targets) = (g.input("ids", [6], DType::I32), g.input("targets", [6], DType::I32));
        let table = g.param("table", [10, 8], Init::Normal(0.1)); // (V, C)
        let x = g.embedding(table, ids); // (N, C)
        let w = g.param("w", [8, 8], Init::Normal(0.1));
        let x = g.linear(x, w, None);
        let head = if tied { table } else { g.param("head", [10, 8], Init::Normal(0.1)) };
        let scale = g.loss_scale();
        let loss = g.head_loss(x, head, None, targets, scale, -100);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    #[test]
    fn a_head_of_its_own_is_counted_apart_and_a_tied_one_once() {
        let table = 4 * 10 * 8;
        let own = VocabularyBytes { embedding: table, head: table, tied: false };
        assert_eq!(model(false).vocabulary_bytes(), own);
        let tied = VocabularyBytes { embedding: table, head: 0, tied: true };
        assert_eq!(model(true).vocabulary_bytes(), tied);
        // The head reads a perturbed copy of its table.
        assert_eq!(perturb(model(true)).unwrap().vocabulary_bytes(), tied);
    }
}
