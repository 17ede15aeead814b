//! From a graph and a budget to a schedule in which every buffer has an offset.
//!
//! In processing order: a [`Strategy`] becomes a tree of regions (`regions`), the regions an order of
//! runs (`sequence`; a graph that is no chain may have its order from `general`), the order buffers with lifetimes (`liveness`), those offsets in one arena
//! ([`layout()`]), and every schedule passes the judge ([`replay()`]) before it leaves [`plan()`]. [`search()`]
//! looks for the fastest plan inside a budget.
//!
//! Pure functions throughout: no clock, no randomness, no device. What must be known of a device enters
//! as [`Facts`].

mod attempt;
mod build;
mod chain;
mod compare;
mod curve;
pub mod dag;
mod devices;
pub mod file;
mod general;
mod gradients;
mod largest;
mod layout;
mod liveness;
mod names;
mod offload;
mod order;
mod placement;
mod plan;
mod planner;
mod prepared;
mod problem;
mod regions;
mod replay;
mod report;
mod schedule;
mod search;
mod sequence;
mod spill;
mod strategy;
mod streamed;
mod timeline;

pub use build::Build;
pub use compare::Compared;
pub use curve::{Point, spread};
pub use devices::{DeviceSpec, UnknownDevice};
pub use gradients::{GradientReport, Persist, gradients};
pub use largest::largest;
pub use layout::{CsvError, CsvFault, Effort, Layout, Table, layout, solve};
pub use liveness::Slot;
pub use plan::{ByPurpose, Costed, Plan, PlanError, Program, Role, StateRange, Tiered, plan};
pub use problem::{Facts, Link, NodeFacts, Scratch, Workspace};
pub use replay::{Fault, ReplayError, replay};
pub use report::{LayerReport, Report, report};
pub use schedule::{
    Action, Away, Buffer, BufferId, Contents, Copy, Direction, Purpose, Schedule, Space, Tier,
};
pub use search::{Choice, Request, SearchError, Searcher, Tried, search, try_all};
pub use strategy::Strategy;
pub use timeline::{Span, spans, timeline};
