//! Everything around the step: the optimizer, a run that the caller steps, the trainer, data, learning rate, metrics,
//! and the machine's resources.
//!
//! Everything here is a library: it prints nothing and reads no environment variable. All of it serves any device. A
//! user's fault is returned as an error whose sentence names a way out.
//!
//! Modules are declared in the order of ARCHITECTURE.md: each uses only those above it.

mod panics;
pub mod reading;

pub mod memory;

mod optimizer;

pub mod files;

mod jinja;

pub mod data;

mod error;

pub mod settings;

pub mod hub;

pub mod pretrained;

mod planning;

mod run;

pub mod checkpoint;

pub mod trainer;

mod config;

pub mod generate;

pub mod measure;

pub mod job;

pub use config::{
    Config, DataConfig, EvaluationConfig, LanguageModel, Length, OpenedData, Origin, OutputConfig,
    ProcessPlace, Resume, SampleConfig, SavingConfig, Target, Warmup,
};
pub use error::{Alternative, LackingRoom, TrainError};
pub use measure::{Measured, OPS_FILE_VERSION, measure_ops, timed_machine};
pub use optimizer::{
    FEWEST_FOR_CODES, Fitness, FloatStorage, LowRank, Optimizer, OptimizerKind, StateStorage, Update,
    WeightStorage, append as append_optimizer, append_in_backward, append_two_pass,
};
pub use planning::{
    Adapted, Model, Offload, Options, Planned, Programs, TrainOnly, ZeroStage, budget_for,
    check_room_to_plan, costed_program, fits_within, plan_for, plan_from_file, plan_with, plan_within,
    program,
};
pub use run::{Run, Step, Stepped};
pub use settings::RawConfig;
pub use trainer::{Trainer, ValidationSet};

#[cfg(test)]
mod scratch;
