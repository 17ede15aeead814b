//! Around the step: the optimizer, the run one can drive, the trainer, data, learning rate, metrics, and
//! what the machine has to give.
//!
//! Everything here is a library: it prints nothing and reads no environment variable. All but
//! [`Run::new`], [`Options::device`] and [`measure_ops`], which take this machine's CPU, serves any device. A user's
//! fault comes back as an error whose sentence names a way out.

mod adapted;
pub mod address_space;
pub mod budget;
mod caught;
pub mod ceiling;
pub mod checkpoint;
mod config;
mod confusion;
pub mod course;
pub mod data;
mod error;
pub mod export;
pub mod files;
pub mod generate;
pub mod generation;
pub mod hub;
mod in_backward;
mod jinja;
pub mod lr;
pub mod machine;
mod measure;
pub mod memory;
pub mod metrics;
mod optimizer;
mod options;
mod planning;
pub mod pretrained;
pub mod reading;
mod run;
mod saved;
pub mod settings;
pub mod size;
mod step;
pub mod tensorboard;
mod trained_tokens;
mod trainer;
mod validation;
mod ways;

pub use adapted::Adapted;
pub use config::{
    Config, DataConfig, EvaluationConfig, LanguageModel, Length, OpenedData, Origin, OutputConfig, Resume,
    SampleConfig, SavingConfig, Target, Warmup,
};
pub use error::TrainError;
pub use in_backward::{Update, append_in_backward, append_two_pass};
pub use measure::{Measured, OPS_FILE_VERSION, measure_ops, measured_machine};
pub use optimizer::{
    FEWEST_FOR_CODES, FloatStorage, Optimizer, OptimizerKind, Storage, WeightStorage,
    append as append_optimizer,
};
pub use options::{Offload, Options};
pub use planning::{
    Model, Planned, Programs, budget_for, costed_program, fits_within, plan_for, plan_with, plan_within,
    program,
};
pub use run::Run;
pub use saved::plan_from_file;
pub use settings::RawConfig;
pub use step::{Step, Stepped};
pub use trainer::Trainer;
pub use validation::Validation;
pub use ways::Way;

#[cfg(test)]
mod scratch;
