//! Parameters that are trained, by patterns for their names; all others are frozen.

use plimsoll_graph::{Graph, GraphError, StateKind, freeze};
use plimsoll_model::lora::Pattern;

/// What an error is about.
const WHAT: &str = "train_only";

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
        let patterns = expressions.iter().map(|text| Pattern::anywhere(text)).collect::<Result<_, _>>();
        patterns.map(TrainOnly).map_err(|error| GraphError { what: WHAT.into(), ..error })
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
                let why = format!("`{}` {}", pattern.text(), found_nowhere(&graph, pattern)?);
                return Err(GraphError { what: WHAT.into(), block: String::new(), why, at: None });
            }
        }
        freeze(graph, |name| chosen.iter().any(|known| known == name))
    }
}

/// Says of an expression that is in no name of a parameter how to find one that is.
fn found_nowhere(graph: &Graph, pattern: &Pattern) -> Result<String, GraphError> {
    for group in graph.states() {
        for part in &group.parts {
            if pattern.fits(&part.name)? {
                let (part, group) = (&part.name, &group.name);
                return Ok(format!(
                    "is found in `{part}` alone, a part of `{group}`, which is trained as a whole"
                ));
            }
        }
    }
    let example = graph.states().first().map_or("", |state| state.name.as_str());
    Ok(format!("is found in no name of a parameter; names are such as `{example}`"))
}
