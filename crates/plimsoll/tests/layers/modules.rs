//! Modules of a crate and the edges between them, read from their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tokens::tokens;

/// A use of one child of a folder by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The module that uses it, and the path that this module names.
    pub(crate) at: String,
}

/// All modules of a crate but those of tests, by their path: `search::curve`, and nothing for the root.
pub(crate) struct Modules {
    /// The paths that each module names, as segments from the root.
    named: BTreeMap<String, Vec<Vec<String>>>,
    /// Names that a module imports, by module and name.
    imported: BTreeMap<(String, String), Import>,
}

/// A name that a module takes from elsewhere.
#[derive(Clone)]
struct Import {
    name: String,
    /// The path that the name is imported from.
    from: Vec<String>,
    /// Whether modules other than this one and its children see the name.
    public: bool,
}

impl Modules {
    /// Reads a folder of sources.
    pub(crate) fn read(src: &Path) -> Modules {
        let mut files = Vec::new();
        collect(src, "", &mut files);
        Modules::from_sources(files)
    }

    /// Reads the modules from their sources, given by path.
    pub(crate) fn from_sources(files: impl IntoIterator<Item = (String, String)>) -> Modules {
        let mut read: BTreeMap<String, Read> = BTreeMap::new();
        for (path, source) in files {
            read.insert(path.clone(), Read::of(&path, &source));
        }
        let tests: BTreeSet<String> = read.values().flat_map(|read| read.tests.iter().cloned()).collect();
        let of_test =
            |path: &str| tests.iter().any(|test| path == test || path.starts_with(&format!("{test}::")));
        read.retain(|path, _| !of_test(path));
        let imported = read.iter().flat_map(|(path, read)| {
            read.imported.iter().map(move |import| ((path.clone(), import.name.clone()), import.clone()))
        });
        Modules {
            imported: imported.collect(),
            named: read.into_iter().map(|(path, read)| (path, read.named)).collect(),
        }
    }

    /// Folders: modules that have children, and the root.
    pub(crate) fn folders(&self) -> Vec<String> {
        let folders = self.named.keys().filter(|path| !self.children(path).is_empty()).cloned();
        folders.chain([String::new()]).collect::<BTreeSet<String>>().into_iter().collect()
    }

    /// Names of the children of a folder.
    pub(crate) fn children(&self, folder: &str) -> Vec<String> {
        let names = self.named.keys().filter_map(|path| child(folder, path));
        names.collect::<BTreeSet<String>>().into_iter().collect()
    }

    /// Uses among the children of a folder.
    pub(crate) fn edges(&self, folder: &str) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (path, named) in &self.named {
            let Some(from) = child(folder, path) else { continue };
            for segments in named {
                let module = self.module(segments, path);
                let to = child(folder, &module);
                if let Some(to) = to.filter(|to| *to != from) {
                    let at = format!("{path} names {}", segments.join("::"));
                    edges.push(Edge { from: from.clone(), to, at });
                }
            }
        }
        edges
    }

    /// The module in which a path ends that `seen_by` names: re-exports are followed, and imports of its own parents.
    fn module(&self, segments: &[String], seen_by: &str) -> String {
        let mut module = String::new();
        for (index, segment) in segments.iter().enumerate() {
            let next = join(&module, segment);
            if self.named.contains_key(&next) {
                module = next;
                continue;
            }
            let import = self.imported.get(&(module.clone(), segment.clone()));
            let visible = |import: &&Import| import.public || child(&module, seen_by).is_some();
            return match import.filter(visible) {
                Some(Import { from, .. }) if *from != segments[..=index] => self.module(from, &module),
                _ => module,
            };
        }
        module
    }
}

/// The child of `folder` in whose part of the tree `path` lies.
fn child(folder: &str, path: &str) -> Option<String> {
    let inside = if folder.is_empty() { path } else { path.strip_prefix(folder)?.strip_prefix("::")? };
    inside.split("::").next().filter(|name| !name.is_empty()).map(str::to_owned)
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn collect(folder: &Path, module: &str, files: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(&path, &join(module, &stem), files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own = matches!(stem.as_str(), "lib" | "main" | "mod");
            let module = if own { module.to_owned() } else { join(module, &stem) };
            files.push((module, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The paths and names of one module.
#[derive(Default)]
struct Read {
    named: Vec<Vec<String>>,
    imported: Vec<Import>,
    /// Modules that exist for tests alone.
    tests: Vec<String>,
}

impl Read {
    fn of(module: &str, source: &str) -> Read {
        let tokens = tokens(source);
        let mut reader = Reader {
            tokens: &tokens,
            at: 0,
            module: segments(module),
            inline: Vec::new(),
            depth: 0,
            read: Read::default(),
        };
        while reader.at < tokens.len() {
            reader.step();
        }
        reader.read
    }
}

fn segments(module: &str) -> Vec<String> {
    module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A walk over the tokens of one module.
struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    module: Vec<String>,
    /// Modules inside the file that are open, with the depth of braces at which each ends.
    inline: Vec<(String, usize)>,
    depth: usize,
    read: Read,
}

impl Reader<'_> {
    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn step(&mut self) {
        match self.token(0) {
            "#" if self.is_cfg_test() => self.skip_test_item(),
            "mod" if self.token(2) == "{" => {
                let name = self.token(1).to_owned();
                self.inline.push((name, self.depth));
                self.depth += 1;
                self.at += 3;
            }
            "{" => {
                self.depth += 1;
                self.at += 1;
            }
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
                if self.inline.last().is_some_and(|(_, depth)| *depth == self.depth) {
                    self.inline.pop();
                }
            }
            "use" => self.read_use(),
            "crate" | "super" | "self" if self.token(1) == "::" && self.before() != "::" => {
                let paths = self.tree(&[]);
                self.name(&paths);
            }
            _ => self.at += 1,
        }
    }

    fn before(&self) -> &str {
        self.at.checked_sub(1).map_or("", |at| self.tokens[at].as_str())
    }

    fn is_cfg_test(&self) -> bool {
        ["#", "[", "cfg", "(", "test", ")", "]"]
            .iter()
            .enumerate()
            .all(|(ahead, sign)| self.token(ahead) == *sign)
    }

    /// Passes over an item that only tests have, and remembers it if it is a module of its own file.
    fn skip_test_item(&mut self) {
        self.at += 7;
        let mut depth = 0;
        while self.at < self.tokens.len() {
            if depth == 0 && self.token(0) == "mod" && self.token(2) == ";" {
                let path = [&self.module[..], &[self.token(1).to_owned()]].concat();
                self.read.tests.push(path.join("::"));
            }
            match self.token(0) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && matches!(self.token(0), ";" | "}");
            self.at += 1;
            if ends {
                return;
            }
        }
    }

    fn read_use(&mut self) {
        let public = self.is_public();
        self.at += 1;
        let own = !matches!(self.token(0), "crate" | "super" | "self" | "::");
        let paths = self.tree(&[]);
        if self.inline.is_empty() {
            for path in &paths {
                let Some((from, name)) = self.imported(path, own) else { continue };
                self.read.imported.push(Import { name, from, public });
            }
        }
        if !own {
            self.name(&paths);
        }
    }

    /// Whether the item whose keyword comes next is visible outside its module.
    fn is_public(&self) -> bool {
        let before: Vec<&str> =
            (1..=8).map(|back| self.at.checked_sub(back).map_or("", |at| &self.tokens[at])).collect();
        let end =
            before.iter().position(|token| matches!(*token, ";" | "}" | "{" | "]")).unwrap_or(before.len());
        before[..end].contains(&"pub")
    }

    /// Where an imported name comes from, from the root: `use x::X` of a child, or `use self::x::X`.
    fn imported(&self, path: &[String], own: bool) -> Option<(Vec<String>, String)> {
        let name = path.last()?.clone();
        let from = if own { [&self.module[..], path].concat() } else { self.absolute(path)? };
        Some((from, name))
    }

    fn name(&mut self, paths: &[Vec<String>]) {
        let absolute: Vec<Vec<String>> = paths.iter().filter_map(|path| self.absolute(path)).collect();
        self.read.named.extend(absolute);
    }

    /// A path from the root of the crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let inline = self.inline.iter().map(|(name, _)| name.clone());
        let mut base: Vec<String> = self.module.iter().cloned().chain(inline).collect();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                while let Some(("super", behind)) =
                    rest.split_first().map(|(first, behind)| (first.as_str(), behind))
                {
                    base.pop();
                    rest = behind;
                }
                return Some([&base[..], rest].concat());
            }
            _ => return None,
        }
        Some([&base[..], &rest[1..]].concat())
    }

    /// The paths of a tree such as `a::{b, c::{d as e}}` behind `prefix`, from the next token on.
    fn tree(&mut self, prefix: &[String]) -> Vec<Vec<String>> {
        let mut path = prefix.to_vec();
        loop {
            match self.token(0) {
                "{" => return self.group(&path),
                "::" => self.at += 1,
                word if word.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                    if word != "self" || path.is_empty() {
                        path.push(word.to_owned());
                    }
                    self.at += 1;
                    if self.token(0) != "::" {
                        break;
                    }
                }
                _ => break,
            }
        }
        if self.token(0) == "as" {
            self.at += 2;
        }
        vec![path]
    }

    fn group(&mut self, prefix: &[String]) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        self.at += 1;
        while self.at < self.tokens.len() && self.token(0) != "}" {
            if self.token(0) == "," {
                self.at += 1;
            } else {
                let before = self.at;
                paths.extend(self.tree(prefix));
                // A sign that belongs to no path.
                self.at += usize::from(self.at == before);
            }
        }
        self.at += 1;
        paths
    }
}
