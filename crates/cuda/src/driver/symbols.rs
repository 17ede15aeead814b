//! Functions of a shared library, looked up by name.
#![allow(unsafe_code, reason = "types of functions are stated, not known")]

use libloading::os::unix::Library as Shared;

/// The function of a name, or the name where the library has none.
///
/// # Safety
///
/// If the library has a function of that name, it has the type `T`.
pub(super) unsafe fn named<T: Copy>(library: &Shared, name: &'static str) -> Result<T, &'static str> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name.as_bytes()).map(|found| *found).map_err(|_| name) }
}

#[cfg(test)]
pub(super) mod stand_in {
    //! Libraries of the wrong version or without functions, made for tests.

    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A function that takes anything and answers with a number.
    pub(in super::super) fn answers(name: &str, number: usize) -> String {
        format!("long {name}(void) {{ return {number}; }}\n")
    }

    /// A library of these functions in C, under a name of its own.
    pub(in super::super) fn library(folder: &Path, name: &str, source: &str) -> PathBuf {
        let (file, library) = (folder.join("stand_in.c"), folder.join(name));
        std::fs::write(&file, source).unwrap();
        let mut compiler = Command::new("cc");
        let built = compiler.args(["-w", "-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status();
        assert!(built.unwrap().success());
        library
    }
}
