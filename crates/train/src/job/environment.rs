//! The user's cache folders, and the access to the hub.
//!
//! The library reads no environment variable: the caller passes them to [`Environment::from_variables`]. Their names
//! are those of Python's library, so that models it has downloaded are found.

use std::path::{Path, PathBuf};

use plimsoll_devices::{DeviceKind, GpuFiles, library_folders};

use super::watch::{Stage, Watch};
use crate::error::TrainError;
use crate::hub::{Hub, HubLimits, is_id};
use crate::pretrained::base_of;
use crate::settings::RawConfig;

/// Folders and accounts that belong to no single run.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The user's folder for caches. Measured times, disk speeds and tokenised data are in its folder `plimsoll`; without
    /// it nothing is kept.
    pub caches: Option<PathBuf>,
    /// The hub for models that are named by their id. Without it a model is a folder or a preset.
    pub hub: Option<Hub>,
    /// Source of the times of ops if the settings name none; by default those measured on this machine.
    pub costs: Option<String>,
    /// Folders of a GPU's libraries: those of the active Python environment, and of a toolkit.
    pub libraries: Vec<PathBuf>,
}

/// A model's folder, and that of its adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedModel {
    /// The folder, or the name of a preset.
    pub model: String,
    /// The adapter's folder.
    pub adapter: Option<PathBuf>,
}

impl Environment {
    /// The environment read through `variable`: `HOME`, `XDG_CACHE_HOME`, `PLIMSOLL_COSTS`, and those of the hub. An
    /// empty value counts as absent.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Environment {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let caches = variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
        let home = variable("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| caches.as_ref().map(|caches| caches.join("huggingface")));
        let cache = variable("HF_HUB_CACHE").map(PathBuf::from).or_else(|| home.map(|home| home.join("hub")));
        let offline = variable("HF_HUB_OFFLINE")
            .is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str()));
        let hub = cache.map(|cache| Hub {
            cache,
            endpoint: variable("HF_ENDPOINT"),
            token: variable("HF_TOKEN"),
            offline,
            limits: HubLimits::default(),
        });
        let path = variable("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
        let python = variable("VIRTUAL_ENV").or_else(|| variable("CONDA_PREFIX")).map(PathBuf::from);
        let libraries = library_folders(python.as_deref(), &path.unwrap_or_default());
        Environment { caches, hub, costs: variable("PLIMSOLL_COSTS"), libraries }
    }

    /// Files that a kind of device needs: a GPU's, and none for the processor.
    ///
    /// # Errors
    ///
    /// As [`gpu`](Self::gpu).
    pub fn files_of(&self, kind: DeviceKind) -> Result<GpuFiles, TrainError> {
        if kind == DeviceKind::Cpu { Ok(GpuFiles::default()) } else { self.gpu() }
    }

    /// Files of a GPU, whose compiled kernels are kept among the caches.
    ///
    /// # Errors
    ///
    /// When there is no folder for caches.
    pub fn gpu(&self) -> Result<GpuFiles, TrainError> {
        let cache = self.cached("cubin").ok_or_else(|| {
            let why = "there is no folder to keep compiled kernels in; set HOME or XDG_CACHE_HOME";
            TrainError::Config(why.into())
        })?;
        Ok(GpuFiles { libraries: self.libraries.clone(), cache })
    }

    /// A file or folder among the caches.
    pub fn cached(&self, name: &str) -> Option<PathBuf> {
        Some(self.caches.as_ref()?.join("plimsoll").join(name))
    }

    /// Fills in the settings that the environment decides: the folder of a model that is named by its hub id or by an
    /// adapter for it, and the folder for tokenised data.
    ///
    /// # Errors
    ///
    /// When the model cannot be found or downloaded, or two adapters are named.
    pub fn complete(&self, mut raw: RawConfig, watch: &mut dyn Watch) -> Result<RawConfig, TrainError> {
        if let Some(name) = &raw.model {
            let named = self.model(name, raw.adapter.take(), watch)?;
            (raw.model, raw.adapter) = (Some(named.model), named.adapter);
        }
        if raw.data_cache.is_none() {
            raw.data_cache = self.cached("data");
        }
        Ok(raw)
    }

    /// The folder of a model, and that of its adapter. The folder of an adapter stands for both, as in transformers.
    ///
    /// # Errors
    ///
    /// As [`complete`](Environment::complete).
    pub fn model(
        &self,
        name: &str,
        adapter: Option<PathBuf>,
        watch: &mut dyn Watch,
    ) -> Result<NamedModel, TrainError> {
        adapter.as_deref().map_or(Ok(()), is_here)?;
        let folder = self.folder(name, watch)?;
        let Some(base) = base_of(Path::new(&folder))? else {
            return Ok(NamedModel { model: folder, adapter });
        };
        if let Some(other) = adapter {
            return Err(TrainError::Config(format!(
                "--model {name} is an adapter for `{base}`, and --adapter {} another; give `{base}` as --model",
                other.display()
            )));
        }
        let without_base = |why: &str| {
            TrainError::Config(format!(
                "--model {name} is an adapter for `{base}`, and {why}; if its model is in another folder, give \
                 `--model BASE_FOLDER --adapter {folder}`"
            ))
        };
        if !Path::new(&base).is_dir() && !is_id(&base) {
            return Err(without_base("there is no such folder here"));
        }
        watch.hear(Stage::Adapter { name, base: &base });
        let model = self.folder(&base, watch).map_err(|error| match error {
            TrainError::Config(why) => without_base(&why),
            other => other,
        })?;
        Ok(NamedModel { model, adapter: Some(folder.into()) })
    }

    /// The folder of a model named by its hub id; any other name is returned unchanged.
    fn folder(&self, name: &str, watch: &mut dyn Watch) -> Result<String, TrainError> {
        if Path::new(name).exists() || !is_id(name) {
            return Ok(name.to_owned());
        }
        let hub = self.hub.as_ref().ok_or_else(|| {
            TrainError::Config("there is no folder to keep models in; set HOME or HF_HOME".into())
        })?;
        let folder = hub.model(name, "main", |file, bytes| watch.hear(Stage::Downloading { file, bytes }));
        // A misspelled path to a folder looks like a hub id.
        let folder = folder.map_err(|error| match error {
            TrainError::Config(why) => TrainError::Config(format!("there is no folder `{name}`, and {why}")),
            other => other,
        })?;
        Ok(folder.display().to_string())
    }
}

/// Refuses an adapter that is no folder: unlike models, adapters are not downloaded.
fn is_here(adapter: &Path) -> Result<(), TrainError> {
    if adapter.is_dir() {
        return Ok(());
    }
    let name = adapter.display().to_string();
    let way_out = if is_id(&name) {
        format!(
            "adapters are not downloaded here; run `hf download {name} --local-dir FOLDER` and give that folder"
        )
    } else {
        "give the folder that adapter_config.json is in".to_owned()
    };
    Err(TrainError::Config(format!("--adapter {name} is no folder; {way_out}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Environment {
        Environment::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn caches_and_the_hub_are_where_python_has_them() {
        let cache = |variables: &[(&str, &str)]| of(variables).hub.map(|hub| hub.cache);
        assert_eq!(of(&[("HOME", "/h")]).cached("data"), Some("/h/.cache/plimsoll/data".into()));
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), Some("/c/huggingface/hub".into()));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("XDG_CACHE_HOME", "")]), Some("/f/hub".into()));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/x")]), Some("/x".into()));
        let nothing = of(&[]);
        assert!(nothing.caches.is_none() && nothing.hub.is_none() && nothing.cached("data").is_none());
    }

    #[test]
    fn the_hub_is_left_alone_where_python_would_leave_it_alone() {
        for (value, offline) in [("1", true), ("True", true), ("on", true), ("0", false), ("", false)] {
            let hub = of(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).hub.unwrap();
            assert_eq!(hub.offline, offline, "{value}");
        }
    }

    #[test]
    fn a_name_of_the_hub_without_a_cache_says_how_to_get_one() {
        let error = of(&[]).model("somebody/something", None, &mut ()).unwrap_err().to_string();
        assert_eq!(error, "there is no folder to keep models in; set HOME or HF_HOME");
    }
}
