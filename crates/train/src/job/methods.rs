//! Compares ways to train a model: trained parameters, memory, time, and the quality that the authors report.
//!
//! Every row is planned as `plan` would plan it, under the same budget and on the same device, so a row that fits is a run
//! that fits. Settings that belong to one method (adapters, bits of the base, optimizers without gradients) are replaced;
//! all others are the user's. One more is filled in: with bf16, whole weights that are trained without gradients are kept in
//! bf16 alone, because such a method is taken for its memory and an f32 master copy would triple it.

use plimsoll_graph::{Precision, StateKind};
use plimsoll_plan::{ArenaBytes, ProcessBytes, SearchError, SearchWork, Searcher};

use super::summary::DeviceFacts;
use crate::config::Config;
use crate::error::{Alternative, TrainError};
use crate::memory::Budget;
use crate::optimizer::WeightStorage;
use crate::planning::{Programs, fits_within, forward, plan_alone, worth_planning};
use crate::settings::RawConfig;

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The method's name in the table.
    pub name: &'static str,
    /// The quality that its authors report, with the source.
    pub quality: &'static str,
    /// The adapters that are trained in place of the model's weights, if any are.
    adapters: Option<NewAdapters>,
    /// Whether the frozen weights are in 4 bits.
    in_four_bits: bool,
    /// The optimizer, if the method consists of choosing one.
    optim: Option<&'static str>,
}

/// Adapters of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewAdapters {
    Lora,
    Dora,
    Bottleneck,
}

impl NewAdapters {
    fn flags(self) -> String {
        match self {
            NewAdapters::Lora => format!("--lora-r {RANK}"),
            NewAdapters::Dora => format!("--lora-r {RANK} --use-dora"),
            NewAdapters::Bottleneck => "--peft-type bottleneck".to_owned(),
        }
    }
}

/// All methods, the costliest first.
pub const METHODS: [Method; 8] = [
    Method {
        name: "full",
        quality: "the yardstick of the others",
        adapters: None,
        in_four_bits: false,
        optim: None,
    },
    Method {
        name: "LoRA",
        quality: "on a par with full fine-tuning of RoBERTa, DeBERTa, GPT-2 and GPT-3 (Hu et al., 2021)",
        adapters: Some(NewAdapters::Lora),
        in_four_bits: false,
        optim: None,
    },
    Method {
        name: "DoRA",
        quality: "3.4 points over LoRA's mean of eight commonsense tasks, LLaMA-7B (Liu et al., 2024)",
        adapters: Some(NewAdapters::Dora),
        in_four_bits: false,
        optim: None,
    },
    Method {
        name: "bottleneck",
        quality: "within 0.4 % of full fine-tuning of BERT on GLUE (Houlsby et al., 2019)",
        adapters: Some(NewAdapters::Bottleneck),
        in_four_bits: false,
        optim: None,
    },
    Method {
        name: "QLoRA",
        quality: "as LoRA over 16 bits, in benchmarks up to 65B (Dettmers et al., 2023)",
        adapters: Some(NewAdapters::Lora),
        in_four_bits: true,
        optim: None,
    },
    Method {
        name: "zeroth order",
        quality: "within 1 % of full fine-tuning on 7 of 11 tasks of OPT-13B, over many more steps (Malladi et al., 2023)",
        adapters: None,
        in_four_bits: false,
        optim: Some("mezo"),
    },
    Method {
        name: "evolution",
        quality: "near reinforcement learning's on Atari and MuJoCo, with more data (Salimans et al., 2017)",
        adapters: None,
        in_four_bits: false,
        optim: Some("es"),
    },
    Method {
        name: "zeroth order, QLoRA",
        quality: "MeZO reports adapters near full weights; over 4 bits we know of no report",
        adapters: Some(NewAdapters::Lora),
        in_four_bits: true,
        optim: Some("mezo"),
    },
];

/// Rank of adapters where the user names none.
const RANK: usize = 16;

/// The type of whole weights that are trained without gradients, where nodes pass bf16 on and no type is stated.
const WITHOUT_MASTER: &str = "bf16";

/// A method for a user's settings.
struct Asked {
    /// The settings with the method in place of theirs.
    raw: RawConfig,
    /// Flags that ask for the method.
    flags: String,
}

impl Method {
    /// The method for the user's settings, which are `opened` once they are checked.
    fn asked(&self, raw: &RawConfig, opened: &Config) -> Asked {
        let whole = self.optim.is_some() && self.adapters.is_none();
        let half = opened.options.precision == Precision::Bf16 && raw.weights_dtype.is_none();
        let weights = (whole && half).then_some(WITHOUT_MASTER);
        let settings = self.settings(raw);
        Asked {
            raw: RawConfig {
                weights_dtype: weights.map(str::to_owned).or(settings.weights_dtype.clone()),
                ..settings
            },
            flags: self.flags(weights),
        }
    }

    /// Flags that ask for the method, with weights of the type `weights` if one is named.
    fn flags(&self, weights: Option<&str>) -> String {
        let adapters = self.adapters.map(NewAdapters::flags);
        let bits = self.in_four_bits.then(|| "--load-in-4bit".to_owned());
        let optim = self.optim.map(|name| format!("--optim {name}"));
        let weights = weights.map(|name| format!("--weights-dtype {name}"));
        [adapters, bits, optim, weights].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The user's settings, with this method in place of the one that they name.
    fn settings(&self, raw: &RawConfig) -> RawConfig {
        let low_rank = matches!(self.adapters, Some(NewAdapters::Lora | NewAdapters::Dora));
        let zeroth = |name: &String| matches!(name.as_str(), "mezo" | "es");
        let own = raw.optim.as_ref().filter(|name| !zeroth(name)).cloned();
        RawConfig {
            peft_type: (self.adapters == Some(NewAdapters::Bottleneck)).then(|| "bottleneck".to_owned()),
            lora_r: low_rank.then(|| raw.lora_r.unwrap_or(RANK)),
            use_dora: (self.adapters == Some(NewAdapters::Dora)).then_some(true),
            feedforward_modules: None,
            bottleneck_size: None,
            non_linearity: None,
            num_virtual_tokens: None,
            intrinsic_dimension: None,
            intrinsic_per_layer: None,
            load_in_4bit: self.in_four_bits.then_some(true),
            load_in_8bit: None,
            bnb_4bit_quant_type: raw.bnb_4bit_quant_type.clone().filter(|_| self.in_four_bits),
            bnb_4bit_use_double_quant: raw.bnb_4bit_use_double_quant.filter(|_| self.in_four_bits),
            llm_int8_skip_modules: raw.llm_int8_skip_modules.clone().filter(|_| self.in_four_bits),
            train_only: raw.train_only.clone().filter(|_| self.adapters.is_none()),
            optim: self.optim.map(str::to_owned).or(own),
            update: raw.update.clone().filter(|_| self.optim.is_none()),
            optim_args: raw.optim_args.clone().filter(|_| self.optim.is_none()),
            zo_eps: raw.zo_eps.filter(|_| self.optim.is_some()),
            zo_directions: raw.zo_directions.filter(|_| self.optim == Some("mezo")),
            population: raw.population.filter(|_| self.optim == Some("es")),
            zo_eps_scheduler_type: raw.zo_eps_scheduler_type.clone().filter(|_| self.optim == Some("es")),
            es_fitness: raw.es_fitness.clone().filter(|_| self.optim == Some("es")),
            learning_rate: None,
            momentum: raw.momentum.filter(|_| self.optim.is_none()),
            nesterov: raw.nesterov.filter(|_| self.optim.is_none()),
            ..without_adapters(raw, low_rank)
        }
    }
}

/// The settings, without the settings of adapters unless adapters are `wanted`.
fn without_adapters(raw: &RawConfig, wanted: bool) -> RawConfig {
    if wanted {
        return raw.clone();
    }
    RawConfig {
        lora_alpha: None,
        lora_dropout: None,
        use_rslora: None,
        lora_target_modules: None,
        lora_target_parameters: None,
        lora_exclude_modules: None,
        lora_layers_to_transform: None,
        lora_layers_pattern: None,
        lora_rank_pattern: None,
        lora_alpha_pattern: None,
        modules_to_save: None,
        trainable_token_indices: None,
        ..raw.clone()
    }
}

/// The figures of one method.
#[derive(Clone, Debug)]
pub struct MethodRow {
    /// The method.
    pub method: Method,
    /// Flags that ask for the method, beside the user's.
    pub flags: String,
    /// The method's figures, or why it cannot be asked for.
    pub figures: Result<MethodFigures, String>,
}

/// The parameters that a method trains, and the memory and time it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodFigures {
    /// Parameters that are trained.
    pub trained: u64,
    /// The least bytes of the whole process in which a step fits, whatever its time.
    pub least_bytes: ProcessBytes,
    /// The plan under the budget, if one fits.
    pub plan: Option<MethodPlan>,
    /// The work of finding it. Searches for other ways to update weights are not counted.
    pub work: SearchWork,
}

/// The plan of a method under the budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodPlan {
    /// Planned peak of the whole process.
    pub process_bytes: ProcessBytes,
    /// Predicted time of one step.
    pub step_seconds: f64,
    /// Passes over each micro-batch of a step.
    pub passes: usize,
}

/// Plans every method for the user's settings; `opened` are those settings after the data was read.
///
/// # Errors
///
/// When the settings train an adapter that exists, or the device's memory cannot be read.
pub fn methods(
    raw: &RawConfig,
    opened: &Config,
    facts: DeviceFacts<'_>,
    budget: &dyn Fn(&Config) -> Result<Budget, TrainError>,
) -> Result<Vec<MethodRow>, TrainError> {
    if raw.adapter.is_some() {
        return Err(TrainError::Config("methods compares new adapters; leave out adapter".into()));
    }
    METHODS.iter().map(|method| row(*method, raw, opened, facts, budget)).collect()
}

fn row(
    method: Method,
    raw: &RawConfig,
    opened: &Config,
    facts: DeviceFacts<'_>,
    budget: &dyn Fn(&Config) -> Result<Budget, TrainError>,
) -> Result<MethodRow, TrainError> {
    let Asked { raw, flags } = method.asked(raw, opened);
    let figures = settled(&raw, opened).and_then(|config| figures(&config, facts, budget(&config)?));
    match figures {
        Ok(figures) => Ok(MethodRow { method, flags, figures: Ok(figures) }),
        Err(error) if error.is_users() => Ok(MethodRow { method, flags, figures: Err(error.with_flags()) }),
        Err(error) => Err(error),
    }
}

/// Checked settings, with the classes that were found in the user's data.
fn settled(raw: &RawConfig, opened: &Config) -> Result<Config, TrainError> {
    let mut config = Config::check(raw)?;
    config.settle_like(opened)?;
    Ok(config)
}

fn figures(config: &Config, facts: DeviceFacts<'_>, budget: Budget) -> Result<MethodFigures, TrainError> {
    let (model, options) = (&config.model, &config.options);
    let mut searcher = Searcher::once(Programs { model, facts, options });
    let (plan, least) = match plan_alone(&mut searcher, budget) {
        Ok(planned) => {
            let refused = |error: SearchError| TrainError::search(error, &budget);
            let least = searcher.smallest(options.request(&budget)).map_err(refused)?.arena_bytes;
            let arena_bytes = planned.choice.plan.arena_bytes;
            let plan = MethodPlan {
                process_bytes: arena_bytes.process(budget.outside),
                step_seconds: planned.choice.step_seconds(),
                passes: planned.choice.program.passes(),
            };
            (Some(plan), least.min(arena_bytes))
        }
        // A refused search has looked for the smallest plan already.
        Err(TrainError::Budget { smallest, .. }) => (None, smallest.arena_bytes),
        Err(error) => return Err(error),
    };
    let (trained, work) = (trained(config)?, searcher.work());
    Ok(MethodFigures { trained, least_bytes: least.process(budget.outside), plan, work })
}

/// Methods that are proposed where full training does not fit; the others are variants of these.
const PROPOSED: [&str; 3] = ["LoRA", "QLoRA", "zeroth order"];

/// Adds the methods that fit to the error about a budget, for a run that trains every weight by gradients. Each is planned
/// for that budget before it is named.
pub fn propose_methods(error: TrainError, config: &Config, facts: DeviceFacts<'_>) -> TrainError {
    let TrainError::Budget { budget, smallest, hints, mut alternatives, lacking } = error else {
        return error;
    };
    let full = config.model.lora.is_none() && !config.options.optimizer.kind.is_zeroth_order();
    if full && budget.arena() > ArenaBytes(0) {
        let raw = without_usual_weights(config);
        let proposed = METHODS.iter().filter(|method| PROPOSED.contains(&method.name));
        let proposed = proposed.take(worth_planning(nodes(config)));
        alternatives.extend(proposed.filter_map(|method| method.proposal(&raw, config, facts, &budget)));
    }
    TrainError::Budget { budget, smallest, hints, alternatives, lacking }
}

/// The settings written out, without the type of weights where it is the usual one.
fn without_usual_weights(config: &Config) -> RawConfig {
    let usual = match config.options.precision {
        Precision::F32 => WeightStorage::F32,
        Precision::Bf16 => WeightStorage::Bf16Master,
    };
    let raw = config.effective();
    let stated = config.options.storage.weights != usual;
    RawConfig { weights_dtype: raw.weights_dtype.clone().filter(|_| stated), ..raw }
}

impl Method {
    /// The method as another way of asking, if it fits.
    fn proposal(
        &self,
        raw: &RawConfig,
        opened: &Config,
        facts: DeviceFacts<'_>,
        budget: &Budget,
    ) -> Option<Alternative> {
        let Asked { raw, flags } = self.asked(raw, opened);
        let config = settled(&raw, opened).ok()?;
        let fits = fits_within(&config.model, facts, &config.options, budget).ok()?;
        let (name, trained) = (self.name, trained(&config).ok()?);
        let why = format!("{name}, which trains {trained} parameters; `plan --methods` compares them");
        fits.then_some(Alternative { flags, why })
    }
}

/// About as many nodes as the training graph of a configuration has: four times those of its forward pass.
fn nodes(config: &Config) -> u64 {
    forward(&config.model, &config.options, 1).map_or(u64::MAX, |graph| 4 * graph.nodes().len() as u64)
}

/// Parameters that the configuration trains.
fn trained(config: &Config) -> Result<u64, TrainError> {
    let graph = forward(&config.model, &config.options, 1)?;
    let trained =
        graph.states().iter().filter(|state| state.kind == StateKind::Parameter { trainable: true });
    Ok(trained.map(|state| state.ty.shape.elements() as u64).sum())
}
