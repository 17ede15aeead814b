//! Libraries of the wrong version, made for the test.

use super::*;
use crate::driver::symbols::stand_in;

/// A library with these names, each a function that answers with one number.
fn opened(folder: &std::path::Path, version: usize, names: &[&str]) -> Shared {
    let source: String = names.iter().map(|name| stand_in::answers(name, version)).collect();
    let library = stand_in::library(folder, "libcudnn.so.9", &source);
    // SAFETY: the functions above, of which the test calls the one that asks for the version.
    unsafe { Shared::open(Some(library), libloading::os::unix::RTLD_NOW) }.unwrap()
}

#[test]
fn a_library_of_the_wrong_version_is_refused_with_the_line_that_updates_it() {
    let names = [
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
    let said = |version, names: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        usable(opened(folder.path(), version, names))
            .map(|(_, version)| version)
            .map_err(|error| error.to_string())
    };
    let expected = "cuDNN 9.10.2 is too old for attention; version 9.14.0 or newer is wanted: pip install --upgrade nvidia-cudnn-cu13, \
                    or uninstall it, and attention runs in slower kernels that need no library";
    assert_eq!(said(91_002, &names), Err(expected.to_owned()));
    assert_eq!(said(OLDEST, &names), Ok(OLDEST));
    assert!(
        said(OLDEST, &names[..3])
            .unwrap_err()
            .starts_with("this cuDNN has no attention by graphs; version 9.14.0")
    );
}
