//! The command line, as typed. A switch may be given twice, because scripts are put together from parts; the later one counts.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::settings::{FitSettings, PlanSettings, TrainSettings};

/// Trains language models inside a memory budget you state. The peak is known before the first step.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Plan and train a small model inside 64 MiB, and show the cost of the budget
    Demo(DemoArgs),
    /// Show the memory and time of a run, without running it
    Plan(PlanArgs),
    /// Train a model
    Train(TrainArgs),
    /// Find the smallest random subspace of the weights that trains nearly as well as all of them
    Intrinsic(IntrinsicArgs),
    /// Continue a prompt with a trained model
    Generate(GenerateArgs),
    /// Write a model with its adapter merged in
    Export(ExportArgs),
    /// Write the page of a run from its metrics.jsonl
    Report(ReportArgs),
    /// Show this machine's cores, memory, disk and speed
    Doctor(DoctorArgs),
    /// Judge this machine's kernels against the reference kernels
    Check(CheckArgs),
    /// Give offsets to buffers with lifetimes from a CSV file
    Layout(LayoutArgs),
    /// Measure this machine, so that plans predict its times
    Bench(BenchArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// Memory of the whole process, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) memory: String,
    /// Optimizer steps
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) max_steps: u64,
    /// Text file or folder to train on [default: the folder `crates` if it is there, as in this repository; else
    /// made-up data]
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) settings: PlanSettings,
    /// Write JSON to standard output
    #[arg(long, overrides_with = "json")]
    pub(crate) json: bool,
    /// Print one stage of the pipeline instead of the table
    #[arg(long, value_name = "STAGE", conflicts_with_all = ["compare", "html", "max", "json"])]
    pub(crate) show: Option<Stage>,
    /// Plan a training graph from node-link JSON, the format of Checkmate's graphs, instead of a model
    #[arg(long, value_name = "FILE.json", requires = "memory")]
    #[arg(conflicts_with_all = ["settings", "model", "seq_len", "global_batch", "micro_batch", "recompute", "data", "show", "compare", "max", "html"])]
    pub(crate) dag: Option<PathBuf>,
    /// Put the classic strategies beside the chosen plan: memory and slowdown
    #[arg(long, overrides_with = "compare")]
    pub(crate) compare: bool,
    /// Put ways to train beside each other: full, adapters, adapters over 4 bits, without a backward pass; memory, time per
    /// step, trained parameters, and which fit
    #[arg(long, overrides_with = "methods", conflicts_with_all = ["compare", "html", "max", "show", "dag", "out"])]
    pub(crate) methods: bool,
    /// Find the most that fits: seq-len, micro-batch, layers or lora-rank
    #[arg(long, value_name = "WHAT")]
    pub(crate) max: Option<What>,
    /// Write a page with pictures of the plan to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the plan to FILE, for `train --plan`. Give `train` the same settings except --micro-batch and --recompute,
    /// which the file contains. A plan for a run that evaluates needs --eval-steps too
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["show", "dag"])]
    pub(crate) out: Option<PathBuf>,
}

/// Quantities that `--max` can maximise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Tokens per sequence
    SeqLen,
    /// Sequences per micro-batch
    MicroBatch,
    /// Layers of the model
    Layers,
    /// Rank of adapters
    LoraRank,
}

impl What {
    /// As it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::SeqLen => "seq-len",
            What::MicroBatch => "micro-batch",
            What::Layers => "layers",
            What::LoraRank => "lora-rank",
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
    /// The graph that is planned: with element types and the optimizer
    Fused,
    /// Every action with the bytes it touches
    Schedule,
    /// Every buffer with its lifetime and offset
    Layout,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) settings: TrainSettings,
    /// Write one line of JSON for each record to standard output
    #[arg(long, overrides_with = "json")]
    pub(crate) json: bool,
    /// Print all settings with their defaults, as a file for --settings, and do nothing else; choices of the plan are
    /// left out
    #[arg(long, overrides_with = "print_config")]
    pub(crate) print_config: bool,
    /// Run the plan in FILE, which `plan --out` wrote for the same settings
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["micro_batch", "recompute"])]
    pub(crate) plan: Option<PathBuf>,
    /// Stop after this many steps of a run that is planned for --max-steps
    #[arg(long, value_name = "N")]
    pub(crate) stop_after: Option<u64>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct IntrinsicArgs {
    #[command(flatten)]
    pub(crate) settings: TrainSettings,
    /// Part of full training's gain in validation loss that a subspace must reach
    #[arg(long, value_name = "PART", default_value_t = 0.9)]
    pub(crate) target: f64,
    /// Learning rate of runs in a subspace; --learning-rate is that of full training [default: 0.001]
    #[arg(long, value_name = "RATE")]
    pub(crate) subspace_learning_rate: Option<f64>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// Folder of a run, or its metrics.jsonl
    #[arg(value_name = "PATH")]
    pub(crate) run: PathBuf,
    /// Where the page goes [default: report.html beside the metrics]
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Write JSON to standard output
    #[arg(long, overrides_with = "json")]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// Only cases whose name contains this
    #[arg(value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Only a few cases, which cover every op with every element type, and only with the kernels that runs use by
    /// default
    #[arg(long, overrides_with = "quick")]
    pub(crate) quick: bool,
    /// The device judged: cpu, cuda, or cuda:1 for the second GPU
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(crate) device: String,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instructions of the processor: portable, avx2, avx512 or avx512-bf16 [default: all that the processor has, one
    /// after the other]
    #[arg(long, value_name = "NAME")]
    pub(crate) instructions: Option<String>,
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

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// Time every op of a model in training, for each micro-batch that divides the global batch
    Ops(OpsArgs),
    /// Train a few steps and show where their time goes, op by op
    Step(StepArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    pub(crate) settings: FitSettings,
    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) steps: usize,
    /// Lines of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) lines: usize,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct OpsArgs {
    #[command(flatten)]
    pub(crate) settings: FitSettings,
}

#[derive(Debug, ClapArgs)]
#[allow(clippy::doc_markdown, reason = "the words are shown in a terminal")]
pub(crate) struct GenerateArgs {
    /// Folder with config.json and weights, a hub id such as Qwen/Qwen3-0.6B, or the folder of an adapter, which names
    /// its model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: String,
    /// Folder of an adapter for the model
    #[arg(long, value_name = "PATH")]
    pub(crate) adapter: Option<PathBuf>,
    /// Keep the weights of linear layers in 4 bits, for an adapter that was trained with --load-in-4bit
    #[arg(long, alias = "load_in_4bit", overrides_with = "load_in_4bit", conflicts_with = "load_in_8bit")]
    pub(crate) load_in_4bit: bool,
    /// Keep the weights of linear layers in 8 bits, for an adapter that was trained with --load-in-8bit
    #[arg(long, alias = "load_in_8bit", overrides_with = "load_in_8bit")]
    pub(crate) load_in_8bit: bool,
    /// The beginning of the text
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: String,
    /// Take the prompt as a user's message in a chat, by the model's own template
    #[arg(long, overrides_with = "chat")]
    pub(crate) chat: bool,
    /// Number of tokens to write at most [default: generation_config.json's, else 64]
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// 0 always takes the likeliest token; larger values are more random [default: the temperature in the model's
    /// generation_config.json, or 0 if that file does not set do_sample; 0.7 if there is no such file]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) temperature: Option<f32>,
    /// Draw only from the N likeliest tokens [default: generation_config.json's, or 50 if it states none; all without
    /// that file]
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,
    /// Draw only from the likeliest tokens that together have this probability [default: generation_config.json's, else
    /// 1]
    #[arg(long, value_name = "PART")]
    pub(crate) top_p: Option<f32>,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// cpu, or cuda or cuda:1 for a GPU of this machine
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(crate) device: String,
    /// Memory of the whole process or of the GPU, such as 4GiB [default: the free memory less 256 MiB, or less 5 % if
    /// that is more]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) threads: usize,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ExportArgs {
    /// Add the adapter to the weights; the only export there is
    #[arg(long, required = true, overrides_with = "merge")]
    pub(crate) merge: bool,
    /// Folder of the model, or its hub id; or the folder of the adapter, which names its model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: String,
    /// Folder of the adapter
    #[arg(long, value_name = "PATH")]
    pub(crate) adapter: Option<PathBuf>,
    /// Folder to write, which must be empty or absent
    #[arg(long, value_name = "PATH")]
    pub(crate) out: PathBuf,
}
