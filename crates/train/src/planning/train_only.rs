//! Parameters that are trained, by patterns for their names; all others are frozen.

use plimsoll_graph::{Graph, GraphError, StateKind, freeze};
use plimsoll_model::lora::Pattern;

/// The choice of parameters: those in whose name one of the expressions is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainOnly(Vec<Pattern>);

impl TrainOnly {
    /// The choice that these expressions make.
    ///
    /// # Errors
    ///
    /// When one is no regular expression.
    pub fn new(expressions: &[String]) -> Result<TrainOnly, GraphError> {
        expressions.iter().map(|text| Pattern::anywhere(text)).collect::<Result<_, _>>().map(TrainOnly)
    }

    /// The expressions as they were written.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(|pattern| pattern.text().to_owned()).collect()
    }

    /// The graph with everything else frozen.
    ///
    /// # Errors
    ///
    /// When an expression is found in no name of a parameter, or takes too long.
    pub(crate) fn of(&self, graph: Graph) -> Result<Graph, GraphError> {
        let mut chosen = Vec::new();
        for pattern in &self.0 {
            let before = chosen.len();
            for state in
                graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }))
            {
                if pattern.fits(&state.name)? {
                    chosen.push(state.name.clone());
                }
            }
            if chosen.len() == before {
                let example = graph.states().first().map_or("", |state| state.name.as_str());
                let why = format!(
                    "`{}` is found in no name of a parameter; names are such as `{example}`",
                    pattern.text()
                );
                return Err(GraphError { what: "train_only".into(), block: String::new(), why, at: None });
            }
        }
        freeze(graph, |name| chosen.iter().any(|known| known == name))
    }
}
