//! Where CUDA's libraries are, and one clear error for each that is missing.
//!
//! The driver comes with the machine. The compiler (NVRTC) and cuBLASLt come with a toolkit or with Python's wheels, in
//! folders that the system's loader does not know; a library opened there by its path is found by its name afterwards.
#![allow(unsafe_code, reason = "loads libraries, whose initialisers run")]

use std::path::{Path, PathBuf};

use cudarc::{cublaslt, driver, nvrtc};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use plimsoll_exec::ExecError;

/// Folders beside the loader's own where libraries are looked for, in this order.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// The folders.
    pub folders: Vec<PathBuf>,
}

/// Folders of libraries that a toolkit or Python's packages have installed: `environment` is the root of an active
/// Python environment and `path` the folders that are searched for programs.
pub fn library_folders(environment: Option<&Path>, path: &[PathBuf]) -> Vec<PathBuf> {
    let of_programs = path.iter().filter(|folder| folder.join("python3").exists());
    let roots = environment.into_iter().chain(of_programs.filter_map(|folder| folder.parent()));
    let mut folders = vec![PathBuf::from("/usr/local/cuda/lib64")];
    for root in roots {
        for packages in within(&root.join("lib"), |name| name.starts_with("python3")) {
            let nvidia = packages.join("site-packages/nvidia");
            folders.extend(within(&nvidia, |_| true).into_iter().map(|package| package.join("lib")));
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders.dedup();
    folders
}

/// Entries of a folder whose name passes, in the order of their names.
fn within(folder: &Path, passes: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(&passes))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

impl Libraries {
    /// Checks that there is a driver.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn driver() -> Result<(), ExecError> {
        // SAFETY: the driver's library has no initialiser that could harm.
        if unsafe { driver::sys::is_culib_present() } {
            return Ok(());
        }
        Err(ExecError::Unsupported(
            "there is no NVIDIA driver here (libcuda.so.1 is missing); install the driver of your GPU, or leave out \
             --device to run on the CPU"
                .into(),
        ))
    }

    /// Makes sure of the compiler.
    ///
    /// # Errors
    ///
    /// When it is in no folder.
    pub fn compiler(&self) -> Result<(), ExecError> {
        // SAFETY: as for the driver.
        let present = || unsafe { nvrtc::sys::is_culib_present() };
        // NVRTC opens its builtins by name, so they must be loaded first.
        self.ensure("NVRTC", "nvidia-cuda-nvrtc", &["libnvrtc-builtins.so", "libnvrtc.so"], present)
    }

    /// Makes sure of cuBLASLt.
    ///
    /// # Errors
    ///
    /// When it is in no folder.
    pub fn products(&self) -> Result<(), ExecError> {
        // SAFETY: as for the driver.
        let present = || unsafe { cublaslt::sys::is_culib_present() };
        self.ensure("cuBLASLt", "nvidia-cublas", &["libcublasLt.so"], present)
    }

    /// cuDNN, where there is one: first in the folders, since the system's may be older.
    pub(super) fn attention(&self) -> Option<Library> {
        let files = self.folders.iter().flat_map(|folder| within(folder, |name| name == "libcudnn.so.9"));
        let named = [PathBuf::from("libcudnn.so.9")];
        files.chain(named).find_map(|path| {
            // SAFETY: a library of CUDA, which is never closed while its functions are in use.
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.ok()
        })
    }

    /// NCCL, where there is one.
    pub(super) fn exchanges(&self) -> Option<Library> {
        let files = self.folders.iter().flat_map(|folder| within(folder, |name| name == "libnccl.so.2"));
        files.chain([PathBuf::from("libnccl.so.2")]).find_map(|path| {
            // SAFETY: as for cuDNN.
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.ok()
        })
    }

    /// cuDNN on a driver and a compiler that one of the folders holds in place of the machine's. Plans can be made with
    /// it, and nothing can run.
    pub(super) fn attention_without_gpu(&self) -> Option<Library> {
        // cuDNN opens both by name, and finds those that are loaded already.
        let stand_ins = ["libcuda.so.1", "libnvrtc.so.13"];
        self.folders.iter().find(|folder| stand_ins.iter().all(|file| open(folder, file)))?;
        self.attention()
    }

    fn ensure(
        &self,
        name: &str,
        package: &str,
        files: &[&str],
        present: impl Fn() -> bool,
    ) -> Result<(), ExecError> {
        if present() {
            return Ok(());
        }
        for folder in &self.folders {
            if files.iter().all(|file| open(folder, file)) && present() {
                return Ok(());
            }
        }
        let looked: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let beside = if looked.is_empty() { String::new() } else { format!(" and in {}", looked.join(", ")) };
        Err(ExecError::Unsupported(format!(
            "{name} is missing: {} was looked for on the loader's path{beside}; to install it: pip install {package}",
            files[files.len() - 1]
        )))
    }
}

/// Opens the file of a folder whose name begins with `file`, and never closes it.
fn open(folder: &Path, file: &str) -> bool {
    let files = within(folder, |name| name.starts_with(file) && !name.contains(".alt."));
    files.iter().any(|path| {
        // SAFETY: a library of CUDA; it is never closed, so no address in it goes stale.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        library.map(std::mem::forget).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_python_packages_are_found_from_its_program() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        assert!(!library_folders(None, std::slice::from_ref(&bin)).contains(&lib), "no Python there");
        std::fs::write(bin.join("python3"), "").unwrap();
        assert!(library_folders(None, &[bin]).contains(&lib));
        assert!(library_folders(Some(root.path()), &[]).contains(&lib));
    }

    #[test]
    fn a_missing_library_is_named_with_the_package_that_brings_it() {
        let folder = tempfile::tempdir().unwrap();
        let libraries = Libraries { folders: vec![folder.path().to_owned()] };
        let why = libraries.ensure("NVRTC", "nvidia-cuda-nvrtc", &["libnothing.so"], || false).unwrap_err();
        let why = why.to_string();
        assert!(why.starts_with("NVRTC is missing: libnothing.so was looked for"), "{why}");
        assert!(why.ends_with("to install it: pip install nvidia-cuda-nvrtc"), "{why}");
    }
}
