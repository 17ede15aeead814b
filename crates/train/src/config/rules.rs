//! The rules behind [`Config::check`](super::Config::check): the meaning of each group of settings, the settings that
//! exclude each other, and the error for those.

use std::time::Duration;

use plimsoll_devices::{DeviceKind, GpuFiles};
use plimsoll_exec::{Instructions, LIMIT};
use plimsoll_graph::Precision;
use plimsoll_plan::Strategy;

use super::bounds::{mistake, shortest, within};
use super::data::files;
use super::probing::{directions, fitness};
use super::rank_links::rank_links;
use super::{DataConfig, EvaluationConfig, Length, OutputConfig, Resume, SavingConfig, Target, Warmup};
use crate::error::TrainError;
use crate::memory::Size;
use crate::optimizer::Update;
use crate::optimizer::{FloatStorage, LowRank, Optimizer, OptimizerKind, StateStorage, WeightStorage};
use crate::planning::{Options, TrainOnly, ZeroStage};
use crate::settings::{RawConfig, Setting};
use crate::trainer::Decay;
use crate::trainer::EarlyStopping;

pub(super) fn options(raw: &RawConfig) -> Result<Options, TrainError> {
    let (global_batch, micro_batch) = batch(raw)?;
    let threads = raw.threads.unwrap_or(0);
    if threads > MOST_THREADS {
        return Err(mistake(format!("--threads must be at most {MOST_THREADS}, got {threads}")));
    }
    let ranks = ranks(raw)?;
    // Ranks share the threads, at least one for each.
    let rank_links = rank_links(raw)?;
    let threads = if ranks == 1 || rank_links.is_some() {
        threads
    } else {
        (plimsoll_devices::threads(threads) / ranks).max(1)
    };
    let memory = raw.memory.as_deref().filter(|&text| text != "auto");
    let memory = memory.map(str::parse::<Size>).transpose().map_err(mistake)?;
    let recompute = match (raw.recompute.as_deref(), raw.gradient_checkpointing) {
        (Some(name), _) => Some(name.parse::<Strategy>().map_err(mistake)?),
        (None, Some(true)) => Some(Strategy::Full),
        (None, Some(false)) => Some(Strategy::None),
        (None, None) => None,
    };
    Ok(Options {
        memory: memory.map(|size| size.bytes),
        global_batch,
        ranks,
        world_of_one: is_world_of_one(raw),
        processes_here: None,
        rank_here: 0,
        rank_links,
        zero_stage: raw.zero_stage.as_deref().map_or(Ok(ZeroStage::Auto), str::parse).map_err(mistake)?,
        micro_batch,
        recompute,
        offload: None,
        optimizer: optimizer(raw)?,
        precision: if raw.bf16 == Some(true) { Precision::Bf16 } else { Precision::F32 },
        storage: storage(raw)?,
        train_only: train_only(raw)?,
        quantised: None,
        seed: raw.seed.unwrap_or(0),
        device: DeviceKind::Cpu,
        gpu: GpuFiles::default(),
        deterministic: raw.full_determinism == Some(true),
        tf32: false,
        threads,
        instructions: None,
        evaluate: false,
        update: raw.update.as_deref().map_or(Ok(Update::Auto), str::parse).map_err(mistake)?,
    })
}

/// The parameters that are trained, by patterns for their names.
fn train_only(raw: &RawConfig) -> Result<Option<TrainOnly>, TrainError> {
    let Some(expressions) = &raw.train_only else { return Ok(None) };
    if raw.lora_r.is_some() || raw.peft_type.is_some() || raw.adapter.is_some() {
        return Err(mistake(
            "--train-only chooses among the model's own weights, which adapters leave alone; give --modules-to-save for \
             modules that are trained beside adapters",
        ));
    }
    Ok(Some(TrainOnly::new(expressions)?))
}

/// The requested instructions, for a device that has a choice of them.
pub(super) fn instructions(raw: &RawConfig, target: &Target) -> Result<Option<Instructions>, TrainError> {
    let Some(name) = raw.instructions.as_deref() else { return Ok(None) };
    if *target != Target::Cpu {
        let device = target.name();
        return Err(mistake(format!("--instructions is for the processor; leave it out for {device}")));
    }
    Ok(Some(name.parse::<Instructions>().map_err(mistake)?.checked().map_err(mistake)?))
}

/// Whether a GPU multiplies f32 operands in tf32.
pub(super) fn tf32(raw: &RawConfig, target: &Target) -> Result<bool, TrainError> {
    let asked = raw.tf32 == Some(true);
    if asked && *target == Target::Cpu {
        return Err(mistake("--tf32 is for a GPU: leave it out, or write --device cuda"));
    }
    Ok(asked)
}

/// The element types of weights, gradients and moments. With bf16 between nodes, products also read weights in bf16,
/// and every bit of the f32 weight is kept beside them, unless another type of weights is requested.
fn storage(raw: &RawConfig) -> Result<StateStorage, TrainError> {
    let weights = match (raw.weights_dtype.as_deref(), raw.bf16) {
        (Some(name), _) => name.parse().map_err(mistake)?,
        (None, Some(true)) => WeightStorage::Bf16Master,
        (None, _) => WeightStorage::F32,
    };
    let float = |name: &Option<String>| name.as_deref().map(str::parse::<FloatStorage>).transpose();
    Ok(StateStorage {
        weights,
        gradients: float(&raw.gradients_dtype).map_err(mistake)?.unwrap_or_default(),
        moments: float(&raw.moments_dtype).map_err(mistake)?.unwrap_or_default(),
    })
}

fn optimizer(raw: &RawConfig) -> Result<Optimizer, TrainError> {
    let kind = raw.optim.as_deref().map_or(Ok(OptimizerKind::default()), str::parse).map_err(mistake)?;
    let default = Optimizer::of(kind);
    let momentum = [("--momentum", raw.momentum.is_some()), ("--nesterov", raw.nesterov.is_some())];
    if let Some((flag, _)) = momentum.iter().find(|(_, given)| *given && !kind.has_momentum()) {
        return Err(mistake(format!("{flag} is for --optim sgd and muon; leave it out")));
    }
    let weight_decay = raw.weight_decay.unwrap_or_else(|| shortest(default.weight_decay));
    if !(0.0..=1.0).contains(&weight_decay) {
        return Err(mistake(format!("--weight-decay must lie in 0..1, got {weight_decay}")));
    }
    let max_grad_norm = match raw.max_grad_norm {
        Some(norm) if norm < 0.0 || norm.is_nan() => {
            return Err(mistake(format!(
                "--max-grad-norm must not be negative, got {norm}; 0 means no limit"
            )));
        }
        Some(0.0) => None,
        Some(norm) => Some(norm as f32),
        None => default.max_grad_norm,
    };
    let rate = |given: Option<f64>, default: f32| given.map_or(default, |rate| rate as f32);
    let optimizer = Optimizer {
        kind,
        momentum: rate(raw.momentum, default.momentum),
        nesterov: raw.nesterov.unwrap_or(default.nesterov),
        beta1: rate(raw.adam_beta1, default.beta1),
        beta2: rate(raw.adam_beta2, default.beta2),
        epsilon: rate(raw.adam_epsilon, default.epsilon),
        weight_decay: weight_decay as f32,
        max_grad_norm,
        directions: directions(raw, kind)?.unwrap_or(default.directions),
        probe_size: rate(raw.zo_eps, default.probe_size),
        fitness: fitness(raw, kind)?,
        low_rank: low_rank(raw, kind)?.unwrap_or_default(),
    };
    optimizer.check().map_err(|why| mistake(beginning_with_a_flag(&why)))?;
    Ok(optimizer)
}

/// How gradients are projected, as stated.
fn low_rank(raw: &RawConfig, kind: OptimizerKind) -> Result<Option<LowRank>, TrainError> {
    let Some(text) = &raw.optim_args else { return Ok(None) };
    if kind != OptimizerKind::Apollo {
        return Err(mistake(
            "--optim-args is for --optim apollo_adamw; other optimizers have settings of their own, such as \
             --adam-beta2 and --momentum",
        ));
    }
    text.parse().map(Some).map_err(|why: String| mistake(beginning_with_a_flag(&why)))
}

/// A sentence whose first word is the name of a setting, as people typed it.
fn beginning_with_a_flag(why: &str) -> String {
    let (name, rest) = why.split_once(' ').unwrap_or((why, ""));
    Setting::named(name).map_or_else(|| why.to_owned(), |setting| format!("{} {rest}", setting.flag()))
}

/// The most ranks that one process has: each has threads, an arena and a stack.
const MOST_RANKS: usize = 64;
/// The most ranks that are planned for.
const MOST_PLANNED_RANKS: usize = 1 << 16;
/// Default sequences of a step, and of a micro-batch where only the accumulation is given.
const USUAL_BATCH: usize = 8;

/// Global batch and micro-batch from the settings that state them.
pub(super) fn batch(raw: &RawConfig) -> Result<(usize, Option<usize>), TrainError> {
    let settings = [
        ("--global-batch", raw.global_batch),
        ("--micro-batch", raw.micro_batch),
        ("--per-device-train-batch-size", raw.per_device_train_batch_size),
        ("--gradient-accumulation-steps", raw.gradient_accumulation_steps),
    ];
    for (flag, value) in settings {
        within(flag, value.unwrap_or(1))?;
    }
    let ranks = ranks(raw)?;
    let (flag, micro) = match (raw.micro_batch, raw.per_device_train_batch_size) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            return Err(mistake(format!(
                "--micro-batch {ours} and --per-device-train-batch-size {theirs} are two names of one setting; leave one of them out"
            )));
        }
        (None, Some(theirs)) => ("--per-device-train-batch-size", Some(theirs)),
        (ours, _) => ("--micro-batch", ours),
    };
    match (raw.global_batch, micro, raw.gradient_accumulation_steps) {
        (global, Some(micro), Some(steps)) => {
            let product = micro.saturating_mul(steps).saturating_mul(ranks);
            if let Some(global) = global.filter(|&global| global != product) {
                return Err(mistake(format!(
                    "{flag} {micro} × --gradient-accumulation-steps {steps} × {ranks} rank{} is {product}, not --global-batch {global}; leave one of the three out",
                    if ranks == 1 { "" } else { "s" }
                )));
            }
            within("--global-batch", product)?;
            Ok((product, Some(micro)))
        }
        (Some(global), None, Some(steps)) => {
            divides_among(ranks, "--gradient-accumulation-steps", steps, global)?;
            Ok((global, Some(global / steps / ranks)))
        }
        // As in transformers: this many micro-batches, each of the usual size.
        (None, None, Some(steps)) => {
            let global = USUAL_BATCH.saturating_mul(steps).saturating_mul(ranks);
            within("--global-batch", global)?;
            Ok((global, Some(USUAL_BATCH)))
        }
        // A user who gives the size per device expects its default: one micro-batch a step.
        (None, Some(micro), None) if raw.per_device_train_batch_size.is_some() => {
            Ok((micro * ranks, Some(micro)))
        }
        (global, Some(micro), None) => {
            let all = micro.saturating_mul(ranks);
            let global = global.unwrap_or(all.max(USUAL_BATCH).next_multiple_of(all));
            divides_among(ranks, flag, micro, global)?;
            Ok((global, Some(micro)))
        }
        (global, None, None) => {
            let global = global.unwrap_or(USUAL_BATCH.next_multiple_of(ranks));
            divides("--ranks", ranks, global)?;
            Ok((global, None))
        }
    }
}

/// Ranks that train together.
fn ranks(raw: &RawConfig) -> Result<usize, TrainError> {
    let most = if raw.rank_link.is_some() { MOST_PLANNED_RANKS } else { MOST_RANKS };
    match raw.ranks.unwrap_or(1) {
        0 => Err(mistake("--ranks must be at least 1")),
        ranks if ranks > most => Err(mistake(format!("--ranks must be at most {most}, got {ranks}"))),
        ranks => Ok(ranks),
    }
}

/// Whether one rank keeps the exchanges of a stage: it takes both settings to ask for them, since they bring nothing.
fn is_world_of_one(raw: &RawConfig) -> bool {
    let named = raw.zero_stage.as_deref().is_some_and(|stage| stage != ZeroStage::Auto.name());
    raw.ranks == Some(1) && named && raw.rank_link.is_none()
}

/// How long a rank waits for another.
pub(super) fn rank_limit(raw: &RawConfig) -> Result<Duration, TrainError> {
    let seconds = raw.ddp_timeout.unwrap_or(LIMIT.as_secs());
    Ok(Duration::from_secs(at_least_one("--ddp-timeout", seconds)?))
}

/// Refuses ranks where they cannot work. Several ranks on GPUs are processes, each with a GPU of its own.
pub(super) fn check_ranks(options: &Options, target: &Target) -> Result<(), TrainError> {
    let Some(ranks) = options.world() else { return Ok(()) };
    let elsewhere = options.rank_links.is_some() && matches!(target, Target::Described { .. });
    let has_gpu_each = ranks == 1 || options.processes_here.is_some();
    if *target != Target::Cpu && !elsewhere && !has_gpu_each {
        return Err(mistake(format!(
            "--ranks {ranks} are threads of this machine's processor; on GPUs each rank is a process: leave --ranks out, and \
             start {ranks} processes with torchrun, mpirun or Slurm"
        )));
    }
    options.check_ranks()
}

/// Refuses a part of the global batch that does not divide it together with the ranks.
fn divides_among(ranks: usize, flag: &str, part: usize, global: usize) -> Result<(), TrainError> {
    let all = part.saturating_mul(ranks);
    if ranks == 1 || global.is_multiple_of(all) {
        return divides(flag, part, global);
    }
    Err(mistake(format!(
        "{flag} {part} × {ranks} ranks does not divide --global-batch {global}; the next global batch that works is {}",
        global.next_multiple_of(all)
    )))
}

fn divides(flag: &str, part: usize, global: usize) -> Result<(), TrainError> {
    if global.is_multiple_of(part) {
        return Ok(());
    }
    Err(mistake(format!(
        "{flag} {part} does not divide --global-batch {global}; the next global batch that works is {}",
        global.next_multiple_of(part)
    )))
}

/// The most threads: no machine has more cores, and each takes a stack.
const MOST_THREADS: usize = 1024;

pub(super) fn at_least_one(flag: &str, value: u64) -> Result<u64, TrainError> {
    if value == 0 { Err(mistake(format!("{flag} must be at least 1"))) } else { Ok(value) }
}

/// As in transformers, steps count more than epochs.
pub(super) fn length(raw: &RawConfig) -> Result<Length, TrainError> {
    match (raw.max_steps, raw.num_train_epochs) {
        (_, Some(epochs)) if epochs <= 0.0 || !epochs.is_finite() => {
            Err(mistake(format!("--num-train-epochs must be a number above 0, got {epochs}")))
        }
        (Some(steps), _) => Ok(Length::Steps(at_least_one("--max-steps", steps)?)),
        (None, Some(epochs)) => Ok(Length::Epochs(epochs)),
        (None, None) => Ok(Length::Steps(100)),
    }
}

pub(super) fn learning_rate(raw: &RawConfig) -> Result<f64, TrainError> {
    let peak = raw.learning_rate.unwrap_or(1e-3);
    // Kernels compute in f32, where larger numbers are infinite.
    if !(peak as f32).is_finite() || peak < 0.0 {
        return Err(mistake(format!("--learning-rate must be a number that is not negative, got {peak}")));
    }
    Ok(peak)
}

pub(super) fn warmup(raw: &RawConfig, decay: Decay) -> Result<Warmup, TrainError> {
    let warmup = match (raw.warmup_steps, raw.warmup_ratio) {
        (_, Some(ratio)) if !(0.0..=1.0).contains(&ratio) => {
            return Err(mistake(format!("--warmup-ratio must lie in 0..1, got {ratio}")));
        }
        // As in transformers, a number of steps overrides the ratio, unless it is 0.
        (Some(0) | None, Some(ratio)) => Warmup::Ratio(ratio),
        (Some(steps), _) => Warmup::Steps(steps),
        (None, None) => Warmup::Usual,
    };
    let rises = matches!(warmup, Warmup::Steps(1..)) || matches!(warmup, Warmup::Ratio(ratio) if ratio > 0.0);
    if decay == Decay::Constant && rises {
        return Err(mistake(
            "the lr_scheduler_type constant has no warmup; choose constant_with_warmup or leave the warmup out",
        ));
    }
    Ok(warmup)
}

pub(super) fn evaluation(
    raw: &RawConfig,
    data: &DataConfig,
    tokenizer: bool,
) -> Result<Option<EvaluationConfig>, TrainError> {
    let Some(every) = raw.eval_steps else {
        let given = [
            ("--eval-data", raw.eval_data.is_some()),
            ("--eval-split", raw.eval_split.is_some()),
            ("--max-eval-samples", raw.max_eval_samples.is_some()),
            ("--early-stopping-patience", raw.early_stopping_patience.is_some()),
            ("--early-stopping-threshold", raw.early_stopping_threshold.is_some()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                Err(mistake(format!("{flag} needs --eval-steps, which says how often to evaluate")))
            }
            None => Ok(None),
        };
    };
    let share = raw.eval_split;
    if let Some(share) = share.filter(|share| *share <= 0.0 || *share >= 1.0 || share.is_nan()) {
        return Err(mistake(format!("--eval-split must lie between 0 and 1, got {share}")));
    }
    let data = match (&raw.eval_data, share, data) {
        (Some(_), Some(_), _) => return Err(mistake("give either --eval-data or --eval-split, not both")),
        (Some(_), _, DataConfig::Synthetic) => {
            return Err(mistake("--eval-data needs --data: made-up data is validated on more of itself"));
        }
        (Some(paths), None, DataConfig::Files(_)) => Some(files("--eval-data", paths, true)?),
        (Some(paths), None, DataConfig::Text(_)) => Some(files("--eval-data", paths, tokenizer)?),
        (None, Some(_), DataConfig::Files(_)) => None,
        (None, Some(_), _) => {
            return Err(mistake(
                "--eval-split keeps back samples of .jsonl, .parquet or tokenised text; give --eval-data here",
            ));
        }
        (None, None, DataConfig::Synthetic) => Some(DataConfig::Synthetic),
        (None, None, _) => {
            return Err(mistake(
                "--eval-steps needs --eval-data, which is not trained on, or --eval-split, a part to keep back",
            ));
        }
    };
    let stopping = match (raw.early_stopping_patience, raw.early_stopping_threshold) {
        (None, Some(_)) => return Err(mistake("--early-stopping-threshold needs --early-stopping-patience")),
        (_, Some(threshold)) if threshold < 0.0 || !threshold.is_finite() => {
            return Err(mistake(format!("--early-stopping-threshold must not be negative, got {threshold}")));
        }
        (Some(patience), threshold) => Some(EarlyStopping {
            patience: at_least_one("--early-stopping-patience", patience)?,
            threshold: threshold.unwrap_or(0.0),
        }),
        (None, None) => None,
    };
    let most = raw.max_eval_samples.map(|most| at_least_one("--max-eval-samples", most)).transpose()?;
    Ok(Some(EvaluationConfig { every: at_least_one("--eval-steps", every)?, data, share, most, stopping }))
}

/// Steps between two checkpoints, as in transformers.
const SAVE_STEPS: u64 = 500;

pub(super) fn saving(raw: &RawConfig) -> Result<SavingConfig, TrainError> {
    let given = [("--save-steps", raw.save_steps), ("--save-total-limit", raw.save_total_limit)];
    for (flag, value) in given {
        match value {
            Some(_) if raw.output_dir.is_none() => {
                return Err(mistake(format!("{flag} needs --output-dir, the folder to save to")));
            }
            Some(value) => drop(at_least_one(flag, value)?),
            None => {}
        }
    }
    let load_best = raw.load_best_model_at_end.unwrap_or(false);
    if load_best && (raw.output_dir.is_none() || raw.eval_steps.is_none()) {
        return Err(mistake(
            "--load-best-model-at-end needs --eval-steps, which says how often to evaluate, and --output-dir",
        ));
    }
    Ok(SavingConfig {
        every: raw.save_steps.unwrap_or(SAVE_STEPS),
        limit: raw.save_total_limit.map(|limit| limit as usize),
        load_best,
    })
}

pub(super) fn resume(raw: &RawConfig) -> Result<Option<Resume>, TrainError> {
    match raw.resume.as_deref() {
        Some(_) if raw.output_dir.is_none() => {
            Err(mistake("--resume needs --output-dir, the folder of the run that is to go on"))
        }
        Some("latest" | "true") => Ok(Some(Resume::Latest)),
        Some(path) => Ok(Some(Resume::From(path.into()))),
        None => Ok(None),
    }
}

pub(super) fn output(raw: &RawConfig) -> Result<Option<OutputConfig>, TrainError> {
    let names: Vec<&str> = match &raw.report_to {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => vec!["tensorboard", "html"],
    };
    if let Some(name) = names.iter().find(|name| !["tensorboard", "html", "none"].contains(name)) {
        return Err(mistake(format!(
            "`{name}` is nothing to report to; known are tensorboard, html and none"
        )));
    }
    let Some(folder) = raw.output_dir.clone() else {
        return match &raw.report_to {
            Some(names) if names.iter().any(|name| name != "none") => {
                Err(mistake("--report-to needs --output-dir, the folder to write to"))
            }
            _ => Ok(None),
        };
    };
    let wants = |name: &str| names.contains(&name);
    Ok(Some(OutputConfig { folder, tensorboard: wants("tensorboard"), html: wants("html") }))
}
