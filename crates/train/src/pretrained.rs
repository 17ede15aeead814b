//! A model that somebody has trained before: its folder, and an adapter that belongs to it.
//!
//! What is read here is small: configurations, and the headers of weight files. The weights themselves go straight
//! from the files into the arena of whoever runs the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::{Device, Engine};
use plimsoll_graph::{Graph, GraphError, StateKind, Type};
use plimsoll_model::hf::{ConfigError, Configuration, Stored};
use plimsoll_model::lora::{AdapterConfig, file_name};
use plimsoll_model::{Architecture, Lora};
use sha2::{Digest, Sha256};

use crate::data::Tokenizer;
use crate::error::TrainError;
use crate::files::{FileError, Form, Loaded, ModelFolder, hex, load_weights, read_text};

/// Name of an adapter's weights without its ending.
const ADAPTER_STEM: &str = "adapter_model";
/// Name of an adapter's configuration.
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";

/// A model in a folder.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// Where it is.
    pub folder: PathBuf,
    /// What its `config.json` says.
    pub configuration: Configuration,
    /// The text of that file, which is written again as it was.
    pub config: String,
}

impl Pretrained {
    /// Reads the configuration of a model's folder and looks whether its weights are there.
    ///
    /// # Errors
    ///
    /// When there is no model, or one that is not supported.
    pub fn open(folder: &Path) -> Result<Pretrained, TrainError> {
        let config = ModelFolder::open(folder)?.config()?;
        let configuration = configuration(&config, &folder.join("config.json"))?;
        Ok(Pretrained { folder: folder.to_owned(), configuration, config })
    }

    /// The model's tokenizer; one id per byte where the folder has none and the model knows few enough.
    ///
    /// # Errors
    ///
    /// When its files are broken, or know more tokens than the model.
    pub fn tokenizer(&self) -> Result<Tokenizer, TrainError> {
        tokenizer(&self.folder, self.configuration.architecture.vocab())
    }

    /// Reads the weights into their places. Adapters that `parameters` has beside the model's own are left as
    /// they are.
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, or cannot be read.
    pub fn load<'a, D: Device>(
        &self,
        engine: &mut Engine<D>,
        parameters: impl IntoIterator<Item = (&'a str, Type)>,
    ) -> Result<Loaded, TrainError> {
        let architecture = &self.configuration.architecture;
        let own = parameters.into_iter().filter(|(name, _)| !is_adapter(name));
        let folder = ModelFolder::open(&self.folder)?;
        let mut loaded = load_weights(engine, own, &folder, |name| architecture.stored(name))?;
        loaded.unused.retain(|name| !architecture.ignores(name));
        Ok(loaded)
    }

    /// A mark of the weights, by which a model is known again after it was moved, and told from one that was
    /// trained further: taken from the names and first numbers of all tensors.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn mark(&self) -> Result<String, TrainError> {
        let folder = ModelFolder::open(&self.folder)?;
        let (mut hash, mut begin) = (Sha256::new(), [0; 4096]);
        for name in folder.names() {
            let Some((file, _)) = folder.find([name]) else { continue };
            let count = file.tensor(name)?.bytes.min(begin.len() as u64) as usize;
            file.read_bytes(name, 0, &mut begin[..count])?;
            hash.update(name);
            hash.update(&begin[..count]);
        }
        Ok(hex(&hash.finalize()[..8]))
    }

    /// How the model is written after training: as it came, with the new weights.
    pub fn form(&self) -> Form {
        let architecture = self.configuration.architecture.clone();
        Form {
            stored: Arc::new(move |name| architecture.stored(name)),
            texts: vec![("config.json".into(), self.config.clone())],
            beside: Some(self.folder.clone()),
            ..Form::default()
        }
    }
}

/// What the text of a `config.json` says; what is wrong with it is said of the file at `path`.
pub(crate) fn configuration(text: &str, path: &Path) -> Result<Configuration, TrainError> {
    let wrong = |error: ConfigError| said_of(path, "config.json", &error.to_string());
    Architecture::from_config(text).map_err(wrong)
}

/// A sentence about a file that goes by its usual name, about the file at `path`.
fn said_of(path: &Path, usual: &str, why: &str) -> TrainError {
    TrainError::Config(why.replacen(usual, &path.display().to_string(), 1))
}

/// The tokenizer in a folder; one id per byte where there is none and a model of `vocab` ids knows few enough.
pub(crate) fn tokenizer(folder: &Path, vocab: usize) -> Result<Tokenizer, TrainError> {
    let tokenizer = if folder.join("tokenizer.json").is_file() || Tokenizer::bytes().fits(vocab).is_err() {
        Tokenizer::open(folder)?
    } else {
        Tokenizer::bytes()
    };
    tokenizer.fits(vocab)?;
    Ok(tokenizer)
}

/// An adapter in a folder, as the library PEFT writes them.
#[derive(Clone, Debug)]
pub struct AdapterFolder {
    /// Where it is.
    pub folder: PathBuf,
    /// What its `adapter_config.json` says.
    pub config: AdapterConfig,
}

impl AdapterFolder {
    /// Reads the configuration of an adapter and looks whether it belongs to the model with this forward graph.
    ///
    /// # Errors
    ///
    /// When there is no adapter, one that is not supported, or one for another model.
    pub fn open(folder: &Path, base: &Graph) -> Result<AdapterFolder, TrainError> {
        let path = folder.join(ADAPTER_CONFIG);
        let config = AdapterConfig::from_json(&read_text(&path)?)
            .map_err(|error| said_of(&path, ADAPTER_CONFIG, &error.to_string()))?;
        let adapter = AdapterFolder { folder: folder.to_owned(), config };
        adapter.check(base)?;
        Ok(adapter)
    }

    /// Every tensor must belong to this model, with its shape.
    fn check(&self, base: &Graph) -> Result<(), TrainError> {
        let other_base = |why: String| {
            let base = self.config.base_model.as_deref();
            let base = base.map_or("the one it was trained on".to_owned(), |base| format!("`{base}`"));
            FileError::wrong(
                &self.folder,
                format!("does not go with this model ({why}); give {base} as --model"),
            )
        };
        let adapted =
            self.config.lora.adapt(base).map_err(|error: GraphError| other_base(error.to_string()))?;
        let files = self.weights()?;
        for (name, ty) in trained(&adapted) {
            let stored = file_name(&name);
            let Some((file, _)) = files.find([stored.as_str()]) else {
                return Err(other_base(format!("it holds no tensor `{stored}`")).into());
            };
            let shape = &file.tensor(&stored)?.shape;
            if *shape != ty.shape[..] {
                let wanted = &ty.shape[..];
                return Err(other_base(format!(
                    "it holds `{stored}` as {shape:?} where {wanted:?} is wanted"
                ))
                .into());
            }
        }
        Ok(())
    }

    /// The files of its weights.
    ///
    /// # Errors
    ///
    /// When they are missing or broken.
    pub fn weights(&self) -> Result<ModelFolder, FileError> {
        ModelFolder::open_named(&self.folder, ADAPTER_STEM)
    }

    /// Reads the adapter's weights into their places.
    ///
    /// # Errors
    ///
    /// When one is missing, has another shape, or cannot be read.
    pub fn load<'a, D: Device>(
        &self,
        engine: &mut Engine<D>,
        parameters: impl IntoIterator<Item = (&'a str, Type)>,
    ) -> Result<Loaded, TrainError> {
        let lora = &self.config.lora;
        let own = parameters.into_iter().filter(|(name, _)| is_adapter(name) || lora.saves(name));
        load_weights(engine, own, &self.weights()?, |name| Stored::plain(&file_name(name)))
    }
}

/// How an adapter is written: PEFT's files and names, and nothing of the model but its tokenizer. What is trained may have
/// another head than `base`.
pub fn adapter_form(lora: &Lora, base: &Pretrained, architecture: &Architecture) -> Form {
    let gpt2 = matches!(base.configuration.architecture, Architecture::Gpt2(_));
    let config = AdapterConfig {
        lora: lora.clone(),
        base_model: Some(base.folder.display().to_string()),
        task: task(architecture).map(str::to_owned),
        fan_in_fan_out: gpt2,
    };
    Form {
        stored: Arc::new(|name| Stored::plain(&file_name(name))),
        stem: ADAPTER_STEM.into(),
        frozen: false,
        texts: vec![(ADAPTER_CONFIG.into(), config.to_json())],
        beside: Some(base.folder.clone()),
        ..Form::default()
    }
}

/// PEFT's name for what a model does. It has none for hidden words, and asks models of `CAUSAL_LM` to write.
fn task(architecture: &Architecture) -> Option<&'static str> {
    match (architecture, architecture.labels()) {
        (_, Some(_)) => Some("SEQ_CLS"),
        (Architecture::Bert(_), None) => None,
        _ => Some("CAUSAL_LM"),
    }
}

/// Whether a parameter is part of an adapter.
pub(crate) fn is_adapter(parameter: &str) -> bool {
    parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight")
}

/// Names and types of what is trained.
fn trained(graph: &Graph) -> impl Iterator<Item = (String, Type)> {
    let states = graph.states().iter();
    let trained = states.filter(|state| state.kind == StateKind::Parameter { trainable: true });
    trained.map(|state| (state.name.clone(), state.ty))
}
