//! Training graphs as node-link JSON, the format in which Checkmate's graphs are passed around:
//!
//! ```json
//! {"nodes": [{"id": 0, "name": "conv", "backward": false, "cost_cpu": 385, "cost_ram": 3288334336}],
//!  "links": [{"source": 0, "target": 1}]}
//! ```
//!
//! Ids may have gaps and the list any order, but every link must point from a smaller id to a larger one; so the graph
//! has no cycles. A link given twice is one link. Other fields are ignored.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::{Dag, DagNode};

/// Why a text is not a training graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The text is not JSON.
    NotJson(String),
    /// A field is missing or has the wrong kind.
    Field {
        /// Where, such as `nodes[3].cost_ram`.
        place: String,
        /// The kind of entry that belongs there.
        expected: &'static str,
    },
    /// Two nodes have the same id.
    DuplicateId(u64),
    /// A link names a node that does not exist.
    UnknownId {
        /// The link's number, counted from 0.
        link: usize,
        /// The unknown id.
        id: u64,
    },
    /// A link does not go from a smaller id to a larger one.
    NotTopological {
        /// Where the link starts.
        source: u64,
        /// Where the link ends.
        target: u64,
    },
    /// The graph has no nodes, so there is nothing to plan.
    Empty,
    /// All outputs or all costs together are more than can be added up.
    TooMuch(&'static str),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::NotJson(why) => write!(f, "not JSON: {why}"),
            ParseError::Field { place, expected } => write!(f, "`{place}` must be {expected}"),
            ParseError::DuplicateId(id) => write!(f, "two nodes have the id {id}"),
            ParseError::UnknownId { link, id } => {
                write!(f, "`links[{link}]` names node {id}, which does not exist")
            }
            ParseError::NotTopological { source, target } => write!(
                f,
                "the link {source} → {target} does not go from a smaller id to a larger one: ids must be a topological order"
            ),
            ParseError::Empty => f.write_str("the graph has no nodes"),
            ParseError::TooMuch(field) => write!(f, "the sum of all `{field}` is too large"),
        }
    }
}

impl std::error::Error for ParseError {}

/// Reads a training graph from JSON text.
pub fn parse(text: &str) -> Result<Dag, ParseError> {
    let json: Value = serde_json::from_str(text).map_err(|error| ParseError::NotJson(error.to_string()))?;
    let mut by_id = BTreeMap::new();
    for (index, node) in list(&json, "nodes")?.iter().enumerate() {
        let place = |field: &str| format!("nodes[{index}].{field}");
        let id = whole(node, "id", &place)?;
        let name = match &node["name"] {
            Value::String(name) => name.clone(),
            _ => id.to_string(),
        };
        let backward = node["backward"].as_bool();
        let backward = backward.ok_or(field(place("backward"), "true or false"))?;
        let cost = node["cost_cpu"].as_f64().filter(|cost| cost.is_finite() && *cost >= 0.0);
        let cost = cost.ok_or(field(place("cost_cpu"), "a number that is not negative"))?;
        let bytes = whole(node, "cost_ram", &place)?;
        let parsed = DagNode { name, backward, cost, bytes, running: bytes, sources: Vec::new() };
        if by_id.insert(id, parsed).is_some() {
            return Err(ParseError::DuplicateId(id));
        }
    }
    if by_id.is_empty() {
        return Err(ParseError::Empty);
    }
    if by_id.values().map(|node| u128::from(node.bytes)).sum::<u128>() > 1 << 62 {
        return Err(ParseError::TooMuch("cost_ram"));
    }
    // The limit is far below the largest float, so that sums of several runs stay finite.
    if by_id.values().map(|node| node.cost).sum::<f64>() > 1e200 {
        return Err(ParseError::TooMuch("cost_cpu"));
    }
    let ids: Vec<u64> = by_id.keys().copied().collect();
    let mut nodes: Vec<DagNode> = by_id.into_values().collect();
    for (link, value) in list(&json, "links")?.iter().enumerate() {
        let place = |field: &str| format!("links[{link}].{field}");
        let index = |id: u64| ids.binary_search(&id).map_err(|_| ParseError::UnknownId { link, id });
        let (from, to) = (whole(value, "source", &place)?, whole(value, "target", &place)?);
        let (source, target) = (index(from)?, index(to)?);
        if source >= target {
            return Err(ParseError::NotTopological { source: from, target: to });
        }
        nodes[target].sources.push(source);
    }
    for node in &mut nodes {
        node.sources.sort_unstable();
        node.sources.dedup();
    }
    Ok(Dag { nodes })
}

fn list<'a>(json: &'a Value, name: &str) -> Result<&'a Vec<Value>, ParseError> {
    json[name].as_array().ok_or(field(name.to_owned(), "a list"))
}

fn field(place: String, expected: &'static str) -> ParseError {
    ParseError::Field { place, expected }
}

/// A whole number, which other tools may have written as `12.0`.
fn whole(json: &Value, name: &str, place: &impl Fn(&str) -> String) -> Result<u64, ParseError> {
    /// Above this a float no longer holds every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value = &json[name];
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=EXACT).contains(x)).map(|x| x as u64);
    value.as_u64().or_else(float).ok_or(field(place(name), "a whole number that is not negative"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(nodes: &str, links: &str) -> Result<Dag, ParseError> {
        parse(&format!(r#"{{"name": "g", "nodes": [{nodes}], "links": [{links}]}}"#))
    }

    const TWO: &str = r#"{"id": 7, "name": "b", "backward": true, "cost_cpu": 2.5, "cost_ram": 4.0},
                         {"id": 3, "name": "a", "backward": false, "cost_cpu": 1, "cost_ram": 8}"#;

    #[test]
    fn nodes_are_ordered_by_id_and_links_deduplicated() {
        let dag = with(TWO, r#"{"source": 3, "target": 7}, {"source": 3, "target": 7}"#).unwrap();
        assert_eq!(dag.nodes[0].name, "a");
        assert_eq!((dag.nodes[1].cost, dag.nodes[1].bytes), (2.5, 4));
        assert_eq!(dag.nodes[1].sources, [0]);
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        let said = |result: Result<Dag, ParseError>| result.unwrap_err().to_string();
        assert!(said(parse("{")).starts_with("not JSON: "));
        assert_eq!(said(parse("{}")), "`nodes` must be a list");
        assert_eq!(said(with("", "")), "the graph has no nodes");
        assert_eq!(
            said(with(TWO, r#"{"source": 3, "target": 8}"#)),
            "`links[0]` names node 8, which does not exist"
        );
        let back = said(with(TWO, r#"{"source": 7, "target": 3}"#));
        assert!(back.starts_with("the link 7 → 3 does not go from a smaller id"), "{back}");
        assert_eq!(said(with(&format!("{TWO},{TWO}"), "")), "two nodes have the id 7");
        let negative = TWO.replace("2.5", "-1");
        assert_eq!(said(with(&negative, "")), "`nodes[0].cost_cpu` must be a number that is not negative");
        let missing = TWO.replace("backward", "phase");
        assert_eq!(said(with(&missing, "")), "`nodes[0].backward` must be true or false");
        let huge = TWO.replace("4.0", "18446744073709551615");
        assert_eq!(said(with(&huge, "")), "the sum of all `cost_ram` is too large");
        let fraction = TWO.replace("4.0", "4.5");
        assert_eq!(
            said(with(&fraction, "")),
            "`nodes[0].cost_ram` must be a whole number that is not negative"
        );
    }
}
