//! What the environment says: where caches are, and how to reach the hub.
//!
//! The variables are those of Python's library, so that models it has downloaded are found.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::TrainError;
use plimsoll::devices::{GpuFiles, library_folders};
use plimsoll::training::RawConfig;
use plimsoll::training::hub::{Hub, Limits, is_id};
use plimsoll::training::pretrained::base_of;

use crate::commands::train::say;
use crate::exit::Failure;
use crate::{again, table};

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The user's folder for what can be made again.
pub(crate) fn caches() -> Option<PathBuf> {
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
    variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)
}

/// Files of a GPU: libraries of the active Python environment or a toolkit, kernels kept among caches.
pub(crate) fn gpu() -> Result<GpuFiles, Failure> {
    let path =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let environment = variable("VIRTUAL_ENV").or_else(|| variable("CONDA_PREFIX")).map(PathBuf::from);
    let cache = caches().ok_or_else(|| {
        TrainError::Config(
            "there is no folder to keep compiled kernels in; set HOME or XDG_CACHE_HOME".into(),
        )
    })?;
    Ok(GpuFiles {
        libraries: library_folders(environment.as_deref(), &path),
        cache: cache.join("plimsoll").join("cubin"),
    })
}

/// Fills in what the environment decides: the folder of a model that was named by its hub id or by an adapter for it,
/// and the folder for tokenised data.
pub(crate) fn complete(mut raw: RawConfig) -> Result<RawConfig, Failure> {
    if let Some(name) = &raw.model {
        let (model, adapter) = with_adapter(name, raw.adapter.take())?;
        (raw.model, raw.adapter) = (Some(model), adapter);
    }
    if raw.data_cache.is_none() {
        raw.data_cache = caches().map(|caches| caches.join("plimsoll").join("data"));
    }
    Ok(raw)
}

/// The folder of a model, and that of its adapter. A name that is an adapter's folder stands for both, as in transformers.
pub(crate) fn with_adapter(
    name: &str,
    adapter: Option<PathBuf>,
) -> Result<(String, Option<PathBuf>), Failure> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let folder = model(name)?;
    let Some(base) = base_of(Path::new(&folder))? else { return Ok((folder, adapter)) };
    if let Some(other) = adapter {
        let why = format!(
            "--model {name} is an adapter for `{base}`, and --adapter {} another; give `{base}` as --model",
            other.display()
        );
        return Err(TrainError::Config(why).into());
    }
    if !Path::new(&base).is_dir() && !is_id(&base) {
        let why = format!(
            "--model {name} is an adapter for `{base}`, and there is no such folder here; give the folder of that \
             model as --model and {name} as --adapter"
        );
        return Err(TrainError::Config(why).into());
    }
    if again::is_first() && !SAID.swap(true, Ordering::Relaxed) {
        say(&format!("{name} is an adapter for {base}, which is the model\n"))?;
    }
    Ok((model(&base)?, Some(folder.into())))
}

/// The folder of a model named by its hub id; any other name as it is.
fn model(name: &str) -> Result<String, Failure> {
    if Path::new(name).exists() || !is_id(name) {
        return Ok(name.to_owned());
    }
    let mut told = Ok(());
    let folder = hub()?.model(name, "main", |file, bytes| {
        if told.is_ok() {
            told = say(&format!("downloading {file}, {}\n", table::size(bytes)));
        }
    });
    // A folder with a typing error in its path looks like an id.
    let folder = folder.map_err(|error| match error {
        TrainError::Config(why) => TrainError::Config(format!("there is no folder `{name}`, and {why}")),
        other => other,
    })?;
    told?;
    Ok(folder.display().to_string())
}

fn hub() -> Result<Hub, Failure> {
    let home = variable("HF_HOME").map(PathBuf::from).or_else(|| caches().map(|dir| dir.join("huggingface")));
    let cache = variable("HF_HUB_CACHE").map(PathBuf::from).or_else(|| home.map(|home| home.join("hub")));
    let offline = variable("HF_HUB_OFFLINE")
        .is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str()));
    let cache = cache.ok_or_else(|| {
        TrainError::Config("there is no folder to keep models in; set HOME or HF_HOME".into())
    })?;
    Ok(Hub {
        cache,
        endpoint: variable("HF_ENDPOINT"),
        token: variable("HF_TOKEN"),
        offline,
        limits: Limits::default(),
    })
}
