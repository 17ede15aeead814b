//! Trains models inside a memory budget you state.
//!
//! Write a model as a graph, hand it to [`Run`], and drive the loop yourself, or let [`Trainer`] feed it:
//!
//! ```
//! use plimsoll::{DType, Data, Graph, Options, Run};
//!
//! let model = |rows: usize| {
//!     let mut g = Graph::new();
//!     let x = g.input("x", [rows, 8], DType::F32); // (N, C)
//!     let targets = g.input("targets", [rows], DType::I32); // (N)
//!     let hidden = g.block("hidden", |g| g.chain(x).linear("up", 16).silu().value()); // (N, F)
//!     let loss = g.chain(hidden).head_loss("head", 3, targets); // ()
//!     g.output("loss", loss);
//!     g.finish()
//! };
//! let mut run = Run::new(model, &Options { memory: Some(1 << 30), global_batch: 8, micro_batch: Some(4), ..Options::default() })?;
//! let x: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
//! // One step over two micro-batches, whose gradients are added.
//! let batches = [[0, 1, 2, 0], [1, 1, 0, 2]].map(|targets| (x.clone(), targets));
//! let batches = batches.each_ref().map(|(x, targets)| [("x", Data::F32(x)), ("targets", Data::I32(targets))]);
//! let first = run.step(1e-2, &batches)?;
//! assert!(run.step(1e-2, &batches)?.loss < first.loss);
//! assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
//! # Ok::<(), plimsoll::TrainError>(())
//! ```

pub use plimsoll_exec::{CpuDevice, Data, Device, Engine, ExecError, Timing, Timings};
pub use plimsoll_graph::{
    Chain, DType, Graph, GraphError, Init, Precision, Shape, StateKind, Type, Value, Visible, checkpoint,
    differentiate, op, tile,
};
pub use plimsoll_model::{
    Architecture, Bert, Gpt2, Labels, Llama, Lora, Preset, Rope, Stretch, Targets, hf, lora,
};
pub use plimsoll_plan::{DeviceSpec, Plan, Program, Role, Schedule, Strategy};
pub use plimsoll_train::{
    FloatStorage, Model, Offload, Optimizer, OptimizerKind, Options, Planned, Run, Step, Stepped, Storage,
    TrainError, Trainer, Update, WeightStorage, plan_for, plan_within,
};

/// Reference kernels, the cases every device is judged by, and the random numbers they share.
pub mod conformance {
    pub use plimsoll_exec::conformance::judge;
    pub use plimsoll_exec::random::Stream;
    pub use plimsoll_exec::{cases, reference};
}

/// NVIDIA GPUs: opened by index, judged by the same cases.
pub mod cuda {
    pub use plimsoll_cuda::lower::Limits;
    pub use plimsoll_cuda::{
        Card, CudaDevice, Libraries, Options, Products, Target, half_cases, library_folders,
    };
}

/// Planning in parts: one strategy at a time, and the judge.
pub mod planning {
    pub use plimsoll_graph::{NodeId, Phase};
    pub use plimsoll_plan::remat as dag;
    pub use plimsoll_plan::{
        Action, Away, Buffer, BufferId, Build, ByPurpose, Choice, Compared, Contents, Copy, Costed, CsvError,
        CsvFault, Direction, Draft, Effort, Facts, Fault, GradientReport, LayerReport, Layout, Link,
        NodeFacts, PlanError, Point, Purpose, ReplayError, Report, Request, Schedule, Scratch, SearchError,
        Searcher, Slot, Space, Span, StateRange, Table, Tier, Tiered, Tried, Workspace, compare, curve,
        faster, gradients, largest, layout, plan, replay, report, search, solve, spans, spread, timeline,
        try_all, unbudgeted,
    };
}

/// Data, learning rate, metrics, sizes and the machine's memory.
pub mod training {
    pub use plimsoll_exec::cpu::{BLOCK as DISK_BLOCK, disk_room, free_disk_bytes};
    pub use plimsoll_exec::{DiskSpeed, measure_disk};
    pub use plimsoll_train::{
        Config, DataConfig, LanguageModel, Length, OpenedData, Origin, OutputConfig, RawConfig, Resume,
        Target, Validation,
    };
    pub use plimsoll_train::{Measured, OPS_FILE_VERSION, measure_ops, measured_machine};
    pub use plimsoll_train::{Programs, budget_for, fits_within, plan_from_file, plan_with};
    pub use plimsoll_train::{
        address_space, budget, ceiling, checkpoint, costed_program, course, data, export, files, generate,
        generation, hub, lr, machine, memory, metrics, pretrained, program, reading, settings, size,
        tensorboard,
    };
}
