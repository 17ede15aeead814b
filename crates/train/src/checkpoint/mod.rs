//! A run on disk, whole or not at all.
//!
//! ```text
//! output_dir/
//!   checkpoint-200/
//!     model.safetensors, config.json, …    a model's folder like any other
//!     optimizer.safetensors                moments, and whatever else outlives a step
//!     trainer_state.json                   step, place in the data, checksums of all files here
//!   .tmp-checkpoint-210/                   being written, or left by a run that was killed
//! ```
//!
//! A checkpoint is written under another name, synced to disk file by file, and renamed. So a folder called
//! `checkpoint-N` was whole when it got its name; checksums tell whether it still is. A checkpoint is removed the same
//! way, renamed first, and only with the proof of `own.rs`: this process must have written it or read it as whole.
//! Nothing under a temporary name is ever needed.

mod folder;
mod names;
mod optimizer;
mod other_folder;
mod own;
mod recovery;
mod state;

pub(crate) use folder::read_model;
pub use folder::{Checkpoints, Found};
pub(crate) use optimizer::read as read_optimizer;
pub use state::{Best, Checkpoint, EvaluationState, PlanSummary, TrainerState, Unrecorded};
