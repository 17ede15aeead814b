//! Settings as the user wrote them, and their meaning: a raw configuration, then a checked one.
//!
//! [`RawConfig`] holds options and strings as they were typed. [`Config`] holds neither: every default is filled in
//! here and nowhere else, every name is resolved, and every contradiction has been refused with a sentence that says
//! what to change. [`Config::effective`] writes the settings out again, so that a run can be repeated without its
//! defaults.

mod adapter_kind;
mod adapters;
mod bounds;
mod data;
mod defaults;
mod effective;
mod facts;
mod mixture;
mod model;
mod probing;
mod processes;
mod quantised;
mod rank_links;
mod rules;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_devices::DeviceKind;
use plimsoll_exec::Instructions;
use plimsoll_model::hf::Configuration;

use crate::data::{RowLayout, Source};
use crate::error::TrainError;
use crate::planning::Options;
use crate::pretrained::AdapterFolder;
use crate::settings::RawConfig;
use crate::trainer::{Decay, EarlyStopping, Lr, TrainLoop, ValidationSet};
use bounds::mistake;
pub use data::{DataConfig, OpenedData, SampleConfig};
pub use model::{LanguageModel, Origin};
use probing::{check_fitness, noise};
pub use processes::ProcessPlace;
use rules::{
    at_least_one, check_ranks, evaluation, instructions, learning_rate, length, options, output, rank_limit,
    resume, saving, tf32, warmup,
};
pub use target::Target;
use target::{in_precision_of, offload};

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Optimizer steps.
    Steps(u64),
    /// Passes over the data, or parts of one.
    Epochs(f64),
}

/// How long the learning rate rises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// A tenth of the steps, at most 100.
    Usual,
    /// The warmup takes this many steps.
    Steps(u64),
    /// A part of all steps, rounded up.
    Ratio(f64),
}

/// Losses on data that is not trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationConfig {
    /// Steps between two evaluations.
    pub every: u64,
    /// Where validation sequences come from, if not from the training data.
    pub data: Option<DataConfig>,
    /// The part of the training data that is held back for validation.
    pub share: Option<f64>,
    /// The largest number of validation sequences that are used.
    pub most: Option<u64>,
    /// When to give up.
    pub stopping: Option<EarlyStopping>,
}

/// Where results go, and which beside `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputConfig {
    /// The folder.
    pub folder: PathBuf,
    /// Whether TensorBoard's event files are written.
    pub tensorboard: bool,
    /// Whether a page is written at the end.
    pub html: bool,
}

/// Files that a run keeps while it is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavingConfig {
    /// Steps between two checkpoints.
    pub every: u64,
    /// How many checkpoints are kept; all when absent.
    pub limit: Option<usize>,
    /// Whether the model of the best evaluation is written at the end, in place of the last.
    pub load_best: bool,
}

/// Where a run resumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At the newest whole checkpoint in the run's folder.
    Latest,
    /// At the checkpoint of this path.
    From(PathBuf),
}

/// Settings that go together.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's name, as people know it.
    pub name: String,
    /// Model and method.
    pub model: LanguageModel,
    /// Facts about the model beside its shape.
    pub configuration: Configuration,
    /// Where the model's weights come from.
    pub origin: Origin,
    /// The adapter to train further.
    pub adapter: Option<AdapterFolder>,
    /// The folder of a tokenizer that is not the model's.
    pub tokenizer: Option<PathBuf>,
    /// How samples become rows.
    pub samples: SampleConfig,
    /// Checkpoints.
    pub saving: SavingConfig,
    /// The checkpoint to resume from, if any.
    pub resume: Option<Resume>,
    /// The device that the run is planned for.
    pub target: Target,
    /// The request to the planner and the run.
    pub options: Options,
    /// Where sequences come from.
    pub data: DataConfig,
    /// How long the run is.
    pub length: Length,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// How the learning rate rises.
    pub warmup: Warmup,
    /// How the learning rate falls.
    pub decay: Decay,
    /// How the distance of probes from the weights falls, for methods without gradients.
    pub noise: Decay,
    /// Steps between two records, if stated. Otherwise each step is a record, and a console shows some of them.
    pub logging_steps: Option<u64>,
    /// Evaluation, if there is any.
    pub evaluation: Option<EvaluationConfig>,
    /// Files, if any are to be written.
    pub output: Option<OutputConfig>,
    /// Source of the times of ops; by default those measured on this machine.
    pub costs: Option<String>,
    /// How long a rank waits for another.
    pub rank_limit: Duration,
}

impl Config {
    /// The largest number that a setting may have: sizes that are products of a few of them still fit.
    pub const MOST: usize = bounds::MOST;

    /// Fills in defaults and resolves names.
    ///
    /// # Errors
    ///
    /// The first setting that is wrong or contradicts another.
    pub fn check(raw: &RawConfig) -> Result<Config, TrainError> {
        Config::checked(raw, None)
    }

    fn checked(raw: &RawConfig, place: Option<ProcessPlace>) -> Result<Config, TrainError> {
        let model::Resolved { name, configuration, origin, seq_len, lora, adapter } = model::resolve(raw)?;
        let tokenizer = raw.tokenizer.clone().or_else(|| model::begins_again(raw));
        let has_tokenizer = tokenizer.is_some() || matches!(origin, Origin::Pretrained(_));
        let data = data::data(raw, has_tokenizer)?;
        let target = Target::from_name(raw.device.as_deref())?;
        let raw = &in_precision_of(defaults::filled(raw, &origin, lora.as_ref(), &data), &target);
        let samples = data::samples(raw, &configuration.architecture)?;
        // Rows cut from text hold parts of several documents; made-up rows are one document each.
        let packed = match &data {
            DataConfig::Text(_) => true,
            DataConfig::Files(_) => samples.layout == RowLayout::Packed,
            DataConfig::Synthetic => false,
        };
        let architecture = configuration.architecture.clone().with_documents(packed);
        let model = LanguageModel { architecture, seq_len, generate: false, lora };
        let evaluation = evaluation(raw, &data, has_tokenizer)?;
        let decay =
            raw.lr_scheduler_type.as_deref().map_or(Ok(Decay::Cosine), str::parse).map_err(mistake)?;
        let quantised = quantised::base(raw, &origin, &model)?;
        let options = options(raw)?;
        let kind = options.optimizer.kind;
        let config = Config {
            name,
            model,
            configuration,
            origin,
            adapter,
            tokenizer,
            samples,
            saving: saving(raw)?,
            resume: resume(raw)?,
            options: Options {
                quantised,
                evaluate: evaluation.is_some(),
                offload: offload(raw, &target)?,
                instructions: instructions(raw, &target)?,
                tf32: tf32(raw, &target)?,
                ..options
            },
            target,
            data,
            length: length(raw)?,
            learning_rate: learning_rate(raw)?,
            warmup: warmup(raw, decay)?,
            decay,
            noise: noise(raw, kind)?,
            logging_steps: raw
                .logging_steps
                .map(|steps| at_least_one("--logging-steps", steps))
                .transpose()?,
            evaluation,
            output: output(raw)?,
            costs: raw.costs.clone(),
            rank_limit: rank_limit(raw)?,
        };
        let config = match place {
            Some(place) => config.placed(place, raw),
            None => config,
        };
        check_ranks(&config.options, &config.target)?;
        check_fitness(config.options.optimizer.fitness, &config.samples.task, &config.data)?;
        config.options.check_division(&config.model)?;
        Ok(config)
    }

    /// Takes the device of this machine that the target means.
    ///
    /// # Errors
    ///
    /// When the target is only described, or asks for what the device cannot do.
    pub fn settle_device(&mut self) -> Result<(), TrainError> {
        self.options.device = self.target.here(self.options.rank_here)?;
        self.options.check_stage()?;
        if let DeviceKind::Cuda(index) = self.options.device {
            self.target = Target::Gpu(index);
            if self.options.offload.is_some() {
                return Err(mistake(
                    "a GPU offloads nothing yet; leave --offload and --host-memory out, or state a larger --memory",
                ));
            }
        }
        Ok(())
    }

    /// The instruction path of this machine's processor, where it computes.
    pub fn instructions(&self) -> Option<Instructions> {
        let here = self.target == Target::Cpu;
        here.then(|| self.options.instructions.unwrap_or_else(Instructions::fastest))
    }

    /// Validation on `source` in micro-batches of `rows` rows.
    pub fn validation(&self, source: Source, rows: usize) -> ValidationSet {
        ValidationSet::new(source, rows, self.evaluation.as_ref().and_then(|evaluation| evaluation.most))
    }

    /// The learning rate of each step of a run over data whose epoch has `steps_per_epoch` steps; the run's
    /// length is its `max_steps`.
    ///
    /// # Errors
    ///
    /// When the run is to last epochs and the data has no end.
    pub fn lr(&self, steps_per_epoch: Option<u64>) -> Result<Lr, TrainError> {
        let max_steps = match (self.length, steps_per_epoch) {
            (Length::Steps(steps), _) => steps,
            (Length::Epochs(epochs), Some(steps)) => ((epochs * steps as f64).ceil() as u64).max(1),
            (Length::Epochs(_), None) => {
                return Err(mistake(
                    "made-up data has no epochs; give --max-steps in place of --num-train-epochs",
                ));
            }
        };
        let warmup_steps = match self.warmup {
            Warmup::Usual => (max_steps / 10).min(100),
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) => (ratio * max_steps as f64).ceil() as u64,
        };
        Ok(Lr { peak: self.learning_rate, warmup_steps, max_steps, decay: self.decay })
    }

    /// The factor of the stated distance for the probes of each step, in a run with these learning rates; none where it is
    /// always 1.
    pub fn noise(&self, lr: &Lr) -> Option<Lr> {
        let falls = self.noise != Decay::Constant;
        falls.then_some(Lr { peak: 1.0, warmup_steps: 0, max_steps: lr.max_steps, decay: self.noise })
    }

    /// The loop over `steps` steps, as the settings ask for it.
    pub fn train_loop(&self, steps: u64) -> TrainLoop {
        let evaluation = self.evaluation.as_ref();
        TrainLoop {
            steps,
            pause: None,
            logging_steps: self.logging_steps.unwrap_or(1),
            eval_steps: evaluation.map(|evaluation| evaluation.every),
            stopping: evaluation.and_then(|evaluation| evaluation.stopping),
            save_steps: self.output.as_ref().map(|_| self.saving.every),
        }
    }
}

impl OutputConfig {
    /// The reports that are written, by the names that `report_to` takes.
    fn names(&self) -> Vec<String> {
        let names = [("tensorboard", self.tensorboard), ("html", self.html)];
        names.iter().filter(|(_, wanted)| *wanted).map(|(name, _)| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::rules::batch;
    use super::*;
    use plimsoll_plan::Strategy;

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
        assert_eq!(
            batch_of(Some(10), None, Some(4)).unwrap_err(),
            "gradient_accumulation_steps 4 does not divide global_batch 10; the next global batch that works is 12"
        );
    }

    #[test]
    fn the_number_of_accumulation_steps_alone_is_that_many_usual_batches() {
        assert_eq!(batch_of(None, None, Some(4)), Ok((32, Some(8))));
        assert_eq!(batch_of(None, None, Some(1)), Ok((8, Some(8))));
        assert_eq!(batch_of(None, None, None), Ok((8, None)));
        let error = batch_of(None, None, Some(1 << 24)).unwrap_err();
        assert_eq!(error, "global_batch must be at most 16777216, got 134217728");
    }

    #[test]
    fn contradictions_name_the_settings() {
        let error = batch_of(Some(32), Some(4), Some(4)).unwrap_err();
        assert_eq!(
            error,
            "micro_batch 4 × gradient_accumulation_steps 4 × 1 rank is 16, not global_batch 32; leave one of the three out"
        );
        let error = batch_of(Some(10), Some(4), None).unwrap_err();
        assert_eq!(
            error,
            "micro_batch 4 does not divide global_batch 10; the next global batch that works is 12"
        );
    }

    #[test]
    fn the_defaults_are_those_of_the_preset() {
        let config = checked("").unwrap();
        assert_eq!((config.model.seq_len, config.options.global_batch), (128, 8));
        assert_eq!((config.length, config.options.recompute), (Length::Steps(100), None));
    }

    #[test]
    fn the_other_name_of_the_micro_batch_has_its_own_default() {
        let batch = |text: &str| {
            checked(text).map(|config| (config.options.global_batch, config.options.micro_batch))
        };
        assert_eq!(batch("per_device_train_batch_size = 4"), Ok((4, Some(4))));
        assert_eq!(batch("micro_batch = 4"), Ok((8, Some(4))));
        assert_eq!(
            batch("per_device_train_batch_size = 4\nglobal_batch = 12\ngradient_accumulation_steps = 2"),
            Err("per_device_train_batch_size 4 × gradient_accumulation_steps 2 × 1 rank is 8, not global_batch 12; leave one of the three out".into())
        );
        assert_eq!(
            batch("per_device_train_batch_size = 4\nmicro_batch = 2"),
            Err("micro_batch 2 and per_device_train_batch_size 4 are two names of one setting; leave one of them out".into())
        );
    }

    #[test]
    fn gradient_checkpointing_is_a_strategy_by_another_name() {
        let strategy = |text: &str| checked(text).unwrap().options.recompute;
        assert_eq!(strategy("gradient_checkpointing = true"), Some(Strategy::Full));
        assert_eq!(strategy("gradient_checkpointing = false"), Some(Strategy::None));
        assert_eq!(strategy("gradient_checkpointing = false\nrecompute = \"sqrt\""), Some(Strategy::Sqrt));
    }

    #[test]
    fn epochs_become_steps_and_a_ratio_becomes_a_warmup_as_in_transformers() {
        let lr = |text: &str, epoch| {
            let lr = checked(text).unwrap().lr(epoch).map_err(|error| error.to_string())?;
            Ok::<_, String>((lr.max_steps, lr.warmup_steps))
        };
        assert_eq!(lr("num_train_epochs = 2.5\nwarmup_ratio = 0.1", Some(7)), Ok((18, 2)));
        assert_eq!(lr("num_train_epochs = 2.5\nmax_steps = 9", Some(7)), Ok((9, 0)));
        assert_eq!(lr("max_steps = 50\nwarmup_steps = 0\nwarmup_ratio = 0.03", None), Ok((50, 2)));
        assert_eq!(lr("max_steps = 50\nwarmup_steps = 4\nwarmup_ratio = 0.5", None), Ok((50, 4)));
        assert_eq!(
            lr("num_train_epochs = 1", None),
            Err("made-up data has no epochs; give max_steps in place of num_train_epochs".into())
        );
    }

    #[test]
    fn settings_that_need_or_exclude_another_name_it() {
        let fault = |text: &str| checked(text).unwrap_err();
        assert_eq!(
            fault("early_stopping_patience = 2"),
            "early_stopping_patience needs eval_steps, which says how often to evaluate"
        );
        assert_eq!(
            fault("lr_scheduler_type = \"constant\"\nwarmup_ratio = 0.1"),
            "the lr_scheduler_type constant has no warmup; choose constant_with_warmup or leave the warmup out"
        );
        assert_eq!(
            fault("optim = \"lion_32bit\"\nmomentum = 0.5"),
            "momentum is for optim sgd and muon; leave it out"
        );
        assert!(
            fault("optim = \"rmsprop\"")
                .starts_with("there is no optimizer `rmsprop`; known are adamw_torch, ")
        );
        assert_eq!(fault("adam_beta2 = 1.0"), "adam_beta2 must be at least 0 and below 1, got 1");
        assert_eq!(fault("adam_epsilon = 0"), "adam_epsilon must be a number above 0, got 0");
        assert_eq!(
            fault("optim_args = \"rank=4\""),
            "optim_args is for optim apollo_adamw; other optimizers have settings of their own, such as adam_beta2 and \
             momentum"
        );
        assert_eq!(
            fault("optim = \"apollo_adamw\"\noptim_args = \"rank=0\""),
            "optim_args has a rank of 0; it must be 1 to 65536"
        );
        assert_eq!(fault("optim = \"sgd\"\nnesterov = true"), "nesterov needs a momentum greater than 0");
        assert_eq!(
            fault("data = [\"x\"]\neval_steps = 5"),
            "eval_steps needs eval_data, which is not trained on, or eval_split, a part to keep back"
        );
    }

    #[test]
    fn what_is_effective_checks_to_the_same_again() {
        for text in [
            "",
            "memory = \"64MiB\"\nper_device_train_batch_size = 2\nrecompute = \"every:2\"\nmax_grad_norm = 0\nthreads = 2",
            "data = [\"a\"]\neval_data = [\"b\"]\neval_steps = 3\nearly_stopping_patience = 2\nnum_train_epochs = 1.5\nwarmup_ratio = 0.1",
            "lora_r = 4\nlora_target_modules = [\"q_proj\"]\nweights_dtype = \"bf16\"\noptim = \"sgd\"\nmomentum = 0.9\noffload = \"disk\"\nupdate = \"separate\"\nlayers = 2",
            "lora_r = 4\nload_in_4bit = true\nbnb_4bit_use_double_quant = false\nllm_int8_skip_modules = [\"down_proj\"]",
            "lora_r = 4\nload_in_8bit = true",
            "output_dir = \"out\"\nsave_steps = 7\nsave_total_limit = 2\nresume = \"latest\"\nreport_to = [\"html\"]\nadam_beta2 = 0.999\nlr_scheduler_type = \"linear\"",
        ] {
            let once = checked(text).unwrap();
            let again = Config::check(&once.effective()).unwrap();
            assert_eq!(format!("{once:?}"), format!("{again:?}"), "{text}");
            assert_eq!(once.effective(), again.effective());
        }
    }

    fn checked(text: &str) -> Result<Config, String> {
        let raw: RawConfig = toml::from_str(text).unwrap();
        Config::check(&raw).map_err(|error| error.to_string())
    }
}
