//! From a graph and a budget to a schedule in which every buffer has an offset.
//!
//! Folders are layers: each uses only those above it in this list, and a test (`crates/plimsoll/tests/layers.rs`)
//! checks the imports.
//!
//! ```text
//! bytes        process, arena, transient part             counts of bytes that must not be mixed
//! device/      facts, links, described GPUs               facts of a device
//! program/     graphs with facts, roles, state ranges     the input of planning
//! schedule/    actions, buffers, time, replay/            the answer's form, and its judge
//! layout/      lifetimes, exchanges, greedy, exact        runs → lifetimes → offsets
//! recompute/   strategy, layers, regions, run order       runs that are repeated, as a tree
//! remat/       labels, bound, search, ladder              the planner for abstract graphs; imports nothing of ours
//! optimum/     trait, ladder, chain/, graph/              the fastest order for any transient budget, and its bound
//! offload/     residency, transfers, candidates           values on other tiers, and their transfers
//! plan/        draft, judge, plan                         all schedules of a run in one arena
//! search/      request, tables, micro-batch, searcher     the fastest plan in a budget
//! report/      by layer, timeline, compare                reports for people
//! file/        plan files                                 plans made once and run later
//! ```
//!
//! Pure functions throughout: no clock, no randomness, no device. Facts of a device enter as [`Facts`].

mod bytes;
mod device;
pub mod file;
mod layout;
mod offload;
mod optimum;
mod plan;
mod program;
mod recompute;
pub mod remat;
mod report;
mod schedule;
mod search;

pub use bytes::{ArenaBytes, ProcessBytes, TransientBytes};
pub use device::{
    DeviceSpec, Direction, Facts, Lane, Link, NodeFacts, RankLink, RankLinks, Scratch, Tier, UnknownDevice,
    Workspace,
};
pub use layout::{CsvError, CsvFault, Effort, Layout, Slot, Table, layout, solve};
pub use plan::{ByPurpose, Draft, Plan, PlanError, Tiered, plan};
pub use program::{Build, Costed, Program, Purpose, Role, StateDiffers, StateRange};
pub use recompute::Strategy;
pub use report::{
    Compared, ExpertReport, GradientReport, LayerReport, Persist, Report, Span, Traffic, compare, experts,
    gradients, report, spans, timeline, traffic, wire_bytes,
};
pub use schedule::{
    Action, Away, Buffer, BufferId, Contents, Copy, End, Exchange, Fault, Judged, RanksDiffer, ReplayError,
    Runnable, Schedule, Space, exchanges, replay, replay_all, replay_ranks, runnable,
};
pub use search::{
    Choice, Point, Request, SearchError, SearchWork, Searcher, Tried, curve, faster, largest, search, spread,
    try_all, unbudgeted,
};
