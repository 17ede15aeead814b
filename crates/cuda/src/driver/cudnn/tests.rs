//! Libraries of the wrong version, made for the tests.

use std::path::Path;

use super::*;
use crate::driver::symbols::stand_in;

const NAMES: [&str; 11] = [
    "cudnnGetVersion",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnGetLastErrorString",
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendSetAttribute",
    "cudnnBackendGetAttribute",
    "cudnnBackendFinalize",
    "cudnnBackendExecute",
];

/// Writes a library with these names, each a function that answers with one number, of which that of the version is
/// called.
fn write(folder: &Path, version: usize, names: &[&str]) {
    let source: String = names.iter().map(|name| stand_in::answers(name, version)).collect();
    stand_in::library(folder, "libcudnn.so.9", &source);
}

/// The version of the library that is chosen of those in the folders.
fn chosen(folders: &[&Path]) -> Result<Option<usize>, String> {
    let libraries = Libraries { folders: folders.iter().map(|folder| folder.to_path_buf()).collect() };
    let found = libraries.optional(&CUDNN, usable).map_err(|error| error.to_string())?;
    Ok(found.map(|(_, version)| version))
}

#[test]
fn a_library_of_the_wrong_version_is_refused_by_its_path_with_the_line_that_updates_it() {
    let said = |version, names: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), version, names);
        chosen(&[folder.path()]).map_err(|why| why.replace(&folder.path().display().to_string(), "FOLDER"))
    };
    let refused = |why: &str| {
        Err(format!(
            "FOLDER/libcudnn.so.9 cannot be used as cuDNN: {why}; to install one that works: pip install --upgrade \
             nvidia-cudnn-cu13, or uninstall it, and attention runs in slower kernels that need no library"
        ))
    };
    assert_eq!(said(91_002, &NAMES), refused("it is version 9.10.2, and 9.14.0 or newer is wanted"));
    assert_eq!(said(OLDEST, &NAMES[..3]), refused("it has no function cudnnSetStream"));
    assert_eq!(said(OLDEST, &NAMES), Ok(Some(OLDEST)));
}

#[test]
fn an_old_library_is_passed_over_where_another_folder_has_one_that_works() {
    let [old, new] = [(91_002, tempfile::tempdir().unwrap()), (91_900, tempfile::tempdir().unwrap())];
    for (version, folder) in [&old, &new] {
        write(folder.path(), *version, &NAMES);
    }
    assert_eq!(chosen(&[old.1.path(), new.1.path()]), Ok(Some(91_900)));
    assert_eq!(chosen(&[new.1.path(), old.1.path()]), Ok(Some(91_900)));
}
