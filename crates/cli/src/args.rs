//! The command line, as typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use plimsoll::training::RawConfig;

/// Trains language models inside a memory budget you state. The peak is known before the first step.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Plan and train a small model inside 64 MiB, and show what the budget cost
    Demo(DemoArgs),
    /// Say what a run would need and how it would fit, without running it
    Plan(PlanArgs),
    /// Train a model
    Train(TrainArgs),
    /// Judge this machine's kernels against the reference kernels
    Check(CheckArgs),
    /// Give offsets to buffers with lifetimes from a CSV file
    Layout(LayoutArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// Memory of the whole process, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) memory: String,
    /// Optimizer steps
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) max_steps: u64,
    /// Text file or folder to train on; the folder `crates` of this repository if it is there
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Threads, one for each core by default
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// What is trained and how it must fit.
#[derive(Debug, ClapArgs)]
pub(crate) struct FitArgs {
    /// tiny, s, m, or the shape of a known model such as llama-3.2-1b, qwen2.5-0.5b or gpt2
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    pub(crate) model: String,
    /// Tokens per sequence [default: the preset's]
    #[arg(long, value_name = "N")]
    pub(crate) seq_len: Option<usize>,
    /// Sequences per optimizer step [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) global_batch: Option<usize>,
    /// Sequences per micro-batch [default: the fastest that fits]
    #[arg(long, value_name = "N")]
    pub(crate) micro_batch: Option<usize>,
    /// Micro-batches per optimizer step [default: global batch ÷ micro-batch]
    #[arg(long, value_name = "N")]
    pub(crate) gradient_accumulation_steps: Option<usize>,
    /// cpu, or what to plan for without having it: cuda, cuda:h200, cuda:a100-80, cuda:4090, … [default: cpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Memory of the whole process or device, such as 64MiB or 16GB [default: what is free less a margin, or
    /// all a described device has]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// none, selective, full, sqrt, every:K, minimal, manual or auto [default: auto, the fastest that fits]
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) recompute: Option<String>,
    /// disk, or host for a described device: where values may wait that do not fit [default: nowhere]
    #[arg(long, value_name = "TIER")]
    pub(crate) offload: Option<String>,
    /// Folder for the nameless file that --offload disk reserves [default: the current folder]
    #[arg(long, value_name = "PATH")]
    pub(crate) offload_folder: Option<PathBuf>,
    /// The most that offload may take, such as 100GiB [default: nine tenths of what is free on the disk]
    #[arg(long, value_name = "SIZE")]
    pub(crate) offload_budget: Option<String>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Seed of weights, data order and dropout [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Text file, or folder of .txt, .md and .rs files
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Made-up data with something to learn in it [default when there is no --data]
    #[arg(long)]
    pub(crate) synthetic: bool,
    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl FitArgs {
    /// The settings as they were typed.
    pub(crate) fn raw(&self) -> RawConfig {
        RawConfig {
            model: Some(self.model.clone()),
            seq_len: self.seq_len,
            global_batch: self.global_batch,
            micro_batch: self.micro_batch,
            gradient_accumulation_steps: self.gradient_accumulation_steps,
            device: self.device.clone(),
            memory: self.memory.clone(),
            recompute: self.recompute.clone(),
            offload: self.offload.clone(),
            offload_folder: self.offload_folder.clone(),
            offload_budget: self.offload_budget.clone(),
            seed: self.seed,
            data: self.data.clone(),
            synthetic: self.synthetic,
            threads: self.threads,
            ..RawConfig::default()
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Print one stage of the pipeline instead of the table
    #[arg(long, value_name = "STAGE", conflicts_with_all = ["compare", "html", "max", "json"])]
    pub(crate) show: Option<Stage>,
    /// Plan a training graph from node-link JSON, the format of Checkmate's graphs, instead of a model
    #[arg(long, value_name = "FILE.json", requires = "memory")]
    #[arg(conflicts_with_all = ["model", "seq_len", "global_batch", "micro_batch", "recompute", "data", "show", "compare", "max", "html"])]
    pub(crate) dag: Option<PathBuf>,
    /// Put the classic strategies beside the chosen plan: memory and slowdown
    #[arg(long)]
    pub(crate) compare: bool,
    /// Say what is the most that fits: seq-len, micro-batch or layers
    #[arg(long, value_name = "WHAT")]
    pub(crate) max: Option<What>,
    /// Write a page with pictures of the plan to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// What can be asked for the most of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Tokens per sequence
    SeqLen,
    /// Sequences per micro-batch
    MicroBatch,
    /// Layers of the model
    Layers,
}

impl What {
    /// As it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::SeqLen => "seq-len",
            What::MicroBatch => "micro-batch",
            What::Layers => "layers",
        }
    }
}

/// A stage that can be printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Stage {
    /// The model
    Graph,
    /// The model with its derivative
    Backward,
    /// What is planned: with fused nodes and the optimizer
    Fused,
    /// Every action with the bytes it touches
    Schedule,
    /// Every buffer with its lifetime and offset
    Layout,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Optimizer steps [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) max_steps: Option<u64>,
    /// Stop after this many steps of a run that is planned for --max-steps
    #[arg(long, value_name = "N")]
    pub(crate) stop_after: Option<u64>,
    /// Peak learning rate [default: 0.001]
    #[arg(long, value_name = "RATE")]
    pub(crate) learning_rate: Option<f64>,
    /// Steps of linear rise [default: a tenth of the steps, at most 100]
    #[arg(long, value_name = "N")]
    pub(crate) warmup_steps: Option<u64>,
    /// constant, linear or cosine [default: cosine]
    #[arg(long, value_name = "NAME")]
    pub(crate) lr_scheduler_type: Option<String>,
    /// Decoupled weight decay of matrices [default: 0.1]
    #[arg(long, value_name = "RATE")]
    pub(crate) weight_decay: Option<f32>,
    /// Largest gradient norm, 0 for no limit [default: 1]
    #[arg(long, value_name = "NORM")]
    pub(crate) max_grad_norm: Option<f32>,
}

impl TrainArgs {
    /// The settings as they were typed.
    pub(crate) fn raw(&self) -> RawConfig {
        RawConfig {
            max_steps: self.max_steps,
            learning_rate: self.learning_rate,
            warmup_steps: self.warmup_steps,
            lr_scheduler_type: self.lr_scheduler_type.clone(),
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
            ..self.fit.raw()
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// Only cases whose name contains this
    #[arg(value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Threads, one for each core by default
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LayoutArgs {
    /// Rows of id, lower, upper and size, the format of MiniMalloc; a buffer lives from lower up to, not
    /// including, upper
    #[arg(value_name = "FILE.csv")]
    pub(crate) file: PathBuf,
    /// Stop at the first layout that fits into this [default: look for the smallest]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
}
