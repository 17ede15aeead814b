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
mod in_backward;
pub mod lr;
pub mod memory;
pub mod metrics;
mod optimizer;
mod run;
mod saved;
pub mod size;
mod trainer;

pub use config::{Config, DataConfig, LanguageModel, RawConfig, Target};
pub use error::{TrainError, Unlimited};
pub use in_backward::{Update, append_in_backward, append_two_pass};
pub use optimizer::{Optimizer, append as append_optimizer};
pub use run::{
    Model, Options, Planned, Run, costed_program, hint_at_no_limit, plan_described, plan_for, program,
};
pub use saved::plan_from_file;
pub use trainer::Trainer;

#[cfg(test)]
mod scratch;
