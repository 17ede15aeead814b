//! Oracles of the chain planner: answers found in another way, which tests compare with the table's.
//!
//! [`exhaustive`] tries everything on small chains, [`study`] holds the figures of another program, [`formulas`] those of
//! the literature, and [`families`] compares real models with their own plans.

mod exhaustive;
mod families;
mod formulas;
mod study;
