//! Oracles of the abstract planner: answers found in another way, which tests compare with its own.
//!
//! [`exhaustive`] tries everything on small graphs, [`revolve`] is the classical theory of unit chains, and [`networks`]
//! holds graphs and figures of the literature. [`golden`] compares whole plans with all of them.

pub(crate) mod exhaustive;
mod golden;
mod networks;
mod revolve;

pub(crate) use exhaustive::Dice;
