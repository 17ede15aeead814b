//! The shape of the workspace: which crate may use which, and that ARCHITECTURE.md knows them all.
//!
//! Only ordinary dependencies count. Tests may look further: the planner is tested on real models, for one, and
//! nothing that is shipped depends on that.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each crate with the crates it may use.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("plimsoll-graph", &[]),
    ("plimsoll-model", &["plimsoll-graph"]),
    ("plimsoll-plan", &["plimsoll-graph"]),
    ("plimsoll-exec", &["plimsoll-graph", "plimsoll-plan"]),
    ("plimsoll-mpi", &["plimsoll-exec"]),
    ("plimsoll-cuda", &["plimsoll-graph", "plimsoll-plan", "plimsoll-exec"]),
    ("plimsoll-devices", &["plimsoll-graph", "plimsoll-plan", "plimsoll-exec", "plimsoll-cuda"]),
    (
        "plimsoll-train",
        &["plimsoll-graph", "plimsoll-model", "plimsoll-plan", "plimsoll-exec", "plimsoll-devices"],
    ),
    (
        "plimsoll",
        &[
            "plimsoll-graph",
            "plimsoll-model",
            "plimsoll-plan",
            "plimsoll-exec",
            "plimsoll-devices",
            "plimsoll-train",
            "plimsoll-mpi",
        ],
    ),
    ("plimsoll-cli", &["plimsoll"]),
];

/// Crates that only the binary may use: the library's users have a command line of their own.
const COMMAND_LINE: [&str; 2] = ["clap", "indicatif"];

struct Crate {
    name: String,
    folder: String,
    /// Names of the crate's ordinary and build dependencies.
    uses: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crates() -> Vec<Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(read_crate).collect()
}

fn read_crate(package: &Value) -> Crate {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let manifest = text(&package["manifest_path"]);
    let folder = Path::new(&manifest).parent().unwrap().file_name().unwrap();
    let shipped = |dependency: &&Value| dependency["kind"] != "dev";
    let dependencies = package["dependencies"].as_array().unwrap().iter().filter(shipped);
    Crate {
        name: text(&package["name"]),
        folder: folder.to_str().unwrap().to_owned(),
        uses: dependencies.map(|dependency| text(&dependency["name"])).collect(),
    }
}

/// Edges that the table does not allow.
fn forbidden(crates: &[Crate]) -> Vec<String> {
    let mut edges = Vec::new();
    for Crate { name, uses, .. } in crates {
        let ours = uses.iter().filter(|used| used.starts_with("plimsoll"));
        match ALLOWED.iter().find(|(known, _)| known == name) {
            Some((_, allowed)) => {
                let bad = ours.filter(|used| !allowed.contains(&used.as_str()));
                edges.extend(bad.map(|used| format!("{name} → {used}")));
            }
            None => edges.push(format!("{name} is not in the table")),
        }
    }
    edges
}

#[test]
fn crates_use_only_what_the_architecture_allows() {
    let crates = crates();
    assert!(crates.len() >= 7, "{} crates", crates.len());
    assert_eq!(forbidden(&crates), Vec::<String>::new());
}

#[test]
fn an_edge_that_is_not_allowed_is_seen() {
    let upside_down = |name: &str, used: &str| Crate {
        name: name.into(),
        folder: String::new(),
        uses: vec!["serde".into(), used.into()],
    };
    let crates = [
        upside_down("plimsoll-graph", "plimsoll-plan"),
        upside_down("plimsoll-cli", "plimsoll-exec"),
        upside_down("plimsoll-new", "plimsoll-graph"),
    ];
    let expected = [
        "plimsoll-graph → plimsoll-plan",
        "plimsoll-cli → plimsoll-exec",
        "plimsoll-new is not in the table",
    ];
    assert_eq!(forbidden(&crates), expected);
}

#[test]
fn only_the_binary_depends_on_a_command_line() {
    for Crate { name, uses, .. } in crates() {
        let found = uses.iter().find(|used| COMMAND_LINE.contains(&used.as_str()));
        assert!(name == "plimsoll-cli" || found.is_none(), "{name} uses {found:?}");
    }
}

#[test]
fn architecture_md_describes_every_crate() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for Crate { folder, .. } in crates() {
        let spellings = [format!("`{folder}`"), format!("`crates/{folder}`"), format!("crates/{folder}/")];
        assert!(spellings.iter().any(|spelling| text.contains(spelling)), "ARCHITECTURE.md lacks `{folder}`");
    }
}

#[test]
fn types_of_devices_are_named_where_they_are_made_and_opened_alone() {
    let mut named = Vec::new();
    for package in crates().iter().filter(|package| package.folder != "devices") {
        // In two parts, so that these lines name none. A crate names the type that it makes.
        let others =
            [("Cpu", "exec"), ("Cuda", "cuda")].into_iter().filter(|(_, home)| package.folder != *home);
        let others: Vec<String> = others.map(|(kind, _)| format!("{kind}Device")).collect();
        for file in rust_files(&root().join("crates").join(&package.folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            if others.iter().any(|other| text.contains(other)) {
                named.push(file.display().to_string());
            }
        }
    }
    assert!(
        named.is_empty(),
        "open a device by its name, with plimsoll_devices::open, in {}",
        named.join(", ")
    );
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}
