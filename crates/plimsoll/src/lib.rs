//! Trains models inside a memory budget you state.
//!
//! Write a model as a graph, hand it to [`Run`], and drive the loop yourself, or let [`Trainer`] feed it:
//!
//! ```
//! use plimsoll::{DType, Data, Graph, Init, Options, Run};
//!
//! let model = |rows: usize| {
//!     let mut g = Graph::new();
//!     let x = g.input("x", [rows, 8], DType::F32); // (N, C)
//!     let targets = g.input("targets", [rows], DType::I32); // (N)
//!     let scale = g.loss_scale(); // 1 ÷ targets of the whole step
//!     let hidden = g.block("hidden", |g| {
//!         let w = g.param("w", [16, 8], Init::Normal(0.3)); // (F, C)
//!         let h = g.linear(x, w, None); // (N, F)
//!         g.silu(h) // (N, F)
//!     });
//!     let w = g.param("head.w", [3, 16], Init::Normal(0.3)); // (V, F)
//!     let loss = g.head_loss(hidden, w, None, targets, scale, -100); // ()
//!     g.output("loss", loss);
//!     g.finish()
//! };
//! let mut run = Run::new(model, &Options { memory: Some(1 << 30), global_batch: 8, micro_batch: Some(4), ..Options::default() })?;
//! let x: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
//! for _ in 0..2 {
//!     for targets in [[0, 1, 2, 0], [1, 1, 0, 2]] {
//!         run.backward(&[("x", Data::F32(&x)), ("targets", Data::I32(&targets)), ("scale", Data::F32(&[1.0 / 8.0]))])?;
//!     }
//!     run.step(1e-2)?;
//! }
//! assert_eq!(run.engine().measured_peak(), run.plan().arena_bytes);
//! # Ok::<(), plimsoll::TrainError>(())
//! ```

pub use plimsoll_exec::{CpuDevice, Data, Device, Engine, ExecError, Timing, Timings};
pub use plimsoll_graph::{
    DType, Graph, GraphError, Init, Shape, StateKind, Type, Value, Visible, checkpoint, differentiate, op,
    tile,
};
pub use plimsoll_model::{
    Architecture, Bert, Gpt2, Labels, Llama, Lora, Preset, Rope, Stretch, Targets, hf, lora,
};
pub use plimsoll_plan::{DeviceSpec, Plan, Program, Role, Schedule, Strategy};
pub use plimsoll_train::{
    FloatStorage, Model, Offload, Optimizer, OptimizerKind, Options, Planned, Run, Storage, TrainError,
    Trainer, Update, WeightStorage, plan_for, plan_within,
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
    pub use plimsoll_plan::dag;
    pub use plimsoll_plan::{
        Action, Away, Buffer, BufferId, Build, ByPurpose, Choice, Compared, Contents, Copy, Costed, CsvError,
        CsvFault, Direction, Effort, Facts, Fault, GradientReport, LayerReport, Layout, Link, NodeFacts,
        PlanError, Point, Purpose, ReplayError, Report, Request, Schedule, Scratch, SearchError, Searcher,
        Slot, Space, Span, StateRange, Table, Tier, Tiered, Tried, Workspace, gradients, largest, layout,
        plan, replay, report, search, solve, spans, spread, timeline, try_all,
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
        budget, ceiling, checkpoint, costed_program, course, data, export, files, generate, generation, hub,
        lr, machine, memory, metrics, pretrained, program, settings, size, tensorboard,
    };
}
