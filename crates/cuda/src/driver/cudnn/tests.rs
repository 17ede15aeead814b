//! Libraries of the wrong version, made for the test.

use std::process::Command;

use super::*;

/// A library with all the names that are looked for, each a function that answers with one number.
fn stand_in(folder: &std::path::Path, version: usize, names: &[&str]) -> Shared {
    let function = |name: &&str| format!("long {name}(void) {{ return {version}; }}");
    let source: Vec<String> = names.iter().map(function).collect();
    let (file, library) = (folder.join("cudnn.c"), folder.join("libcudnn.so.9"));
    std::fs::write(&file, source.join("\n")).unwrap();
    let mut compiler = Command::new("cc");
    let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status();
    assert!(built.unwrap().success());
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
        usable(stand_in(folder.path(), version, names))
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
