//! From a graph and a budget to a schedule.

mod problem;

pub use problem::{Facts, NodeFacts, Workspace};
