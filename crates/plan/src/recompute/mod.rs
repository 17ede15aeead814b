//! Values that are dropped and computed again.
//!
//! In processing order: [`strategy`] names the rules that people choose from, [`layers`] cuts a graph into layers,
//! [`regions`] turns a rule into a tree, [`run_order`] turns the tree into the runs of a schedule, and [`gathers`] begins exchanges
//! of weights early. Which tree is best in
//! a budget is decided later, in `optimum`.

mod gathers;
mod layers;
mod regions;
mod run_order;
mod strategy;

pub(crate) use layers::{layer_names, layers};
pub(crate) use regions::{Item, Regions};
pub(crate) use run_order::{Order, Run, forward, members, micro_batch, part, update};

pub use strategy::Strategy;
