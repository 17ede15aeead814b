//! A configuration written down again, its defaults spelled out, so that a run can be repeated without them.

use std::path::{Path, PathBuf};

use plimsoll_graph::Precision;
use plimsoll_plan::{RankLink, Tier};

use super::bounds::{is_one, shortest};
use super::{Config, DataConfig, Length, Origin, OutputConfig, Resume, Warmup, adapters, mixture, quantised};
use crate::data::{Part, RowLayout, Task};
use crate::optimizer::OptimizerKind;
use crate::planning::TrainOnly;
use crate::settings::RawConfig;

impl Config {
    /// The settings with every default written out, except the planner's choices and values that follow from the length
    /// of the run (the default warmup). Checking them gives the same configuration.
    pub fn effective(&self) -> RawConfig {
        let lora = self.with_adapters(self.what_is_trained());
        let lora = match &self.options.quantised {
            Some(base) => quantised::effective(base, lora),
            None => lora,
        };
        self.with_course(self.with_learning(self.with_fit(lora)))
    }

    fn what_is_trained(&self) -> RawConfig {
        let scratch = matches!(self.origin, Origin::Scratch);
        let from_file = scratch && Path::new(&self.name).is_file();
        let named = |file: bool| (from_file == file).then(|| self.name.clone());
        let task = match self.samples.task {
            Task::Causal => "causal",
            Task::Masked => "masked",
            Task::Classify { .. } => "classify",
        };
        RawConfig {
            model: named(false),
            config: named(true).map(PathBuf::from),
            init: (scratch && Path::new(&self.name).is_dir()).then_some(true),
            layers: scratch.then(|| self.model.architecture.layers()),
            tokenizer: self.tokenizer.clone(),
            task: Some(task.to_owned()),
            seq_len: Some(self.model.seq_len),
            data: paths(&self.data),
            synthetic: Some(self.data == DataConfig::Synthetic),
            packing: Some(self.samples.layout == RowLayout::Packed),
            skip_bad_lines: Some(self.samples.skip_bad_lines),
            show_samples: Some(self.samples.shown as u64).filter(|&shown| shown > 0),
            data_cache: self.samples.cache.clone(),
            ..RawConfig::default()
        }
    }

    /// For an existing adapter, only its folder is written, which states the other settings.
    fn with_adapters(&self, raw: RawConfig) -> RawConfig {
        let adapter = self.adapter.as_ref().map(|adapter| adapter.folder.clone());
        let Some(lora) = self.model.lora.as_ref().filter(|_| adapter.is_none()) else {
            return RawConfig { adapter, ..raw };
        };
        adapters::effective(lora, raw)
    }

    fn with_fit(&self, raw: RawConfig) -> RawConfig {
        let options = &self.options;
        let offload = options.offload.as_ref();
        let bytes = |bytes: u64| format!("{bytes}B");
        let budget_of =
            |tier| offload.filter(|offload| offload.tier == tier).and_then(|offload| offload.budget);
        RawConfig {
            global_batch: Some(options.global_batch),
            micro_batch: options.micro_batch,
            device: Some(self.target.name()),
            memory: Some(options.memory.map_or_else(|| "auto".to_owned(), bytes)),
            recompute: options.recompute.map(|strategy| strategy.to_string()),
            offload: offload.map(|offload| offload.tier.name().to_owned()),
            offload_folder: offload.map(|offload| offload.folder.clone()),
            host_memory: budget_of(Tier::Host).map(bytes),
            disk_space: budget_of(Tier::Disk).map(bytes),
            costs: self.costs.clone(),
            ranks: options.world(),
            rank_link: options.rank_links.map(|links| link(links.within)),
            node_link: options.rank_links.and_then(|links| links.between).map(|(between, _)| link(between)),
            ranks_per_node: options.rank_links.and_then(|links| links.between).map(|(_, ranks)| ranks),
            zero_stage: options.world().map(|_| options.zero_stage.name().to_owned()),
            ddp_timeout: options.world().map(|_| self.rank_limit.as_secs()),
            threads: Some(options.threads * options.ranks_here()).filter(|&threads| threads > 0),
            instructions: options.instructions.map(|instructions| instructions.to_string()),
            seed: Some(options.seed),
            full_determinism: Some(options.deterministic),
            tf32: Some(options.tf32).filter(|&tf32| tf32),
            ..raw
        }
    }

    fn with_learning(&self, raw: RawConfig) -> RawConfig {
        let (optimizer, storage) = (&self.options.optimizer, &self.options.storage);
        let momentum = optimizer.kind.has_momentum();
        let raw = mixture::effective(&self.model.architecture, raw);
        RawConfig {
            learning_rate: Some(self.learning_rate),
            lr_scheduler_type: Some(self.decay.to_string()),
            warmup_steps: if let Warmup::Steps(steps) = self.warmup { Some(steps) } else { None },
            warmup_ratio: if let Warmup::Ratio(ratio) = self.warmup { Some(ratio) } else { None },
            train_only: self.options.train_only.as_ref().map(TrainOnly::texts),
            optim: Some(optimizer.kind.name().to_owned()),
            momentum: momentum.then(|| shortest(optimizer.momentum)),
            nesterov: momentum.then_some(optimizer.nesterov),
            zo_eps: optimizer.kind.is_zeroth_order().then(|| shortest(optimizer.probe_size)),
            zo_directions: (optimizer.kind == OptimizerKind::Mezo).then_some(optimizer.directions),
            zo_eps_scheduler_type: (optimizer.kind == OptimizerKind::Es).then(|| self.noise.to_string()),
            es_fitness: (optimizer.kind == OptimizerKind::Es).then(|| optimizer.fitness.name().to_owned()),
            population: (optimizer.kind == OptimizerKind::Es).then_some(2 * optimizer.directions),
            optim_args: (optimizer.kind == OptimizerKind::Apollo).then(|| optimizer.low_rank.to_string()),
            bf16: Some(self.options.precision == Precision::Bf16),
            weights_dtype: Some(storage.weights.name().to_owned()),
            gradients_dtype: Some(storage.gradients.name().to_owned()),
            moments_dtype: Some(storage.moments.name().to_owned()),
            adam_beta1: Some(shortest(optimizer.beta1)),
            adam_beta2: Some(shortest(optimizer.beta2)),
            adam_epsilon: Some(shortest(optimizer.epsilon)),
            weight_decay: Some(shortest(optimizer.weight_decay)),
            max_grad_norm: Some(optimizer.max_grad_norm.map_or(0.0, shortest)),
            update: Some(self.options.update.name().to_owned()),
            ..raw
        }
    }

    fn with_course(&self, raw: RawConfig) -> RawConfig {
        let evaluation = self.evaluation.as_ref();
        let stopping = evaluation.and_then(|evaluation| evaluation.stopping);
        let output = self.output.as_ref();
        RawConfig {
            max_steps: if let Length::Steps(steps) = self.length { Some(steps) } else { None },
            num_train_epochs: if let Length::Epochs(epochs) = self.length { Some(epochs) } else { None },
            logging_steps: self.logging_steps,
            eval_steps: evaluation.map(|evaluation| evaluation.every),
            eval_data: evaluation.and_then(|evaluation| paths(evaluation.data.as_ref()?)),
            eval_split: evaluation.and_then(|evaluation| evaluation.share),
            max_eval_samples: evaluation.and_then(|evaluation| evaluation.most),
            early_stopping_patience: stopping.map(|stopping| stopping.patience),
            early_stopping_threshold: stopping.map(|stopping| stopping.threshold),
            output_dir: output.map(|output| output.folder.clone()),
            report_to: output.map(OutputConfig::names),
            save_steps: output.map(|_| self.saving.every),
            load_best_model_at_end: output.and(evaluation).map(|_| self.saving.load_best),
            save_total_limit: output.and(self.saving.limit).map(|limit| limit as u64),
            resume: self.resume.as_ref().map(|resume| match resume {
                Resume::Latest => "latest".to_owned(),
                Resume::From(path) => path.display().to_string(),
            }),
            ..raw
        }
    }
}

/// A link between ranks, as the user types it.
fn link(link: RankLink) -> String {
    format!("{}B/s,{}s", link.rate, link.latency)
}

fn paths(data: &DataConfig) -> Option<Vec<String>> {
    match data {
        DataConfig::Text(path) => Some(vec![path.display().to_string()]),
        DataConfig::Files(parts) => Some(parts.iter().map(part).collect()),
        DataConfig::Synthetic => None,
    }
}

/// A part of the data, as the user types it.
fn part(Part { path, weight }: &Part) -> String {
    if is_one(*weight) { path.display().to_string() } else { format!("{}@{weight}", path.display()) }
}
