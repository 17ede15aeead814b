//! Environment variables: where caches are, how to reach the hub, and the libraries of a GPU.

use std::env;
use std::path::PathBuf;

use plimsoll::TrainError;
use plimsoll::devices::{GpuFiles, library_folders};
use plimsoll::training::job::Environment;

use crate::exit::Failure;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The user's caches and the hub.
pub(crate) fn environment() -> Environment {
    Environment::from_variables(variable)
}

/// Files of a GPU: libraries of the active Python environment or a toolkit, kernels kept among caches.
pub(crate) fn gpu() -> Result<GpuFiles, Failure> {
    let path =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let folder = variable("VIRTUAL_ENV").or_else(|| variable("CONDA_PREFIX")).map(PathBuf::from);
    let cache = environment().cached("cubin").ok_or_else(|| {
        TrainError::Config(
            "there is no folder to keep compiled kernels in; set HOME or XDG_CACHE_HOME".into(),
        )
    })?;
    Ok(GpuFiles { libraries: library_folders(folder.as_deref(), &path), cache })
}
