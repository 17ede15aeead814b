//! A pretrained model: its folder, and an adapter that belongs to it.
//!
//! This module reads little: configurations, and the headers of weight files. The weights themselves go straight
//! from the files into the arena of the run.

mod adapter;
mod expert_deltas;
mod export;
mod prepared_adapters;
mod quantised;
mod row_lengths;
mod stored_weight;
mod trained_tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::Engine;
use plimsoll_graph::Type;
use plimsoll_graph::op::Quantised;
use plimsoll_model::Architecture;
use plimsoll_model::hf::{ConfigError, Configuration};
use plimsoll_model::lora::is_adapter;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::data::Tokenizer;
use crate::error::TrainError;
use crate::files::{FileError, Loaded, ModelFolder, ModelFormat, QuantisedBase};
use crate::files::{hex, load_weights, reads_bytes};
use crate::hub;

pub use adapter::{AdapterFolder, adapter_form, base_of};
pub use export::{MergedInto, merge};
pub(crate) use prepared_adapters::prepare_adapters;

/// Keys of a `config.json` that are about the head.
const HEAD: [&str; 6] =
    ["architectures", "classifier_dropout", "id2label", "label2id", "num_labels", "problem_type"];
/// Keys of `config.json` that say how experts are chosen.
const CHOICE_OF_EXPERTS: [&str; 2] = ["num_experts_per_tok", "norm_topk_prob"];

/// A model in a folder.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// The model's folder.
    pub folder: PathBuf,
    /// The contents of its `config.json`.
    pub configuration: Configuration,
    /// The text of that file, which is written again as it was.
    pub config: String,
    /// The form in which the weights of its linear layers are to be kept, if its folder has them as floats.
    pub quantise: Option<Quantised>,
    /// The files of its weights. They stay open: their headers are read once, before the budget is divided, so that
    /// their memory is part of what the process holds then.
    pub(crate) weights: Arc<ModelFolder>,
}

impl Pretrained {
    /// Reads the configuration of a model's folder and checks that its weights are there.
    ///
    /// # Errors
    ///
    /// When there is no model, or one that is not supported.
    pub fn open(folder: &Path) -> Result<Pretrained, TrainError> {
        let weights = Arc::new(ModelFolder::open(folder)?);
        let config = weights.config()?;
        let configuration = configuration(&config, &folder.join("config.json"))?;
        let (folder, opened) = (folder.to_owned(), Arc::clone(&weights));
        let mut model = Pretrained { folder, configuration, config, quantise: None, weights: opened };
        for (second, parameter) in model.configuration.architecture.tied() {
            let stored = model.configuration.architecture.stored(parameter);
            let Some((head, _)) = weights.find([*second]) else { continue };
            let Some((embedding, name)) = weights.find(stored.names()) else { continue };
            if !head.same_numbers(second, embedding, name)? {
                model.untie(head.path(), second, name)?;
            }
        }
        Ok(model)
    }

    /// Gives the model the separate head that the file at `path` holds, whatever the configuration says, as
    /// transformers does. If such a model cannot be built it is refused.
    fn untie(&mut self, path: &Path, head: &str, embedding: &str) -> Result<(), TrainError> {
        let differ = format!("holds `{head}` with other numbers than `{embedding}`");
        let Some(untied) = self.configuration.architecture.untied() else {
            let why = format!(
                "{differ}, and models of this kind are trained with one weight for both; tie them in transformers \
                 and save the model again"
            );
            return Err(FileError::wrong(path, why).into());
        };
        self.configuration.architecture = untied;
        self.configuration.notes.push(format!(
            "{} {differ}, so the model has a head of its own, though `tie_word_embeddings` is true",
            path.display()
        ));
        let mut config = self.config_map()?;
        config.insert("tie_word_embeddings".into(), false.into());
        self.config = format!("{:#}\n", Value::from(config));
        Ok(())
    }

    /// Opens an adapter and checks that it belongs to this model.
    ///
    /// # Errors
    ///
    /// When there is no adapter, one that is not supported, or one for another model.
    pub fn open_adapter(&self, folder: &Path) -> Result<AdapterFolder, TrainError> {
        let adapter = AdapterFolder::open(folder, &self.configuration)?;
        adapter.check_copies(self)?;
        Ok(adapter)
    }

    /// The model's tokenizer; one id per byte where `config.json` says so.
    ///
    /// # Errors
    ///
    /// When its files are missing or broken, or know more tokens than the model.
    pub fn tokenizer(&self) -> Result<Tokenizer, TrainError> {
        tokenizer(&self.folder, self.configuration.architecture.vocab())
    }

    /// Reads the weights into their places. Adapters among `parameters` are left as they are.
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, or cannot be read.
    pub fn load<'a>(
        &self,
        engine: &mut Engine,
        parameters: impl IntoIterator<Item = (&'a str, Type)>,
    ) -> Result<Loaded, TrainError> {
        self.load_quantised(engine, parameters, None)
    }

    /// As [`load`](Self::load), where the weights of `base` are kept in few bits.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_quantised<'a>(
        &self,
        engine: &mut Engine,
        parameters: impl IntoIterator<Item = (&'a str, Type)>,
        base: Option<&QuantisedBase>,
    ) -> Result<Loaded, TrainError> {
        let architecture = &self.configuration.architecture;
        let coded = |name: &str| base.is_some_and(|base| base.holds(name));
        let own = parameters.into_iter().filter(|(name, _)| !is_adapter(name) && !coded(name));
        let mut loaded = load_weights(engine, own, &self.weights, |name| architecture.stored(name))?;
        if let Some(base) = base {
            let read = base.load(engine, &self.weights, |name| architecture.stored(name))?;
            loaded.unused.retain(|name| !read.contains(name));
        }
        loaded.unused.retain(|name| !architecture.ignores(name));
        Ok(loaded)
    }

    /// A fingerprint of the weights. It identifies a model after it was moved, and distinguishes it from one that was
    /// trained further: a hash of the names of all tensors, their element types and all of their numbers.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn mark(&self) -> Result<String, TrainError> {
        let folder = &self.weights;
        let mut hash = Sha256::new();
        for name in folder.names() {
            let Some((file, _)) = folder.find([name]) else { continue };
            let tensor = file.tensor(name)?;
            // The numbers are many, so a quicker checksum stands for them in the hash.
            hash.update(format!("{name} {} {:?} {:08x}\n", tensor.dtype, tensor.shape, file.checksum(name)?));
        }
        Ok(hex(&hash.finalize()[..8]))
    }

    /// How the model is written after training: as it came, with the new weights.
    pub fn form(&self) -> ModelFormat {
        let architecture = self.configuration.architecture.clone();
        ModelFormat {
            stored: Arc::new(move |name| architecture.stored(name)),
            texts: vec![("config.json".into(), self.config.clone())],
            beside: Some(self.folder.clone()),
            ..ModelFormat::default()
        }
    }

    /// The `config.json` of this model with the head and the choice of experts that `configuration` has.
    pub(crate) fn config_with(
        &self,
        configuration: &Configuration,
    ) -> Result<Map<String, Value>, TrainError> {
        let mut config = self.config_map()?;
        let same_choice = choice_of_experts(&self.configuration) == choice_of_experts(configuration);
        if self.has_head_of(configuration) && same_choice {
            return Ok(config);
        }
        let written = configuration.to_config().map_err(|error| TrainError::Config(error.to_string()))?;
        let head: &[&str] = if self.has_head_of(configuration) { &[] } else { &HEAD };
        let choice: &[&str] = if same_choice { &[] } else { &CHOICE_OF_EXPERTS };
        for &key in head.iter().chain(choice) {
            match written.get(key) {
                Some(value) => config.insert(key.into(), value.clone()),
                None => config.remove(key),
            };
        }
        Ok(config)
    }

    fn config_map(&self) -> Result<Map<String, Value>, FileError> {
        let wrong =
            |error: serde_json::Error| FileError::wrong(&self.folder.join("config.json"), error.to_string());
        serde_json::from_str(&self.config).map_err(wrong)
    }

    /// Whether `configuration` has the head of this model, names of labels included.
    pub(crate) fn has_head_of(&self, configuration: &Configuration) -> bool {
        let own = &self.configuration;
        own.labels == configuration.labels && own.architecture.labels() == configuration.architecture.labels()
    }

    /// The model's name for others: its id on the hub, or its folder.
    fn name(&self) -> String {
        hub::id_of(&self.folder).unwrap_or_else(|| self.folder.display().to_string())
    }
}

/// How many experts a token goes to, and whether their weights add up to one; none for a model without experts.
pub(crate) fn choice_of_experts(configuration: &Configuration) -> Option<(usize, bool)> {
    let Architecture::Llama(model) = &configuration.architecture else { return None };
    model.mixture.as_ref().map(|mixture| (mixture.chosen, mixture.normalised))
}

/// The contents of a `config.json` from its text; a fault names the file at `path`.
pub(crate) fn configuration(text: &str, path: &Path) -> Result<Configuration, TrainError> {
    let wrong = |error: ConfigError| said_of(path, "config.json", &error.to_string());
    Architecture::from_config(text).map_err(wrong)
}

/// A sentence about a file that goes by its usual name, about the file at `path`.
fn said_of(path: &Path, usual: &str, why: &str) -> TrainError {
    TrainError::Config(why.replacen(usual, &path.display().to_string(), 1))
}

/// The tokenizer in a folder, for a model of `vocab` ids; one id per byte where the folder is of a model that reads bytes.
pub(crate) fn tokenizer(folder: &Path, vocab: usize) -> Result<Tokenizer, TrainError> {
    let tokenizer = if reads_bytes(folder) { Tokenizer::bytes() } else { Tokenizer::open(folder)? };
    tokenizer.fits(vocab)?;
    Ok(tokenizer)
}
