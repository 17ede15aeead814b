//! An adapter in a folder, as the library PEFT writes them: whether it belongs to a model, its weights, and how one is
//! written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_exec::Engine;
use plimsoll_graph::{Graph, GraphError, StateKind, Type};
use plimsoll_model::hf::{Configuration, StoredName};
use plimsoll_model::lora::{
    AdapterConfig, AdapterKind, BaseClass, Unsupported, WayOut, file_name, is_adapter, module_of,
    parameter_name, unusable,
};
use plimsoll_model::{Architecture, Lora, Targets};
use serde_json::Value;

use super::{Pretrained, configuration, said_of};
use crate::error::TrainError;
use crate::files::{FileError, Loaded, ModelFolder, ModelFormat, load_weights, read_text};

/// Name of an adapter's weights without its ending.
const ADAPTER_STEM: &str = "adapter_model";
/// Name of an adapter's configuration.
const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The weight of the head that sorts texts, in an adapter's file.
const CLASSIFIER: &str = "base_model.model.classifier.weight";
/// Modules that PEFT can adapt and we cannot: output heads, and tables that are looked up by position.
const WITHOUT_ADAPTERS: [&str; 5] =
    ["lm_head", "decoder", "wpe", "position_embeddings", "token_type_embeddings"];
/// Modules to which PEFT's `ensure_weight_tying` applies, by the ends of their names.
const MAY_SHARE: [&str; 2] = ["embed_tokens", "lm_head"];
/// PEFT's name for the weight that an adapter stands beside.
const BESIDE: &str = ".base_layer.weight";

/// An adapter in a folder, as the library PEFT writes them.
#[derive(Clone, Debug)]
pub struct AdapterFolder {
    /// The adapter's folder.
    pub folder: PathBuf,
    /// The contents of its `adapter_config.json`.
    pub config: AdapterConfig,
    /// The model with the head that the adapter brings, or with its own where it brings none.
    pub configuration: Configuration,
    /// Tensors of the file that are copies of the model's own, which PEFT writes beside an adapted embedding: the name
    /// in the file, and the parameter.
    copies: Vec<(String, String)>,
}

impl AdapterFolder {
    /// Reads the configuration of an adapter and checks that it belongs to this model.
    ///
    /// # Errors
    ///
    /// When there is no adapter, one that is not supported, or one for another model.
    pub fn open(folder: &Path, base: &Configuration) -> Result<AdapterFolder, TrainError> {
        let path = folder.join(ADAPTER_CONFIG);
        let config = AdapterConfig::from_json(&read_text(&path)?)
            .map_err(|error| said_of(&path, ADAPTER_CONFIG, &error.to_string()))?;
        let configuration = base.clone();
        let mut adapter =
            AdapterFolder { folder: folder.to_owned(), config, configuration, copies: Vec::new() };
        let weights = adapter.weights()?;
        adapter.check_family()?;
        adapter.check_modules(&weights)?;
        adapter.take_head(&weights)?;
        let positions = 1 + adapter.config.lora.added_positions();
        let graph = adapter.configuration.architecture.training(1, positions)?;
        adapter.check_supported(&graph, &weights)?;
        let lora = adapter.config.lora.clone().with_stacked_targets(&graph);
        let lora = lora.map_err(|error: GraphError| adapter.other_base(&error.to_string()))?;
        adapter.config.lora = lora.without_absent(&graph);
        adapter.copies = adapter.check(&graph, &weights)?;
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

    /// PEFT can adapt modules that cannot have an adapter here; another base model would not help with those.
    fn check_modules(&self, weights: &ModelFolder) -> Result<(), FileError> {
        let module = |name| parameter_name(name).and_then(module_of);
        let without = |module: &&str| ends_in(module, &WITHOUT_ADAPTERS) || self.shares(module);
        let named = match &self.config.lora.targets {
            Targets::Names(names) => names.as_slice(),
            Targets::AllLinear | Targets::Pattern(_) => &[],
        };
        let modules = weights.names().filter_map(module).chain(named.iter().map(String::as_str));
        let Some(module) = modules.into_iter().find(without) else { return self.check_tied(weights) };
        if let Some((head, table)) = self.tied().next().filter(|_| self.shares(module)) {
            // PEFT cannot merge the lengths of DoRA, which are those of the table and of the head.
            let dora = self.config.lora.kind == AdapterKind::Dora;
            let way = if dora { WayOut::Keep } else { WayOut::MergeOnce };
            let what = format!("an adapter that `{table}` and `{head}` share");
            return Err(self.refuse(Unsupported { what, way }));
        }
        let tied = self.tied().any(|(head, _)| head.ends_with(module));
        let way = if tied { WayOut::MergeUntied } else { WayOut::Merge };
        let what = format!("an adapter for `{module}`, an output head or a table of positions");
        Err(self.refuse(Unsupported { what, way }))
    }

    /// Whether an adapter of this module is one of embedding and output head.
    fn shares(&self, module: &str) -> bool {
        self.config.ties && ends_in(module, &MAY_SHARE) && self.tied().next().is_some()
    }

    /// The refusal of a part of this adapter, with the steps that PEFT needs before it merges that part.
    fn refuse(&self, mut part: Unsupported) -> FileError {
        let may_have_own_head = self.configuration.architecture.untied().is_some();
        if matches!(part.way, WayOut::MergeApart | WayOut::MergeUntied) && !may_have_own_head {
            part.way = WayOut::KeepForHead;
        }
        let first = match (part.way, self.tied().next()) {
            (WayOut::MergeUntied, Some((head, _))) => untie(head),
            (WayOut::MergeOnce, Some((head, _))) => adapt_once(head),
            _ => String::new(),
        };
        FileError::wrong(&self.folder, part.said() + &first)
    }

    /// Refuses what PEFT trains and is missing here, with a way to use the adapter as it is: other settings would be those of
    /// another adapter.
    fn check_supported(&self, graph: &Graph, weights: &ModelFolder) -> Result<(), TrainError> {
        let lora = &self.config.lora;
        let is_bias = |name: &&str| {
            name.rsplit('.').next() == Some("bias")
                && !parameter_name(name).is_some_and(|name| lora.saves(name))
        };
        if let Some(name) = weights.names().find(is_bias) {
            return Err(FileError::wrong(&self.folder, unusable(&format!("`{name}`, a trained bias"))).into());
        }
        lora.unsupported(graph)?.map_or(Ok(()), |found| Err(self.refuse(found).into()))
    }

    /// Weights that are embedding and output head at once: the name of the head's module, and of the embedding's.
    fn tied(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        let weights = self.configuration.architecture.tied().iter();
        weights
            .filter_map(|(head, table)| Some((head.strip_suffix(".weight")?, table.strip_suffix(".weight")?)))
    }

    /// PEFT gives a copy of such weights to one of the two modules; the model here has them once.
    fn check_tied(&self, weights: &ModelFolder) -> Result<(), FileError> {
        let lora = &self.config.lora;
        // A larger module, such as a head with its bias, may be saved without the weight that it shares.
        let named = |module: &str| lora.modules_to_save.iter().any(|saved| module.ends_with(saved.as_str()));
        let saves = |module: &&str| {
            let weight = format!("{module}.weight");
            lora.saves(&weight) && (named(module) || weights.find([file_name(&weight).as_str()]).is_some())
        };
        match self.tied().flat_map(|(head, table)| [head, table]).find(saves) {
            Some(module) => {
                let what =
                    format!("a copy of `{module}`, which is embedding and output head at once in this model");
                let way = if self.shares(module) { WayOut::Merge } else { WayOut::MergeApart };
                Err(self.refuse(Unsupported { what, way }))
            }
            None => Ok(()),
        }
    }

    /// Takes the classification head from the adapter: it was trained there, over a language model that has none.
    /// An adapter that plimsoll wrote has the names of labels in a `config.json` beside it.
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

    /// Every tensor must belong to this model, with its shape. Returns those that are copies of the model's own.
    fn check(&self, graph: &Graph, weights: &ModelFolder) -> Result<Vec<(String, String)>, TrainError> {
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
        strange.into_iter().map(|name| self.copied(graph, name)).collect()
    }

    /// The parameter that a tensor of the file is a copy of. PEFT writes embedding tables beside their adapter, and
    /// both tables if their size has changed.
    fn copied(&self, graph: &Graph, name: &str) -> Result<(String, String), TrainError> {
        let parameter = parameter_name(name).map(|parameter| match parameter.strip_suffix(BESIDE) {
            Some(module) => format!("{module}.weight"),
            None => parameter.to_owned(),
        });
        let tied = self.configuration.architecture.tied();
        let known = parameter.and_then(|parameter| {
            let second = tied.iter().find(|(second, _)| *second == parameter);
            let parameter = second.map_or(parameter, |(_, first)| (*first).to_owned());
            graph.states().iter().any(|state| state.name == parameter).then_some(parameter)
        });
        let Some(parameter) = known else {
            let why = format!("it holds `{name}`, and {ADAPTER_CONFIG} makes no use of that here");
            return Err(self.other_base(&why).into());
        };
        Ok((name.to_owned(), parameter))
    }

    /// Refuses copies of the model's weights that differ from the model's own: the configuration does not say how they
    /// were trained.
    pub(super) fn check_copies(&self, base: &Pretrained) -> Result<(), TrainError> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let (own, model) = (self.weights()?, ModelFolder::open(&base.folder)?);
        for (name, parameter) in &self.copies {
            let stored = self.configuration.architecture.stored(parameter);
            let (Some((copy, _)), Some((file, known))) =
                (own.find([name.as_str()]), model.find(stored.names()))
            else {
                continue;
            };
            if !copy.same_numbers(name, file, known)? {
                let what = format!("`{name}`, a table with other numbers than the model's");
                return Err(FileError::wrong(&self.folder, unusable(&what)).into());
            }
        }
        Ok(())
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
    pub fn load<'a>(
        &self,
        engine: &mut Engine,
        parameters: impl IntoIterator<Item = (&'a str, Type)>,
    ) -> Result<Loaded, TrainError> {
        let lora = &self.config.lora;
        let own = parameters.into_iter().filter(|(name, _)| is_adapter(name) || lora.saves(name));
        Ok(load_weights(engine, own, &self.weights()?, |name| StoredName::plain(&file_name(name)))?)
    }
}

/// A parameter of an adapter, which is small.
pub(super) fn matrix(weights: &ModelFolder, parameter: &str, elements: usize) -> Result<Vec<f32>, FileError> {
    let name = file_name(parameter);
    let (file, _) = weights
        .find([name.as_str()])
        .ok_or_else(|| FileError::wrong(weights.path(), format!("holds no tensor `{name}`")))?;
    let mut numbers = vec![0.0; elements];
    file.read(&name, 0, &mut numbers)?;
    Ok(numbers)
}

/// The name of the model that an adapter in a folder belongs to, from its configuration; `None` if the folder holds a
/// model of its own, or no adapter.
///
/// # Errors
///
/// When the configuration cannot be read or names no model.
pub fn base_of(folder: &Path) -> Result<Option<String>, TrainError> {
    let path = folder.join(ADAPTER_CONFIG);
    let model = ["model.safetensors", "model.safetensors.index.json"];
    if !path.is_file() || model.iter().any(|name| folder.join(name).exists()) {
        return Ok(None);
    }
    let config: Value = serde_json::from_str(&read_text(&path)?)
        .map_err(|error| said_of(&path, ADAPTER_CONFIG, &format!("{ADAPTER_CONFIG}: {error}")))?;
    match config["base_model_name_or_path"].as_str() {
        Some(base) if !base.is_empty() => Ok(Some(base.to_owned())),
        _ => {
            let why = format!(
                "is an adapter that does not say which model it belongs to; give `--model BASE_FOLDER --adapter {}`",
                folder.display()
            );
            Err(FileError::wrong(folder, why).into())
        }
    }
}

/// How an adapter is written: PEFT's files and names, and nothing of the model but its tokenizer. The trained model,
/// `configuration`, may have another head than `base`; then a `config.json` holds the names of its labels.
///
/// # Errors
///
/// When the head cannot be described.
pub fn adapter_form(
    lora: &Lora,
    base: &Pretrained,
    configuration: &Configuration,
) -> Result<ModelFormat, TrainError> {
    let gpt2 = matches!(base.configuration.architecture, Architecture::Gpt2(_));
    let base_class = configuration.class().zip(configuration.family);
    let config = AdapterConfig {
        lora: lora.clone(),
        base_model: Some(base.name()),
        task: task(&configuration.architecture).map(str::to_owned),
        fan_in_fan_out: gpt2,
        base_class: base_class
            .map(|(class, family)| BaseClass { class: class.to_owned(), family: family.to_owned() }),
        ties: false,
    };
    let mut texts = vec![(ADAPTER_CONFIG.to_owned(), config.to_json())];
    if !base.has_head_of(configuration) {
        let config = Value::from(base.config_with(configuration)?);
        texts.push(("config.json".into(), format!("{config:#}\n")));
    }
    Ok(ModelFormat {
        stored: Arc::new(|name| StoredName::plain(&file_name(name))),
        stem: ADAPTER_STEM.into(),
        frozen: false,
        texts,
        beside: Some(base.folder.clone()),
        ..ModelFormat::default()
    })
}

/// Advice for an adapter of a head that is the embedding too: PEFT's merge would add the adapter to both.
fn untie(head: &str) -> String {
    format!(
        "; before PEFT merges it, give the head weights of its own (`base.{head}.weight = \
         torch.nn.Parameter(base.{head}.weight.clone()); base.config.tie_word_embeddings = False`), or the merged \
         model has another embedding"
    )
}

/// Advice for an adapter that embedding and head share: PEFT's merge would add it to their weights twice.
fn adapt_once(head: &str) -> String {
    format!(
        "; before PEFT merges it, take the adapter off the head (`core = model.base_model.model; core.{head} = \
         getattr(core.{head}, \"base_layer\", core.{head})`, where `model` is what `from_pretrained` returned), or the \
         merged model has it twice"
    )
}

/// Whether the last part of a module's name is one of these.
fn ends_in(module: &str, names: &[&str]) -> bool {
    module.rsplit('.').next().is_some_and(|last| names.contains(&last))
}

/// PEFT's name for a model's task. It has none for masked language models, and expects models of `CAUSAL_LM` to write
/// text.
fn task(architecture: &Architecture) -> Option<&'static str> {
    match (architecture, architecture.labels()) {
        (_, Some(_)) => Some("SEQ_CLS"),
        (Architecture::Bert(_), None) => None,
        _ => Some("CAUSAL_LM"),
    }
}

/// Names and types of the trained tensors.
fn trained(graph: &Graph) -> impl Iterator<Item = (String, Type)> {
    let states = graph.states().iter();
    let trained = states.filter(|state| state.kind == StateKind::Parameter { trainable: true });
    trained.map(|state| (state.name.clone(), state.ty))
}
