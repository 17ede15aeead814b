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
//!
//! A whole run of a model in a folder, with data, checkpoints and records, is a [`Job`]: see `examples/fine_tune.rs`.

pub use plimsoll_exec::{Data, Device, Engine, ExecError, Instructions, MemoryPool, Timing, Timings};
pub use plimsoll_graph::{
    Chain, DType, Graph, GraphError, Init, Precision, Shape, StateKind, Type, Value, Visible, checkpoint,
    differentiate, divide, tile,
};
pub use plimsoll_model::{Architecture, Bert, Gpt2, Labels, Llama, Lora, Preset, Rope, Stretch, Targets};
pub use plimsoll_plan::{DeviceSpec, Plan, Program, Role, Schedule, Strategy};
pub use plimsoll_train::job::{Environment, Job, Note, Session};
pub use plimsoll_train::trainer::{Event, Listener};
pub use plimsoll_train::{
    Config, FloatStorage, LowRank, Model, Offload, Optimizer, OptimizerKind, Options, Planned, RawConfig,
    Run, StateStorage, Step, Stepped, TrainError, TrainOnly, Trainer, Update, WeightStorage, ZeroStage,
    plan_for, plan_within,
};

/// Ops of a graph, with the parameters of each.
pub mod op {
    pub use plimsoll_graph::op::{
        Activation, Adafactor, AdamW, Apollo, ApolloScaling, Balance, Collective, Conv, Dequantise, Estimate,
        Family, Gelu, Head, Lion, Mask, Mlp, Moments, Muon, Op, ProbeStep, Quantised, Sgd, Sorting, Stored,
        Weights,
    };
}

/// `config.json` and the names of tensors, as the Hugging Face hub stores them.
pub mod hf {
    pub use plimsoll_model::hf::{ConfigError, Configuration, StoredName};
}

/// Adapters: their kinds, their targets, and PEFT's configuration.
pub mod lora {
    pub use plimsoll_model::lora::{
        Adapter, AdapterConfig, AdapterConfigError, AdapterKind, BaseClass, Coordinates, Delta, Excluded,
        ExpertAdapter, FeedForward, Form, Intrinsic, LayerChoice, LinearLayer, Merging, NonLinearity,
        Pattern, RowLengths, TokenAdapter, TrainedTokens, VirtualTokens,
    };
}

/// Reference kernels, the cases every device is judged by, and the random numbers they share.
pub mod conformance {
    pub use plimsoll_exec::conformance::{DrawnCase, judge};
    pub use plimsoll_exec::random::Stream;

    /// The cases.
    pub mod cases {
        pub use plimsoll_exec::cases::{Case, Fill, Input, Tolerance, all};
    }

    /// The reference kernels, which define every op.
    pub mod reference {
        pub use plimsoll_exec::reference::{Tensor, TensorData, apply, eval, init, interpret};
    }
}

/// Every device there is, opened by its name.
pub mod devices {
    pub use plimsoll_devices::{
        DeviceKind, FoundLibrary, GpuFiles, Inspection, MeasuredRates, Setup, Trial, inspect,
        library_folders, open, quick_trial, threads, trial,
    };
}

/// Planning in parts: one strategy at a time, and the judge.
pub mod planning {
    pub use plimsoll_graph::{NodeId, Phase};
    pub use plimsoll_plan::{
        Action, ArenaBytes, Away, Buffer, BufferId, Build, ByPurpose, Choice, Compared, Contents, Copy,
        Costed, CsvError, CsvFault, Direction, Draft, Effort, End, Exchange, ExpertReport, Facts, Fault,
        GradientReport, Judged, Lane, LayerReport, Layout, Link, NodeFacts, PlanError, Point, ProcessBytes,
        Purpose, RankLink, RankLinks, RanksDiffer, ReplayError, Report, Request, Runnable, Schedule, Scratch,
        SearchError, Searcher, Slot, Space, Span, StateRange, Table, Tier, Tiered, Traffic, Tried, Workspace,
        compare, curve, exchanges, experts, faster, gradients, largest, layout, plan, replay, replay_all,
        replay_ranks, report, runnable, search, solve, spans, spread, timeline, traffic, try_all, unbudgeted,
        wire_bytes,
    };

    /// The planner for abstract graphs, which knows nothing of tensors and devices.
    pub mod dag {
        pub use plimsoll_plan::remat::{
            Dag, DagEffort, DagNode, DagPlan, DagStep, Outcome, ParseError, Unplannable, Violation, parse,
            plan_dag, simulate,
        };
    }
}

/// Whole runs: settings, jobs, data, files, the trainer and the machine's memory.
pub mod training {
    pub use plimsoll_exec::cpu::{BLOCK as DISK_BLOCK, disk_room, free_disk_bytes};
    pub use plimsoll_exec::{
        Communicator, DiskSpeed, ExchangeKind, ExchangeOperands, LIMIT as RANK_LIMIT, Meeting, Wire,
        measure_disk, message_bytes, message_rank, tcp_rank, thread_ranks,
    };
    #[cfg(feature = "mpi")]
    pub use plimsoll_mpi::mpi_rank;
    pub use plimsoll_train::{
        Adapted, Alternative, Config, DataConfig, EvaluationConfig, LanguageModel, Length, Measured,
        OPS_FILE_VERSION, OpenedData, Origin, OutputConfig, ProcessPlace, Programs, RawConfig, Resume,
        SampleConfig, SavingConfig, Target, Warmup, budget_for, check_room_to_plan, costed_program,
        fits_within, measure_ops, plan_from_file, plan_with, program, timed_machine,
    };

    /// A run on disk, whole or not at all.
    pub mod checkpoint {
        pub use plimsoll_train::checkpoint::{
            Best, Checkpoint, Checkpoints, EvaluationState, Found, PlanSummary, TrainerState,
        };
    }

    /// Where token sequences come from.
    pub mod data {
        pub use plimsoll_train::data::{
            BEGIN, BYTE_VOCABULARY, Batches, ChatTemplate, Corpus, Counts, DataError, DataSpec, Dataset, END,
            Feed, FoundBy, Group, IGNORED, Inputs, Order, PAD, Part, Permutation, Progress, Rendered,
            RowLayout, Rows, Sequence, Shown, ShownPart, Source, Special, Synthetic, Task, Text, TextStream,
            Tokenizer, Validation,
        };
    }

    /// Files of models, and files that appear whole or not at all.
    pub mod files {
        pub use plimsoll_train::files::{
            Checksum, Dtype, FileError, LARGE, Loaded, ModelFolder, ModelFormat, SMALL, StoredName,
            StoredTensor, TensorFile, TensorSpec, TensorWriter, WeightError, WholeState, check_writable,
            clear_temporaries, create_folder, load_weights, read_any_text, read_whole, save_weights,
            temporary_file, write_whole,
        };
    }

    /// Writing text with a trained model.
    pub mod generate {
        pub use plimsoll_train::generate::{GenerationConfig, Generator, Sampling};
    }

    /// Models from the Hugging Face hub.
    pub mod hub {
        pub use plimsoll_train::hub::{Hub, HubLimits, id_of, is_id};
    }

    /// A whole run from its settings, as `plimsoll train` has it.
    pub mod job {
        pub use plimsoll_train::job::{
            BetterStep, DeviceFacts, DiskNeed, Environment, Finished, IntrinsicCurve, IntrinsicStep, Job,
            METHODS, Method, MethodFigures, MethodPlan, MethodRow, NamedModel, Note, OpenedDevice, Questions,
            ScalingFigures, ScalingRow, Session, Stage, Summary, TimesFile, Watch, class_of, follow, methods,
            propose_methods, read_costs, scaling, watched,
        };
    }

    /// How fast this machine is.
    pub mod measure {
        pub use plimsoll_train::measure::{matmul_flops, matmul_rate};
    }

    /// The machine's memory, and how a budget divides.
    pub mod memory {
        pub use plimsoll_train::memory::machine::{Cpu, Disk, Gpu, Machine};
        pub use plimsoll_train::memory::{
            ALLOWANCE, Budget, BudgetError, BudgetOrigin, MARGIN, MemoryError, ProcessMemory, Size,
            SizeError, available, process, total,
        };

        /// The limit on a process's address space.
        pub mod address_space {
            pub use plimsoll_train::memory::address_space::{check, left};
        }
    }

    /// Pre-trained models.
    pub mod pretrained {
        pub use plimsoll_graph::op::Quantised;
        pub use plimsoll_train::pretrained::{
            AdapterFolder, MergedInto, Pretrained, adapter_form, base_of, merge,
        };
    }

    /// How far the reading of files of others is.
    pub mod reading {
        pub use plimsoll_train::reading::{LONGEST, begin, name, needed, step, steps, unfinished_name};
    }

    /// Every setting in one table.
    pub mod settings {
        pub use plimsoll_train::settings::{
            Flag, Kind, Pairs, SETTINGS, Section, Setting, nearest, no_such_flag,
        };
    }

    /// The loop over the steps of a run, and its listeners.
    pub mod trainer {
        pub use plimsoll_train::trainer::{
            BestRecord, Decay, EarlyStopping, EndRecord, EvaluationRecord, Event, EventFile, ExpertRecord,
            Listener, Lr, MetricsFile, RankRecord, StepRecord, TrainLoop, Trainer, ValidationSet, write_line,
        };
    }
}
