//! The shape of each crate: which of its modules use which, read from their source.
//!
//! Two rules. A crate that is in [`LAYERS`] has its top-level modules in a written order, and each uses only those above
//! it. In every crate, siblings (modules or folders of one folder) use each other in no ring; a `mod.rs` and its children
//! are no siblings.
//!
//! Tests do not count: they may look further. Paths made by macros are not seen.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[path = "layers/modules.rs"]
mod modules;
#[path = "layers/tokens.rs"]
mod tokens;

use modules::{Edge, Modules};

/// Crates with the written order of their top-level modules: each uses only those before it.
const LAYERS: [(&str, &[&str]); 3] = [
    (
        "plan",
        &[
            "bytes",
            "device",
            "program",
            "schedule",
            "layout",
            "recompute",
            "remat",
            "optimum",
            "offload",
            "plan",
            "search",
            "report",
            "file",
        ],
    ),
    (
        "train",
        &[
            "panics",
            "reading",
            "memory",
            "optimizer",
            "files",
            "jinja",
            "data",
            "error",
            "settings",
            "hub",
            "pretrained",
            "planning",
            "run",
            "checkpoint",
            "trainer",
            "config",
            "generate",
            "measure",
            "job",
        ],
    ),
    (
        "cli",
        &[
            "exit",
            "table",
            "curve",
            "heartbeat",
            "say",
            "guard",
            "signals",
            "reexec",
            "environment",
            "launch",
            "watching",
            "settings",
            "args",
            "notes",
            "samples",
            "page",
            "report_page",
            "live_page",
            "intrinsic_page",
            "progress",
            "starting",
            "commands",
        ],
    ),
];

/// Modules that use nothing of their crate, and so could be a crate.
const ALONE: [(&str, &str); 1] = [("plan", "remat")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crates() -> BTreeMap<String, Modules> {
    let folders = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let named = folders.filter(|folder| folder.join("src").is_dir());
    named
        .map(|folder| {
            (folder.file_name().unwrap().to_str().unwrap().to_owned(), Modules::read(&folder.join("src")))
        })
        .collect()
}

/// Edges of a crate against the order of its layers.
fn against(order: &[&str], modules: &Modules) -> Vec<String> {
    let mut wrong = Vec::new();
    let place = |name: &str| order.iter().position(|layer| *layer == name);
    for name in modules.children("") {
        if place(&name).is_none() {
            wrong.push(format!("{name} has no place in the order"));
        }
    }
    for Edge { from, to, at } in modules.edges("") {
        if place(&from) < place(&to) {
            wrong.push(format!("{from} uses {to}, which comes later: {at}"));
        }
    }
    wrong
}

/// Groups of siblings that reach each other, by folder.
fn rings(modules: &Modules) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for folder in modules.folders() {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Edge { from, to, .. } in modules.edges(&folder) {
            uses.entry(from).or_default().insert(to);
        }
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            uses.keys().map(|name| (name, reachable(name, &uses))).collect();
        let mut seen = BTreeSet::new();
        for (&name, reach) in reached.iter().filter(|(name, reach)| reach.contains(*name)) {
            let ring: BTreeSet<String> = (reach.iter())
                .filter(|other| reached.get(**other).is_some_and(|back| back.contains(name)))
                .map(|other| (*other).clone())
                .collect();
            if seen.insert(ring.clone()) {
                found.push((folder.clone(), ring));
            }
        }
    }
    found
}

fn reachable<'a>(from: &String, uses: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = uses.get(from).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(uses.get(next).into_iter().flatten());
        }
    }
    reached
}

#[test]
fn layers_use_only_those_above_them() {
    let crates = crates();
    for (name, order) in LAYERS {
        assert_eq!(against(order, &crates[name]), Vec::<String>::new(), "crate `{name}`");
    }
    for (name, alone) in ALONE {
        let edges: Vec<Edge> = crates[name].edges("").into_iter().filter(|edge| edge.from == alone).collect();
        assert!(edges.is_empty(), "crate `{name}`: `{alone}` stands alone, but {edges:?}");
    }
}

/// Texts that repeat the order of a crate: in a list, or by the order in which modules are declared.
const SHOWN: [(&str, &str); 5] = [
    ("plan", "ARCHITECTURE.md"),
    ("train", "ARCHITECTURE.md"),
    ("cli", "ARCHITECTURE.md"),
    ("plan", "crates/plan/src/lib.rs"),
    ("train", "crates/train/src/lib.rs"),
];

/// The layers that lines begin with, in the order of the lines.
fn shown<'a>(text: &'a str, order: &[&str]) -> Vec<&'a str> {
    let first = |line: &'a str| line.split_whitespace().find(|word| !["//!", "pub", "mod"].contains(word));
    let names = text.lines().filter_map(first).map(|word| word.trim_end_matches(['/', ';']));
    names.filter(|name| order.contains(name)).collect()
}

#[test]
fn texts_show_the_same_order() {
    for (name, order) in LAYERS {
        for (_, file) in SHOWN.iter().filter(|(shown, _)| *shown == name) {
            let text = std::fs::read_to_string(root().join(file)).unwrap();
            let shown = shown(&text, order);
            assert!(
                shown.windows(order.len()).any(|window| window == order),
                "{file} lists the layers of `{name}` in no such order: {shown:?}"
            );
        }
    }
}

#[test]
fn siblings_use_each_other_in_no_ring() {
    let mut found = Vec::new();
    for (name, modules) in crates() {
        for (folder, ring) in rings(&modules) {
            let inside = |edge: &Edge| ring.contains(&edge.from) && ring.contains(&edge.to);
            let edges = modules.edges(&folder).into_iter().filter(inside);
            let edges: BTreeSet<String> =
                edges.map(|Edge { from, to, at }| format!("    {from} uses {to}: {at}")).collect();
            let edges: Vec<String> = edges.into_iter().collect();
            found.push(format!("crate `{name}`, folder `{folder}`:\n{}", edges.join("\n")));
        }
    }
    assert!(found.is_empty(), "rings:\n{}", found.join("\n"));
}

fn modules(files: &[(&str, &str)]) -> Modules {
    Modules::from_sources(files.iter().map(|(path, source)| (path.to_string(), source.to_string())))
}

#[test]
fn an_edge_against_the_order_is_seen_however_it_is_written() {
    for source in [
        "use crate::high::Thing;",
        "use crate::{low::{x, y}, high::{inside::Thing}};",
        "fn f() { let x = crate::high::thing(); }",
        "use super::high::Thing;",
        "mod inner { use super::super::high::Thing; }",
        "fn f(_: &'static str, c: char) -> bool { c == '\"' && super::high::f() }",
    ] {
        let crate_of = modules(&[("low", source), ("high", "")]);
        let wrong = against(&["low", "high"], &crate_of);
        assert_eq!(wrong.len(), 1, "{source}: {wrong:?}");
        assert!(wrong[0].starts_with("low uses high, which comes later"), "{wrong:?}");
    }
    let unlisted = against(&["low"], &modules(&[("low", ""), ("new", "")]));
    assert_eq!(unlisted, ["new has no place in the order"]);
}

#[test]
fn tests_comments_texts_and_the_crate_itself_are_no_edges() {
    for source in [
        "#[cfg(test)] mod tests { use crate::high::Thing; }",
        "#[cfg(test)] use crate::high::Thing;",
        "//! See [`high`](crate::high).\n/* crate::high::f() */",
        "fn f() -> &'static str { \"crate::high::f()\" }",
        "fn f() -> &'static str { r#\"crate::high::\"f\"()\"# }",
        "use crate::low::inside::Own; mod inside { use super::Other; }",
    ] {
        let crate_of = modules(&[("low", source), ("high", "")]);
        assert_eq!(against(&["low", "high"], &crate_of), Vec::<String>::new(), "{source}");
    }
    let of_a_test = modules(&[
        ("low", "#[cfg(test)]\nmod oracle;"),
        ("low::oracle", "use crate::high::f;"),
        ("high", ""),
    ]);
    assert_eq!(against(&["low", "high"], &of_a_test), Vec::<String>::new());
}

#[test]
fn rings_are_found_at_every_depth_and_through_re_exports() {
    let flat = modules(&[
        ("a", "use crate::b::X;"),
        ("b", "use crate::c::X;"),
        ("c", "use crate::a::X;"),
        ("d", "use crate::a::X;"),
    ]);
    let members = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
    assert_eq!(rings(&flat), [(String::new(), members(&["a", "b", "c"]))]);
    let deep = modules(&[
        ("folder", "mod x; mod y; pub(crate) use x::X; pub use self::y::{Y, Z as W};"),
        ("folder::x", "use super::Y;"),
        ("folder::y", "use crate::folder::X;"),
    ]);
    assert_eq!(rings(&deep), [("folder".to_owned(), members(&["x", "y"]))]);
    let private = modules(&[
        ("folder", "mod x; mod y; use x::X; use y::Y;"),
        ("folder::x", "use super::Y;"),
        ("folder::y", "fn f(_: super::X) {}"),
    ]);
    assert_eq!(rings(&private), [("folder".to_owned(), members(&["x", "y"]))]);
    let parent = modules(&[("folder", "mod x; use x::X; struct Own;"), ("folder::x", "use super::Own;")]);
    assert!(rings(&parent).is_empty(), "a folder's own file and its children are no siblings");
}
