//! Around the step: the optimizer, the run one can drive, the trainer, data, learning rate, metrics, and
//! what the machine has to give.
//!
//! Everything here is a library: it prints nothing and reads no environment variable. All but
//! [`Run::new`], which takes this machine's CPU, serves any device. A user's fault comes back as an error
//! whose sentence names a way out.

mod adapted;
pub mod budget;
pub mod checkpoint;
mod config;
pub mod data;
mod error;
pub mod export;
pub mod files;
pub mod generate;
pub mod hub;
pub mod lr;
mod measure;
pub mod memory;
pub mod metrics;
mod optimizer;
pub mod pretrained;
mod run;
pub mod size;
mod trainer;

pub use adapted::{Adapted, largest_rank};
pub use config::{Config, DataConfig, LanguageModel, RawConfig, Target};
pub use error::TrainError;
pub use measure::{Measured, OPS_FILE_VERSION, machine, measure_ops};
pub use optimizer::{
    FEWEST_FOR_CODES, FloatStorage, Optimizer, OptimizerKind, Storage, WeightStorage,
    append as append_optimizer,
};
pub use run::{Model, Options, Planned, Run, costed_program, plan_described, plan_for, program};
pub use trainer::Trainer;

#[cfg(test)]
mod scratch;
