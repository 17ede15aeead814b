//! The model that is trained: a folder with weights, a `config.json` or a named shape; and its adapters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_graph::{Graph, GraphError, Type};
use plimsoll_model::hf::Configuration;
use plimsoll_model::{Architecture, Lora, Preset};
use serde_json::Value;

use super::bounds::{mistake, within};
use super::{Config, adapters, mixture};
use crate::data::{DataError, Tokenizer};
use crate::error::TrainError;
use crate::files::{Loaded, ModelFormat, TOKENS, read_text, reads_bytes, refuse_links_elsewhere};
use crate::optimizer::WeightStorage;
use crate::planning::Model;
use crate::pretrained::{
    AdapterFolder, Pretrained, adapter_form, configuration, prepare_adapters, tokenizer,
};
use crate::run::Run;
use crate::settings::RawConfig;

/// Where a model's weights come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The weights are drawn at random.
    Scratch,
    /// The weights were trained before.
    Pretrained(Box<Pretrained>),
}

impl Origin {
    /// The model whose weights were trained before, if there is one.
    pub(super) fn pretrained(&self) -> Option<&Pretrained> {
        match self {
            Origin::Pretrained(base) => Some(base),
            Origin::Scratch => None,
        }
    }
}

/// A language model at a sequence length.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// The model.
    pub architecture: Architecture,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Whether the run is to generate text.
    pub generate: bool,
    /// Adapters that are trained in place of the model's own weights.
    pub lora: Option<Lora>,
}

impl Model for LanguageModel {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        adapted(self.architecture.training(rows, self.positions()), self.lora.as_ref())
    }

    fn evaluation(&self, rows: usize) -> Result<Graph, GraphError> {
        let certain = self.lora.as_ref().map(Lora::without_dropout);
        adapted(self.architecture.evaluation(rows, self.positions()), certain.as_ref())
    }

    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        let certain = self.lora.as_ref().map(Lora::without_dropout);
        let graph = self.generate.then(|| self.architecture.generation(self.positions()))?;
        Some(adapted(graph, certain.as_ref()))
    }

    fn needs_whole_weights(&self) -> Option<&'static str> {
        self.lora.as_ref().and_then(Lora::needs_whole_weights)
    }

    fn grouped_tensors(&self) -> u64 {
        self.architecture.grouped_tensors()
    }
}

impl LanguageModel {
    /// Positions of a graph before it is adapted: its tokens, and those of trained vectors before them.
    fn positions(&self) -> usize {
        self.seq_len + self.lora.as_ref().map_or(0, Lora::added_positions)
    }

    /// The shape of the model and of its adapters, key by key as their files have them.
    pub(super) fn facts(&self) -> Vec<(String, String)> {
        // A file does not say whether documents are kept apart.
        let mut facts = match self.architecture.clone().with_documents(false).to_config() {
            Ok(Value::Object(config)) => {
                config.into_iter().map(|(key, value)| (key, value.to_string())).collect()
            }
            _ => vec![("model".to_owned(), format!("{:?}", self.architecture))],
        };
        if let Some(lora) = &self.lora {
            facts.extend(adapters::facts(lora));
        }
        facts
    }
}

fn adapted(graph: Result<Graph, GraphError>, lora: Option<&Lora>) -> Result<Graph, GraphError> {
    match lora {
        Some(lora) => lora.adapt(&graph?),
        None => graph,
    }
}

/// The model that the settings describe.
pub(super) struct Resolved {
    pub(super) name: String,
    pub(super) configuration: Configuration,
    pub(super) origin: Origin,
    pub(super) seq_len: usize,
    pub(super) lora: Option<Lora>,
    pub(super) adapter: Option<AdapterFolder>,
}

pub(super) fn resolve(raw: &RawConfig) -> Result<Resolved, TrainError> {
    let (name, mut configuration, origin, usual) = named(raw)?;
    if let Some(layers) = raw.layers {
        within("--layers", layers)?;
        if matches!(origin, Origin::Pretrained(_)) {
            return Err(mistake("--layers is for models that begin from scratch; leave it out"));
        }
        configuration.architecture = configuration.architecture.with_layers(layers);
    }
    let longest = configuration.architecture.positions();
    let seq_len = raw.seq_len.unwrap_or_else(|| longest.map_or(usual, |longest| longest.min(usual)));
    within("--seq-len", seq_len)?;
    if let Some(longest) = longest.filter(|&longest| seq_len > longest) {
        return Err(mistake(format!(
            "--seq-len {seq_len} is longer than the {longest} positions that `{name}` can read; give {longest} or less"
        )));
    }
    let open = |folder| match &origin {
        Origin::Pretrained(model) => model.open_adapter(folder),
        Origin::Scratch => AdapterFolder::open(folder, &configuration),
    };
    let adapter = raw.adapter.as_deref().map(open).transpose()?;
    let lora = match &adapter {
        Some(adapter) => {
            adapters::refuse_beside_adapter(raw)?;
            configuration.clone_from(&adapter.configuration);
            Some(adapter.config.lora.clone())
        }
        None => adapters::new(raw, &configuration.architecture)?,
    };
    let vectors = lora.as_ref().map_or(0, Lora::virtual_tokens);
    if let Some(longest) = longest.filter(|&longest| vectors > 0 && seq_len + vectors > longest) {
        return Err(mistake(format!(
            "--seq-len {seq_len} and {vectors} virtual tokens are more than the {longest} positions that `{name}` can read; \
             give --seq-len {} or less",
            longest.saturating_sub(vectors)
        )));
    }
    configuration.architecture = mixture::apply(raw, configuration.architecture)?;
    Ok(Resolved { name, configuration, origin, seq_len, lora, adapter })
}

/// The folder of a model that is to begin from scratch.
pub(super) fn begins_again(raw: &RawConfig) -> Option<PathBuf> {
    let folder = raw.model.as_ref().map(PathBuf::from);
    folder.filter(|folder| raw.init == Some(true) && folder.is_dir())
}

/// Tokens of a sequence where neither the user nor the model says.
const USUAL_SEQ_LEN: usize = 512;

fn named(raw: &RawConfig) -> Result<(String, Configuration, Origin, usize), TrainError> {
    match (&raw.model, &raw.config) {
        (Some(_), Some(_)) => Err(mistake("give either --model or --config, not both")),
        (None, Some(path)) => {
            let configuration = configuration(&read_text(path)?, path)?;
            Ok((path.display().to_string(), configuration, Origin::Scratch, USUAL_SEQ_LEN))
        }
        (Some(_), None) if begins_again(raw).is_some() && raw.adapter.is_some() => {
            Err(mistake("--adapter belongs to the weights that --init does away with; leave one of them out"))
        }
        (Some(name), None) if begins_again(raw).is_some() => {
            let path = Path::new(name).join("config.json");
            let configuration = configuration(&read_text(&path)?, &path)?;
            Ok((name.clone(), configuration, Origin::Scratch, USUAL_SEQ_LEN))
        }
        (Some(name), None) if Path::new(name).is_dir() => {
            let model = Pretrained::open(Path::new(name)).map_err(|error| unlike_the_preset(name, error))?;
            let mut configuration = model.configuration.clone();
            configuration.notes.extend(shadowed_preset(name));
            Ok((name.clone(), configuration, Origin::Pretrained(Box::new(model)), USUAL_SEQ_LEN))
        }
        (name, None) => {
            let name = name.as_deref().unwrap_or("tiny");
            let preset = Preset::from_name(name).map_err(|error| {
                mistake(format!("{error}; nor is there a folder `{name}` with a model in it"))
            })?;
            Ok((name.to_owned(), preset.model.into(), Origin::Scratch, preset.seq))
        }
    }
}

/// The note about a folder that has the name of a preset and is taken in its place.
fn shadowed_preset(name: &str) -> Option<String> {
    let preset = Preset::from_name(name).ok()?;
    let (name, here) = (preset.name, "rename the folder or run elsewhere to have the preset");
    Some(format!("--model {name} is the folder `{name}` here and not the preset of that name; {here}"))
}

/// The error for a folder that has the name of a preset, since either may be meant.
fn unlike_the_preset(name: &str, error: TrainError) -> TrainError {
    match shadowed_preset(name) {
        Some(note) if error.is_users() => mistake(format!("{}; {note}", error.with_flags())),
        _ => error,
    }
}

impl Config {
    /// The folder whose tokenizer is used, if any is.
    pub fn tokenizer_folder(&self) -> Option<PathBuf> {
        match (&self.tokenizer, &self.origin) {
            (Some(folder), _) => Some(folder.clone()),
            (None, Origin::Pretrained(model)) => Some(model.folder.clone()),
            (None, Origin::Scratch) => None,
        }
    }

    /// The tokenizer; one id per byte where there is no folder.
    ///
    /// # Errors
    ///
    /// When its files are missing or broken, or know more tokens than the model.
    pub fn open_tokenizer(&self) -> Result<Tokenizer, TrainError> {
        let vocab = self.model.architecture.vocab();
        if let Some(folder) = self.tokenizer_folder() {
            return tokenizer(&folder, vocab).map_err(|error| self.without_tokenizer(error));
        }
        let tokenizer = Tokenizer::bytes();
        tokenizer.fits(vocab)?;
        Ok(tokenizer)
    }

    /// A model may have been saved without its tokenizer, as checkpoints of Hugging Face's Trainer often are. The
    /// tokenizer then lies elsewhere, and a setting names that place.
    fn without_tokenizer(&self, error: TrainError) -> TrainError {
        match error {
            TrainError::Data(DataError::NoTokenizer { folder }) if self.tokenizer.is_none() => {
                mistake(format!(
                    "{} has no tokenizer.json; give the folder of the model's tokenizer as --tokenizer, or save the \
                     fast tokenizer there with transformers' save_pretrained",
                    folder.display()
                ))
            }
            other => other,
        }
    }

    /// Checkpoints of adapters do not hold the base model, so they record which model it was.
    pub(super) fn base_facts(&self) -> Result<Option<(String, String)>, TrainError> {
        match &self.origin {
            Origin::Pretrained(base) if self.model.lora.is_some() => {
                Ok(Some(("weights of the model".to_owned(), base.mark()?)))
            }
            _ => Ok(None),
        }
    }

    /// Reads earlier weights into a run: the model's, then the adapter's.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, has another shape, or cannot be read.
    pub fn load(&self, run: &mut Run) -> Result<Loaded, TrainError> {
        let parameters: Vec<(String, Type)> =
            run.parameters(true).map(|(name, ty)| (name.to_owned(), ty)).collect();
        let parameters = || parameters.iter().map(|(name, ty)| (name.as_str(), *ty));
        let mut loaded = Loaded::default();
        if let Origin::Pretrained(model) = &self.origin {
            let model = Pretrained { configuration: self.configuration.clone(), ..(**model).clone() };
            loaded = model.load_quantised(run.engine_mut(), parameters(), self.options.quantised.as_ref())?;
        } else if let Some(base) = &self.options.quantised {
            base.draw(run.engine_mut(), self.options.seed)?;
        }
        if let Some(adapter) = &self.adapter {
            adapter.load(run.engine_mut(), parameters())?;
            loaded.absent.retain(|name| !adapter.config.lora.saves(name));
        }
        if let Some(lora) = &self.model.lora {
            let (forward, base) = (self.model.architecture.training(1, 1)?, self.options.quantised.as_ref());
            prepare_adapters(run.engine_mut(), lora, &forward, base, self.adapter.is_none())?;
        }
        Ok(loaded)
    }

    /// The form in which a trained model is written: a model's folder, or an adapter's.
    ///
    /// # Errors
    ///
    /// When it cannot be written in a form that other programs can read.
    pub fn form(&self) -> Result<ModelFormat, TrainError> {
        let base = if let Origin::Pretrained(base) = &self.origin { Some(base.folder.clone()) } else { None };
        for folder in self.tokenizer_folder().iter().chain(&base) {
            refuse_links_elsewhere(folder)?;
        }
        if let Some(lora) = &self.model.lora {
            let Origin::Pretrained(base) = &self.origin else {
                return Err(mistake(
                    "an adapter is written for a model in a folder; give one as --model, or leave out --output-dir",
                ));
            };
            return adapter_form(lora, base, &self.configuration);
        }
        let architecture = self.model.architecture.clone();
        Ok(ModelFormat {
            stored: Arc::new(move |name| architecture.stored(name)),
            texts: vec![("config.json".into(), self.config_text()?)],
            beside: self.tokenizer_folder(),
            ..ModelFormat::default()
        })
    }

    /// The `config.json` of the trained model: as it was read, except for the element type of the weights, the head,
    /// and a mark for models that read bytes.
    fn config_text(&self) -> Result<String, TrainError> {
        let dtype = match self.options.storage.weights {
            WeightStorage::F32 => "float32",
            WeightStorage::Bf16 | WeightStorage::Bf16Master => "bfloat16",
        };
        let mut config = match &self.origin {
            Origin::Pretrained(model) => Value::from(model.config_with(&self.configuration)?),
            Origin::Scratch => {
                let architecture = self.model.architecture.clone().with_documents(false);
                let dtype = Some(dtype.to_owned());
                let configuration = Configuration { architecture, dtype, ..self.configuration.clone() };
                configuration.to_config().map_err(mistake)?
            }
        };
        if let Value::Object(config) = &mut config {
            config.remove("torch_dtype");
            config.insert("dtype".into(), dtype.into());
            config.remove(TOKENS.0);
            if self.tokenizer_folder().is_none_or(|folder| reads_bytes(&folder)) {
                config.insert(TOKENS.0.into(), TOKENS.1.into());
            }
        }
        Ok(format!("{config:#}\n"))
    }
}
