//! Around the step: the optimizer, the run one can drive, the trainer, data, learning rate, metrics, and
//! what the machine has to give.
//!
//! Everything here is a library: it prints nothing and reads no environment variable. All but
//! [`Run::new`], which takes this machine's CPU, serves any device. A user's fault comes back as an error
//! whose sentence names a way out.

pub mod budget;
mod config;
pub mod data;
mod error;
pub mod lr;
pub mod memory;
pub mod metrics;
mod optimizer;
mod run;
pub mod size;
mod trainer;

pub use config::{Config, DataConfig, LanguageModel, RawConfig, Target};
pub use error::TrainError;
pub use optimizer::{Optimizer, append as append_optimizer};
pub use run::{Model, Offload, Options, Planned, Run, costed_program, plan_described, plan_for, program};
pub use trainer::Trainer;

#[cfg(test)]
mod scratch;
