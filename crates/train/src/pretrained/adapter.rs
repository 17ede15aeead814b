//! An adapter in a folder, as the library PEFT writes them: whether it belongs to a model, its weights, and how one is
//! written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::{Device, Engine};
use plimsoll_graph::{Graph, GraphError, StateKind, Type};
use plimsoll_model::hf::{Configuration, Stored};
use plimsoll_model::lora::{AdapterConfig, BaseClass, file_name};
use plimsoll_model::{Architecture, Lora, Targets};
use serde_json::Value;

use super::{Pretrained, configuration, said_of};
use crate::error::TrainError;
use crate::files::{FileError, Form, Loaded, ModelFolder, load_weights, read_text};

/// Name of an adapter's weights without its ending.
const ADAPTER_STEM: &str = "adapter_model";
/// Name of an adapter's configuration.
const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The weight of the head that sorts texts, in an adapter's file.
const CLASSIFIER: &str = "base_model.model.classifier.weight";
/// Modules that turn ids into vectors or back.
const TABLES: [&str; 8] = [
    "embed_tokens",
    "lm_head",
    "wte",
    "wpe",
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "decoder",
];

/// An adapter in a folder, as the library PEFT writes them.
#[derive(Clone, Debug)]
pub struct AdapterFolder {
    /// Where it is.
    pub folder: PathBuf,
    /// What its `adapter_config.json` says.
    pub config: AdapterConfig,
    /// The model with the head that the adapter brings, or with its own where it brings none.
    pub configuration: Configuration,
}

impl AdapterFolder {
    /// Reads the configuration of an adapter and looks whether it belongs to this model.
    ///
    /// # Errors
    ///
    /// When there is no adapter, one that is not supported, or one for another model.
    pub fn open(folder: &Path, base: &Configuration) -> Result<AdapterFolder, TrainError> {
        let path = folder.join(ADAPTER_CONFIG);
        let config = AdapterConfig::from_json(&read_text(&path)?)
            .map_err(|error| said_of(&path, ADAPTER_CONFIG, &error.to_string()))?;
        let mut adapter = AdapterFolder { folder: folder.to_owned(), config, configuration: base.clone() };
        let weights = adapter.weights()?;
        adapter.check_family()?;
        adapter.check_targets()?;
        adapter.take_head(&weights)?;
        let graph = adapter.configuration.architecture.training(1, 1)?;
        adapter.config.lora = adapter.config.lora.without_absent_heads(&graph);
        adapter.check(&graph, &weights)?;
        Ok(adapter)
    }

    /// Models of different families may have tensors of equal names and shapes.
    fn check_family(&self) -> Result<(), TrainError> {
        let recorded = self.config.base_class.as_ref().map(|base| base.family.clone());
        let in_folder = || {
            let config = Path::new(self.config.base_model.as_ref()?).join("config.json");
            let config: Value = serde_json::from_str(&read_text(&config).ok()?).ok()?;
            config["model_type"].as_str().map(str::to_owned)
        };
        match (recorded.or_else(in_folder), self.configuration.family) {
            (Some(trained_on), Some(given)) if trained_on != given => Err(self
                .other_base(&format!("it was trained on a `{trained_on}`, and this is a `{given}`"))
                .into()),
            _ => Ok(()),
        }
    }

    /// PEFT can adapt embeddings and heads; no other model would help with those.
    fn check_targets(&self) -> Result<(), FileError> {
        let Targets::Names(names) = &self.config.lora.targets else { return Ok(()) };
        let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
        match names.iter().find(|name| TABLES.contains(&last(name).as_str())) {
            Some(name) => {
                let why = format!(
                    "has an adapter for `{name}`, an embedding or output head, and only linear layers between them \
                     can have one here; merge it into its model with PEFT and give that"
                );
                Err(FileError::wrong(&self.folder, why))
            }
            None => Ok(()),
        }
    }

    /// An adapter that was trained to sort texts has the head for it, which a model of words has not. Names of labels are
    /// in a `config.json` beside it, if we wrote it.
    fn take_head(&mut self, weights: &ModelFolder) -> Result<(), TrainError> {
        let own = self.configuration.architecture.clone();
        let is_bert = matches!(own, Architecture::Bert(_));
        if let (true, None, Some((file, _))) = (is_bert, own.labels(), weights.find([CLASSIFIER])) {
            let count = file.tensor(CLASSIFIER)?.shape.first().copied().unwrap_or_default();
            if count < 2 {
                return Err(self.other_base(&format!("it sorts texts into {count} labels")).into());
            }
            self.configuration.architecture = own.with_labels(count)?;
        }
        let path = self.folder.join("config.json");
        if let (Some(count), true) = (self.configuration.architecture.labels(), path.is_file()) {
            let names = configuration(&read_text(&path)?, &path)?.labels;
            if names.len() == count {
                self.configuration.labels = names;
            }
        }
        Ok(())
    }

    /// Every tensor must belong to this model, with its shape.
    fn check(&self, graph: &Graph, weights: &ModelFolder) -> Result<(), TrainError> {
        let lora = &self.config.lora;
        let adapted = lora.adapt(graph).map_err(|error: GraphError| self.other_base(&error.to_string()))?;
        let mut strange: BTreeSet<&str> = weights.names().collect();
        for (name, ty) in trained(&adapted) {
            let stored = file_name(&name);
            let Some((file, _)) = weights.find([stored.as_str()]) else {
                return Err(self.other_base(&format!("it holds no tensor `{stored}`")).into());
            };
            strange.remove(stored.as_str());
            let (shape, wanted) = (&file.tensor(&stored)?.shape, &ty.shape[..]);
            if *shape != *wanted {
                let why = format!("it holds `{stored}` as {shape:?} where {wanted:?} is wanted");
                return Err(self.other_base(&why).into());
            }
        }
        match strange.first() {
            Some(name) => {
                let why = format!("it holds `{name}`, and {ADAPTER_CONFIG} makes no use of that here");
                Err(self.other_base(&why).into())
            }
            None => Ok(()),
        }
    }

    fn other_base(&self, why: &str) -> FileError {
        let base = self.config.base_model.as_deref();
        let base = base.map_or("the one it was trained on".to_owned(), |base| format!("`{base}`"));
        FileError::wrong(&self.folder, format!("does not go with this model ({why}); give {base} as --model"))
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

/// How an adapter is written: PEFT's files and names, and nothing of the model but its tokenizer. What is trained,
/// `configuration`, may have another head than `base`; then a `config.json` says what its labels are called.
///
/// # Errors
///
/// When the head cannot be described.
pub fn adapter_form(
    lora: &Lora,
    base: &Pretrained,
    configuration: &Configuration,
) -> Result<Form, TrainError> {
    let gpt2 = matches!(base.configuration.architecture, Architecture::Gpt2(_));
    let base_class = configuration.class().zip(configuration.family);
    let config = AdapterConfig {
        lora: lora.clone(),
        base_model: Some(base.name()),
        task: task(&configuration.architecture).map(str::to_owned),
        fan_in_fan_out: gpt2,
        base_class: base_class
            .map(|(class, family)| BaseClass { class: class.to_owned(), family: family.to_owned() }),
    };
    let mut texts = vec![(ADAPTER_CONFIG.to_owned(), config.to_json())];
    if !base.has_head_of(configuration) {
        let config = Value::from(base.config_with(configuration)?);
        texts.push(("config.json".into(), format!("{config:#}\n")));
    }
    Ok(Form {
        stored: Arc::new(|name| Stored::plain(&file_name(name))),
        stem: ADAPTER_STEM.into(),
        frozen: false,
        texts,
        beside: Some(base.folder.clone()),
        ..Form::default()
    })
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
pub(super) fn is_adapter(parameter: &str) -> bool {
    parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight")
}

/// Names and types of what is trained.
fn trained(graph: &Graph) -> impl Iterator<Item = (String, Type)> {
    let states = graph.states().iter();
    let trained = states.filter(|state| state.kind == StateKind::Parameter { trainable: true });
    trained.map(|state| (state.name.clone(), state.ty))
}
