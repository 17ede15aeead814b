//! What the user wrote, and what it means: a raw configuration, then a checked one.
//!
//! [`RawConfig`] holds options and strings as they were typed. [`Config`] holds neither: every default is
//! filled in here and nowhere else, every name is resolved, and every contradiction has been refused with
//! a sentence that says what to change.

use std::path::PathBuf;

use plimsoll_graph::{Graph, GraphError};
use plimsoll_model::{Architecture, Preset};
use plimsoll_plan::{DeviceSpec, Strategy, Tier};

use crate::data::{Order, Source, Synthetic, Text};
use crate::error::TrainError;
use crate::lr::{Decay, Lr};
use crate::optimizer::Optimizer;
use crate::run::{Model, Offload, Options};
use crate::size::Size;

/// Settings as they were typed; what is absent takes its default in [`Config::check`].
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    /// Name of a preset.
    pub model: Option<String>,
    /// Tokens per sequence.
    pub seq_len: Option<usize>,
    /// Sequences of one step.
    pub global_batch: Option<usize>,
    /// Sequences of one micro-batch.
    pub micro_batch: Option<usize>,
    /// Micro-batches of one step.
    pub gradient_accumulation_steps: Option<usize>,
    /// `cpu`, or a device that is described, such as `cuda:h200`.
    pub device: Option<String>,
    /// A size such as `64MiB`.
    pub memory: Option<String>,
    /// Name of a strategy.
    pub recompute: Option<String>,
    /// `disk` or `host`: where values may wait that do not fit.
    pub offload: Option<String>,
    /// Folder for the offload file.
    pub offload_folder: Option<PathBuf>,
    /// A size: what offload may take.
    pub offload_budget: Option<String>,
    /// Optimizer steps.
    pub max_steps: Option<u64>,
    /// Makes everything random repeatable.
    pub seed: Option<u64>,
    /// Text file or folder.
    pub data: Option<PathBuf>,
    /// Made-up data instead of files.
    pub synthetic: bool,
    /// Threads; one for each core when absent.
    pub threads: Option<usize>,
    /// Peak learning rate.
    pub learning_rate: Option<f64>,
    /// Steps of linear rise.
    pub warmup_steps: Option<u64>,
    /// `constant`, `linear` or `cosine`.
    pub lr_scheduler_type: Option<String>,
    /// Decoupled weight decay.
    pub weight_decay: Option<f32>,
    /// Largest gradient norm; 0 for no limit.
    pub max_grad_norm: Option<f32>,
}

/// Where sequences come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataConfig {
    /// Text files, one token per byte.
    Text(PathBuf),
    /// A seeded Markov source.
    Synthetic,
}

/// What a run is planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This machine's processor.
    Cpu,
    /// A device known by its data sheet only.
    Described {
        /// Its figures.
        spec: DeviceSpec,
        /// Whether the user named a kind of device and it is ours to say which.
        assumed: bool,
    },
}

impl Target {
    fn from_name(name: Option<&str>) -> Result<Target, TrainError> {
        match name {
            None | Some("cpu") => Ok(Target::Cpu),
            Some(name) => {
                let spec = DeviceSpec::from_name(name).map_err(mistake)?;
                Ok(Target::Described { spec, assumed: spec.name() != name })
            }
        }
    }

    /// Refuses what can be planned for but not trained on.
    ///
    /// # Errors
    ///
    /// When the target is only described.
    pub fn trains(&self) -> Result<(), TrainError> {
        match self {
            Target::Cpu => Ok(()),
            Target::Described { spec, .. } => Err(mistake(format!(
                "this build plans for {} but trains on the CPU only; leave out --device to train here",
                spec.name()
            ))),
        }
    }
}

/// Settings that go together.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is trained.
    pub model: LanguageModel,
    /// What it is planned for.
    pub target: Target,
    /// What is asked of the plan and the run.
    pub options: Options,
    /// Where sequences come from.
    pub data: DataConfig,
    /// Optimizer steps.
    pub max_steps: u64,
    /// The learning rate of each step.
    pub lr: Lr,
}

impl Config {
    /// Fills in defaults and resolves names.
    ///
    /// # Errors
    ///
    /// The first setting that is wrong or contradicts another.
    pub fn check(raw: &RawConfig) -> Result<Config, TrainError> {
        let preset = Preset::from_name(raw.model.as_deref().unwrap_or("tiny")).map_err(mistake)?;
        let seq_len = raw.seq_len.unwrap_or(preset.seq);
        within("--seq-len", seq_len)?;
        let max_steps = raw.max_steps.unwrap_or(100);
        if max_steps == 0 {
            return Err(mistake("--max-steps must be at least 1"));
        }
        let data = match (&raw.data, raw.synthetic) {
            (Some(_), true) => return Err(mistake("give either --data or --synthetic, not both")),
            (Some(path), false) => DataConfig::Text(path.clone()),
            (None, _) => DataConfig::Synthetic,
        };
        // Rows cut from text hold parts of several documents; made-up rows are one document each.
        let architecture = preset.model.with_documents(matches!(data, DataConfig::Text(_)));
        let model = LanguageModel {
            documents: architecture.reads_documents(),
            architecture,
            seq_len,
            generate: false,
        };
        let target = Target::from_name(raw.device.as_deref())?;
        let options = Options { offload: offload(raw, &target)?, ..options(raw)? };
        Ok(Config { model, target, options, data, max_steps, lr: lr(raw, max_steps)? })
    }

    /// Opens the data.
    ///
    /// # Errors
    ///
    /// When it is missing, empty or too short, or the model wants data that nobody prepares yet.
    pub fn source(&self) -> Result<Source, TrainError> {
        if matches!(self.model.architecture, Architecture::Bert(_)) {
            // Shown the next word, a model that reads both ways learns to copy.
            return Err(mistake("BERT learns from masked words, which no data here has; it can be planned"));
        }
        let (seed, vocab, seq_len) = (self.options.seed, self.model.architecture.vocab(), self.model.seq_len);
        Ok(match &self.data {
            DataConfig::Text(path) => {
                Source::Text(Text::open(path, seq_len, vocab, Order::Shuffled { seed })?)
            }
            DataConfig::Synthetic => Source::Synthetic(Synthetic::new(seed, vocab, seq_len)?),
        })
    }
}

/// A language model at a sequence length.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// The model.
    pub architecture: Architecture,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Whether documents of one row are kept apart.
    pub documents: bool,
    /// Whether the run is to generate text.
    pub generate: bool,
}

impl Model for LanguageModel {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        self.architecture.training(rows, self.seq_len)
    }

    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        self.generate.then(|| self.architecture.generation(self.seq_len))
    }
}

fn options(raw: &RawConfig) -> Result<Options, TrainError> {
    let (global_batch, micro_batch) = batch(raw)?;
    let threads = raw.threads.unwrap_or(0);
    if threads > MOST_THREADS {
        return Err(mistake(format!("--threads must be at most {MOST_THREADS}, got {threads}")));
    }
    let memory = raw.memory.as_deref().map(str::parse::<Size>).transpose().map_err(mistake)?;
    let recompute = raw.recompute.as_deref().map(str::parse::<Strategy>);
    let default = Optimizer::default();
    let max_grad_norm = match raw.max_grad_norm {
        Some(norm) if norm < 0.0 || norm.is_nan() => {
            return Err(mistake(format!(
                "--max-grad-norm must not be negative, got {norm}; 0 means no limit"
            )));
        }
        Some(0.0) => None,
        Some(norm) => Some(norm),
        None => default.max_grad_norm,
    };
    let weight_decay = raw.weight_decay.unwrap_or(default.weight_decay);
    if !(0.0..=1.0).contains(&weight_decay) {
        return Err(mistake(format!("--weight-decay must lie in 0..1, got {weight_decay}")));
    }
    Ok(Options {
        memory: memory.map(|size| size.bytes),
        global_batch,
        micro_batch,
        recompute: recompute.transpose().map_err(mistake)?,
        offload: None,
        optimizer: Optimizer { weight_decay, max_grad_norm, ..default },
        seed: raw.seed.unwrap_or(0),
        threads,
        evaluate: false,
    })
}

/// Where values may wait, if the target has such a place.
fn offload(raw: &RawConfig, target: &Target) -> Result<Option<Offload>, TrainError> {
    let tier = match (raw.offload.as_deref(), target) {
        (None, _) if raw.offload_folder.is_some() || raw.offload_budget.is_some() => {
            return Err(mistake("--offload-folder and --offload-budget need --offload disk or host"));
        }
        (None, _) => return Ok(None),
        (Some("disk"), Target::Cpu) => Tier::Disk,
        (Some("host"), Target::Described { .. }) => Tier::Host,
        (Some("host"), Target::Cpu) => {
            return Err(mistake(
                "on the CPU the host's memory is what the budget limits; use --offload disk",
            ));
        }
        (Some("disk"), Target::Described { spec, .. }) => {
            let name = spec.name();
            return Err(mistake(format!("{name} offloads to memory of the host; use --offload host")));
        }
        (Some(other), _) => {
            return Err(mistake(format!("unknown tier `{other}` for --offload; choose disk or host")));
        }
    };
    let budget = raw.offload_budget.as_deref().map(str::parse::<Size>).transpose().map_err(mistake)?;
    let folder = raw.offload_folder.clone().unwrap_or_else(|| PathBuf::from("."));
    Ok(Some(Offload { tier, folder, budget: budget.map(|size| size.bytes), link: None }))
}

/// Global batch and micro-batch from the three settings that state them.
fn batch(raw: &RawConfig) -> Result<(usize, Option<usize>), TrainError> {
    let settings = [
        ("--global-batch", raw.global_batch),
        ("--micro-batch", raw.micro_batch),
        ("--gradient-accumulation-steps", raw.gradient_accumulation_steps),
    ];
    for (flag, value) in settings {
        within(flag, value.unwrap_or(1))?;
    }
    match (raw.global_batch, raw.micro_batch, raw.gradient_accumulation_steps) {
        (global, Some(micro), Some(steps)) => match micro.checked_mul(steps) {
            Some(product) if global.is_none_or(|global| global == product) => Ok((product, Some(micro))),
            _ => Err(mistake(format!(
                "--micro-batch {micro} × --gradient-accumulation-steps {steps} is not --global-batch {}; leave one of them out",
                global.unwrap_or(0)
            ))),
        },
        (global, None, Some(steps)) => {
            let global = global.unwrap_or(8);
            if !global.is_multiple_of(steps) {
                return Err(mistake(format!(
                    "--gradient-accumulation-steps {steps} does not divide a global batch of {global} sequences"
                )));
            }
            Ok((global, Some(global / steps)))
        }
        (global, Some(micro), None) => {
            let global = global.unwrap_or(micro.max(8).next_multiple_of(micro));
            if !global.is_multiple_of(micro) {
                return Err(mistake(format!(
                    "--micro-batch {micro} does not divide --global-batch {global}; the next global batch that works is {}",
                    global.next_multiple_of(micro)
                )));
            }
            Ok((global, Some(micro)))
        }
        (global, None, None) => Ok((global.unwrap_or(8), None)),
    }
}

/// The most of anything that is counted: beyond it, sizes in bytes could overflow.
const MOST: usize = 1 << 24;
/// The most threads: no machine has more cores, and each takes a stack.
const MOST_THREADS: usize = 1024;

fn within(flag: &str, value: usize) -> Result<(), TrainError> {
    match value {
        0 => Err(mistake(format!("{flag} must be at least 1"))),
        1..=MOST => Ok(()),
        _ => Err(mistake(format!("{flag} must be at most {MOST}, got {value}"))),
    }
}

fn lr(raw: &RawConfig, max_steps: u64) -> Result<Lr, TrainError> {
    let peak = raw.learning_rate.unwrap_or(1e-3);
    // Kernels compute in f32, where larger numbers are infinite.
    if !(peak as f32).is_finite() || peak < 0.0 {
        return Err(mistake(format!("--learning-rate must be a number that is not negative, got {peak}")));
    }
    let decay = raw.lr_scheduler_type.as_deref().map(str::parse).transpose().map_err(mistake)?;
    let decay = decay.unwrap_or(Decay::Cosine);
    let warmup_steps = raw.warmup_steps.unwrap_or_else(|| (max_steps / 10).min(100));
    Ok(Lr { peak, warmup_steps, max_steps, decay })
}

#[allow(clippy::needless_pass_by_value, reason = "it serves as `map_err(mistake)`")]
fn mistake(why: impl ToString) -> TrainError {
    TrainError::Config(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(
        global: Option<usize>,
        micro: Option<usize>,
        steps: Option<usize>,
    ) -> Result<(usize, Option<usize>), String> {
        let raw = RawConfig {
            global_batch: global,
            micro_batch: micro,
            gradient_accumulation_steps: steps,
            ..RawConfig::default()
        };
        batch(&raw).map_err(|error| error.to_string())
    }

    #[test]
    fn any_two_of_the_three_batch_settings_give_the_third() {
        assert_eq!(batch_of(Some(32), Some(4), None), Ok((32, Some(4))));
        assert_eq!(batch_of(Some(32), None, Some(8)), Ok((32, Some(4))));
        assert_eq!(batch_of(None, Some(4), Some(8)), Ok((32, Some(4))));
        assert_eq!(batch_of(Some(32), Some(4), Some(8)), Ok((32, Some(4))));
        assert_eq!(batch_of(Some(32), None, None), Ok((32, None)));
    }

    #[test]
    fn contradictions_name_the_settings() {
        let error = batch_of(Some(32), Some(4), Some(4)).unwrap_err();
        assert_eq!(
            error,
            "--micro-batch 4 × --gradient-accumulation-steps 4 is not --global-batch 32; leave one of them out"
        );
        let error = batch_of(Some(10), Some(4), None).unwrap_err();
        assert_eq!(
            error,
            "--micro-batch 4 does not divide --global-batch 10; the next global batch that works is 12"
        );
    }

    #[test]
    fn a_described_device_is_planned_for_and_not_trained_on() {
        let target = |name: &str| Target::from_name(Some(name));
        assert_eq!(target("cpu").unwrap(), Target::Cpu);
        let Target::Described { spec, assumed } = target("cuda").unwrap() else { panic!("described") };
        assert_eq!((spec.name().as_str(), assumed), ("cuda:h100", true));
        let h200 = target("cuda:h200").unwrap();
        assert!(matches!(h200, Target::Described { assumed: false, .. }));
        let error = h200.trains().unwrap_err().to_string();
        assert!(error.starts_with("this build plans for cuda:h200 but trains on the CPU only"), "{error}");
    }

    #[test]
    fn offload_goes_where_the_target_has_room_for_it() {
        let offload = |tier: Option<&str>, device: Option<&str>| {
            let raw = RawConfig {
                offload: tier.map(Into::into),
                offload_budget: Some("2GiB".into()),
                device: device.map(Into::into),
                ..RawConfig::default()
            };
            Config::check(&raw).map(|config| config.options.offload).map_err(|error| error.to_string())
        };
        let disk = offload(Some("disk"), None).unwrap().unwrap();
        assert_eq!((disk.tier, disk.budget, disk.folder), (Tier::Disk, Some(2 << 30), PathBuf::from(".")));
        assert_eq!(offload(Some("host"), Some("cuda:h200")).unwrap().unwrap().tier, Tier::Host);
        let refused = [
            (None, None, "--offload-folder and --offload-budget need --offload disk or host"),
            (
                Some("host"),
                None,
                "on the CPU the host's memory is what the budget limits; use --offload disk",
            ),
            (Some("disk"), Some("cuda:l4"), "cuda:l4 offloads to memory of the host; use --offload host"),
            (Some("tape"), None, "unknown tier `tape` for --offload; choose disk or host"),
        ];
        for (tier, device, expected) in refused {
            assert_eq!(offload(tier, device).unwrap_err(), expected);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_preset() {
        let config = Config::check(&RawConfig::default()).unwrap();
        assert_eq!((config.model.seq_len, config.options.global_batch, config.max_steps), (128, 8, 100));
        assert_eq!(config.options.recompute, None);
    }
}
