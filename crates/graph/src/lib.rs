//! The program as data: a static-shape graph with named blocks, and its derivative.
//!
//! ```
//! use plimsoll_graph::{DType, Graph, Init, differentiate};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", [4, 8], DType::F32); // (N, C)
//! let targets = g.input("targets", [4], DType::I32); // (N)
//! let scale = g.loss_scale();
//! let w = g.param("w", [10, 8], Init::Normal(0.02)); // (V, C)
//! let loss = g.head_loss(x, w, None, targets, scale, -100);
//! g.output("loss", loss);
//! let training = differentiate(&g.finish()?, loss)?;
//! assert!(training.state_named("grad.w").is_some());
//! # Ok::<(), plimsoll_graph::GraphError>(())
//! ```
//!
//! In processing order: [`Graph`] and its builder methods, [`Graph::verify`], [`tile`], [`differentiate`],
//! [`fuse`], [`narrow`], [`store`], [`quantise`], [`divide`], [`perturb`]. The `Display` form of a graph is its stable text. This crate holds no tensor data, knows no
//! device and does no I/O.

mod autodiff;
mod builder;
mod cost;
mod count_errors;
mod divide;
mod dtype;
mod error;
mod freeze;
mod fuse;
mod graph;
mod group;
mod interleave;
mod layers;
pub mod op;
mod perturb;
mod precision;
mod quantise;
mod rewrite;
mod rules;
mod shape;
mod splice;
mod store;
mod tape;
mod text;
mod tile;
mod verify;
mod vocabulary;

pub use autodiff::differentiate;
pub use builder::checkpoint;
pub use cost::{Work, work};
pub use count_errors::{ErrorsOf, count_errors};
pub use divide::divide;
pub use dtype::DType;
pub use error::GraphError;
pub use freeze::freeze;
pub use fuse::fuse;
pub use graph::{
    AddedLoss, Block, BlockId, Graph, Init, NameHash, Node, NodeId, Phase, State, StateId, StateKind,
    StatePart, Steered, Tally, Value, ValueInfo, ValueSource, name_hash,
};
pub use interleave::interleave;
pub use layers::{Chain, IGNORED_TARGET};
pub use op::Op;
pub use perturb::{PROBE, PROBE_SIZE, perturb, probe_stream};
pub use precision::{Precision, narrow};
pub use quantise::{QuantisedBytes, quantise};
pub use rules::{SortedCopies, Visible, agree, infer};
pub use shape::{Axes, MAX_RANK, Shape, Type};
pub use store::{Storage, store};
pub use tape::gradient_name;
pub use tile::tile;
pub use vocabulary::VocabularyBytes;
