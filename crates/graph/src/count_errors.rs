//! The pass that lets a forward graph yield its errors in place of its loss, for methods that need no gradient.
//!
//! ```text
//! loss = head_loss(x, w, targets, scale)   →   loss = head_errors(x, w, targets, scale)
//! ```
//!
//! The output keeps its name, and all other nodes stay. Greedy generation writes an answer to the letter exactly where each
//! token of the true answer is the likeliest after the true text before it, because both texts are the same up to the first
//! error. So one pass over the true text counts the exact matches, and nothing has to be generated.
//!
//! Absent on purpose: graphs that sort whole texts, whose loss is no head over words.

use crate::graph::Graph;
use crate::{GraphError, Op};

/// The unit in which targets that are not the likeliest word are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorsOf {
    /// Each such target.
    Tokens,
    /// Each answer with at least one such target.
    Answers,
}

/// Counts errors of the head whose loss the graph yields.
///
/// # Errors
///
/// When that loss is not one of a language-model head over whole sequences, or the graph does not verify afterwards.
pub fn count_errors(mut graph: Graph, of: ErrorsOf) -> Result<Graph, GraphError> {
    let refuse = |why: &str| GraphError {
        what: "count_errors".into(),
        block: String::new(),
        why: why.into(),
        at: None,
    };
    let head = graph.output_named("loss").and_then(|loss| graph.producer(loss));
    let Some((id, Op::HeadLoss(head))) = head.map(|id| (id, graph.node(id).op.clone())) else {
        return Err(refuse("the loss is not that of a head over words"));
    };
    // Targets are given as (B, T) and read as rows.
    let targets = graph.storage(graph.node(id).inputs[2]);
    let length = graph.shape(targets).columns();
    let answers = (of == ErrorsOf::Answers).then_some(length);
    graph.nodes[id.index()].op = Op::HeadErrors { head, answers };
    graph.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Value};

    fn model(end: impl Fn(&mut Graph, Value, Value) -> Value) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [6, 8], DType::F32); // (N, C)
        let w = g.param("w", [10, 8], Init::Normal(0.1)); // (V, C)
        let loss = end(&mut g, x, w);
        g.output("loss", loss);
        g.finish().unwrap()
    }

    #[test]
    fn the_head_counts_tokens_or_answers_of_the_sequences_that_targets_are_given_in() {
        let graph = model(|g, x, w| {
            let targets = g.input("targets", [2, 3], DType::I32);
            let rows = g.reshape(targets, [6]);
            let scale = g.loss_scale();
            g.head_loss(x, w, None, rows, scale, -100)
        });
        for (of, expected) in [(ErrorsOf::Tokens, None), (ErrorsOf::Answers, Some(3))] {
            let counting = count_errors(graph.clone(), of).unwrap();
            let last = &counting.nodes().last().unwrap().op;
            assert!(matches!(last, Op::HeadErrors { answers, .. } if *answers == expected), "{last:?}");
            assert_eq!(counting.output_named("loss"), graph.output_named("loss"));
        }
    }

    #[test]
    fn a_loss_that_is_no_head_is_refused() {
        let graph = model(|g, x, _| g.sum(x, &[0, 1]));
        let why = count_errors(graph, ErrorsOf::Tokens).unwrap_err().why;
        assert_eq!(why, "the loss is not that of a head over words");
    }
}
