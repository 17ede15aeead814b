//! One name, one type: no two crates or modules declare a public type under the same name.
//!
//! A name that is declared twice costs its reader an import list to read. Public means plain `pub`: the lint
//! `unreachable_pub` sees to it that such a type leaves its module. Types of one crate (`pub(crate)`, `pub(super)`, private)
//! may share a name, since their folder tells them apart. Declarations made by macros are not seen.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[path = "layers/tokens.rs"]
mod tokens;

/// Keywords that declare a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Names of the types that a source declares as plain `pub`.
fn public_types(source: &str) -> Vec<String> {
    let tokens = tokens::tokens(source);
    let mut names = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "pub") {
        let mut declared = tokens[at + 1..].iter().skip_while(|token| *token == "unsafe");
        if declared.next().is_some_and(|keyword| KEYWORDS.contains(&keyword.as_str())) {
            names.extend(declared.next().cloned());
        }
    }
    names
}

/// Names that are declared more than once, with the files that do it.
fn doubles(sources: &[(String, String)]) -> BTreeMap<String, Vec<&str>> {
    let mut declared: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, source) in sources {
        for name in public_types(source) {
            declared.entry(name).or_default().push(file);
        }
    }
    declared.retain(|_, files| files.len() > 1);
    declared
}

/// Every source file below `folder`, in the order of their paths.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn no_public_type_is_declared_twice() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in std::fs::read_dir(&crates).unwrap() {
        sources(&folder.unwrap().path().join("src"), &mut files);
    }
    files.sort();
    let read: Vec<(String, String)> = (files.iter())
        .map(|path| {
            let name = path.strip_prefix(&crates).unwrap().display().to_string();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(read.len() > 100, "sources were found in {}", crates.display());
    let doubles = doubles(&read);
    let list: Vec<String> =
        doubles.iter().map(|(name, files)| format!("{name}: {}", files.join(" and "))).collect();
    assert!(list.is_empty(), "public types with the name of another; rename one:\n{}", list.join("\n"));
}

#[test]
fn a_double_is_found_and_names_inside_a_crate_are_left_alone() {
    let read = |sources: &[&str]| -> Vec<(String, String)> {
        sources.iter().enumerate().map(|(at, source)| (format!("{at}.rs"), source.to_string())).collect()
    };
    let twice = read(&["pub struct Layout;", "mod deep { pub enum Layout<'a> { A(&'a str) } }"]);
    assert_eq!(doubles(&twice), BTreeMap::from([("Layout".to_owned(), vec!["0.rs", "1.rs"])]));
    let trait_and_type = read(&["pub unsafe trait Read {}", "pub type Read = u8;"]);
    assert!(doubles(&trait_and_type).contains_key("Read"));
    for other in
        ["pub(crate) struct Layout;", "struct Layout;", "// pub struct Layout;", "pub use x::Layout;"]
    {
        assert!(doubles(&read(&["pub struct Layout;", other])).is_empty(), "{other}");
    }
}
