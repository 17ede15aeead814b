//! Where CUDA's libraries are, and one clear error for each that is missing.
//!
//! The driver comes with the machine. The compiler (NVRTC) and cuBLASLt come with a toolkit or with Python's wheels, in
//! folders that the system's loader does not know; a library opened there by its path is found by its name afterwards.
//! Several versions may be there. The first is taken that has every function we call and is new enough.
#![allow(unsafe_code, reason = "loads libraries, whose initialisers run")]

use std::fmt;
use std::path::{Path, PathBuf};

use cudarc::driver;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use plimsoll_exec::ExecError;

/// Endings of a library's file on the loader's path: that of a toolkit, then versions as wheels and systems name them.
const ENDINGS: [&str; 3] = ["", ".13", ".12"];

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

    /// The result of `usable` for the first library that it accepts, which is never closed.
    ///
    /// # Errors
    ///
    /// When there is none, with the first that was refused.
    pub(super) fn first_usable<T>(
        &self,
        wanted: &Wanted,
        usable: impl Fn(&Library) -> Result<T, Refusal>,
    ) -> Result<T, ExecError> {
        let found = first_of(self.candidates(wanted), wanted, usable)?;
        found.ok_or_else(|| self.missing(wanted))
    }

    /// Names of a library on the loader's path, then its files in the folders.
    fn candidates(&self, wanted: &Wanted) -> Vec<PathBuf> {
        let names = ENDINGS.iter().map(|ending| PathBuf::from(format!("{}{ending}", wanted.file)));
        let files = self.folders.iter().flat_map(|folder| files(folder, wanted.file));
        names.chain(files).collect()
    }

    fn missing(&self, wanted: &Wanted) -> ExecError {
        let looked: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let beside = if looked.is_empty() { String::new() } else { format!(" and in {}", looked.join(", ")) };
        let Wanted { name, package, file, .. } = wanted;
        ExecError::Unsupported(format!(
            "{name} is missing: {file} was looked for on the loader's path{beside}; to install it: pip install {package}"
        ))
    }

    /// As [`first_usable`](Self::first_usable) for a library that a run can do without, whose file has this very name;
    /// `None` where no file can be opened. Folders come first, since the system's library may be older.
    ///
    /// # Errors
    ///
    /// When there are only files that `usable` refuses, with the first of them.
    pub(super) fn optional<T>(
        &self,
        wanted: &Wanted,
        usable: impl Fn(&Library) -> Result<T, Refusal>,
    ) -> Result<Option<T>, ExecError> {
        let files = self.folders.iter().flat_map(|folder| within(folder, |name| name == wanted.file));
        first_of(files.chain([PathBuf::from(wanted.file)]), wanted, usable)
    }

    /// Opens stand-ins for driver and compiler that one of the folders holds, and tells whether there are any. cuDNN opens both by
    /// name, and finds those that are loaded already; it can then make plans, and run none.
    pub(super) fn stand_ins(&self) -> bool {
        let files = ["libcuda.so.1", "libnvrtc.so.13"];
        self.folders.iter().any(|folder| files.iter().all(|file| open_all(folder, file)))
    }
}

/// A library that we call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The name by which people know the library.
    pub(super) name: &'static str,
    /// The Python package that contains the library.
    pub(super) package: &'static str,
    /// The beginning of the library's file name.
    pub(super) file: &'static str,
    /// Files that must be loaded first.
    pub(super) before: Option<&'static str>,
    /// What else can be done about a library that cannot be used, as the end of a sentence; empty if nothing can.
    pub(super) otherwise: &'static str,
}

/// Why a library cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The library has no function of this name.
    Lacks(&'static str),
    /// The library is older than the oldest version that was tried.
    Old {
        /// The library's version.
        version: String,
        /// The oldest that works.
        oldest: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Refusal::Lacks(name) => write!(formatter, "it has no function {name}"),
            Refusal::Old { version, oldest } => {
                write!(formatter, "it is version {version}, and {oldest} or newer is wanted")
            }
        }
    }
}

impl Wanted {
    /// The command that brings one that works.
    pub(super) fn way_out(&self) -> String {
        format!("pip install --upgrade {}{}", self.package, self.otherwise)
    }

    /// The error for a library that cannot be used.
    pub(super) fn refused(&self, path: &Path, why: &Refusal) -> ExecError {
        let (name, way_out) = (self.name, self.way_out());
        let path = path.display();
        ExecError::Unsupported(format!(
            "{path} cannot be used as {name}: {why}; to install one that works: {way_out}"
        ))
    }
}

/// The result of `usable` for the first of the files that it accepts, which is never closed; `None` if none can be opened.
fn first_of<T>(
    files: impl IntoIterator<Item = PathBuf>,
    wanted: &Wanted,
    usable: impl Fn(&Library) -> Result<T, Refusal>,
) -> Result<Option<T>, ExecError> {
    let mut refused = None;
    for path in files {
        if let (Some(folder), Some(before)) = (path.parent(), wanted.before) {
            open_all(folder, before);
        }
        // SAFETY: a library of CUDA, whose initialisers do no harm.
        let Ok(library) = (unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }) else {
            continue;
        };
        match usable(&library) {
            Ok(found) => {
                // The program uses functions of the library until it ends.
                std::mem::forget(library);
                return Ok(Some(found));
            }
            Err(why) => refused = refused.or_else(|| Some(wanted.refused(&path, &why))),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Files of a folder whose name begins with `file`.
fn files(folder: &Path, file: &str) -> Vec<PathBuf> {
    within(folder, |name| name.starts_with(file) && !name.contains(".alt."))
}

/// Opens the files of a folder whose name begins with `file`, and never closes them; whether any could be opened.
fn open_all(folder: &Path, file: &str) -> bool {
    let open = |path: &PathBuf| {
        // SAFETY: a library of CUDA; it is never closed, so no address in it goes stale.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        library.map(std::mem::forget).is_ok()
    };
    files(folder, file).iter().filter(|path| open(path)).count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::{named, stand_in};

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

    const STAND_IN: Wanted = Wanted {
        name: "Foo",
        package: "nvidia-foo",
        file: "libplimsoll_foo.so",
        before: None,
        otherwise: "",
    };

    #[test]
    fn a_missing_library_is_named_with_the_package_that_brings_it() {
        let folder = tempfile::tempdir().unwrap();
        let libraries = Libraries { folders: vec![folder.path().to_owned()] };
        let why = libraries.first_usable(&STAND_IN, |_| Ok(())).unwrap_err().to_string();
        assert!(why.starts_with("Foo is missing: libplimsoll_foo.so was looked for"), "{why}");
        assert!(why.ends_with("to install it: pip install nvidia-foo"), "{why}");
    }

    #[test]
    fn a_library_that_cannot_be_used_is_passed_over_where_another_can() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let source = ["int other(void) { return 0; }", "int wanted(void) { return 7; }"];
        let files = [0, 1].map(|index| {
            stand_in::library(folders[index].path(), &format!("libplimsoll_foo.so.{index}"), source[index])
        });
        let usable = |library: &Library| {
            // SAFETY: the function of that name above has this type.
            unsafe { named::<extern "C" fn() -> i32>(library, "wanted").map(|function| function()) }
                .map_err(Refusal::Lacks)
        };
        let of = |folders: &[tempfile::TempDir]| Libraries {
            folders: folders.iter().map(|folder| folder.path().to_owned()).collect(),
        };
        assert_eq!(of(&folders).first_usable(&STAND_IN, usable).unwrap(), 7);
        let why = of(&folders[..1]).first_usable(&STAND_IN, usable).unwrap_err().to_string();
        let expected = "cannot be used as Foo: it has no function wanted; to install one that works: pip install --upgrade \
                        nvidia-foo";
        assert_eq!(why, format!("{} {expected}", files[0].display()));
    }
}
