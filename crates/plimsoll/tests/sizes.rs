//! Sizes of files and functions, read from the sources as rustfmt leaves them.
//!
//! A file holds at most [`FILE_LINES`] lines, flat tables excepted. Of the functions that are no tests, half have at most
//! [`MEDIAN`] lines and 19 of 20 at most [`PERCENTILE_95`]. No function takes more than [`PARAMETERS`] parameters beside
//! `self`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

const FILE_LINES: usize = 500;
const MEDIAN: usize = 7;
const PERCENTILE_95: usize = 30;
const PARAMETERS: usize = 6;

/// Files that may be longer, each with the reason: flat tables first.
const LONG: [(&str, &str); 1] = [(
    "graph/src/op.rs",
    "one variant for each op with its equation, and one line for each in every list of facts",
)];

/// A function of a source.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    lines: usize,
    /// The number of parameters, without `self`.
    parameters: usize,
}

/// The functions of a formatted source: each ends with the first line that closes a brace at its own indentation.
fn functions(source: &str) -> Vec<Function> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indentation = &line[..line.len() - line.trim_start().len()];
        let closing = |line: &&str| line.strip_prefix(indentation).is_some_and(|rest| rest.starts_with('}'));
        let rest = &lines[first..];
        let one_line = line.ends_with('}') || line.ends_with(';');
        let count = if one_line { Some(0) } else { rest.iter().position(closing) };
        if let Some(last) = count {
            let header = rest[..=last].join("\n");
            found.push(Function { name, lines: last + 1, parameters: parameters(&header) });
        }
    }
    found
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<String> {
    let mut words = line.trim_start().split([' ', '(', '<']);
    let modifiers = ["pub", "const", "unsafe", "extern", "\"C\"", "crate)", "super)"];
    let mut word = words.next()?;
    while modifiers.contains(&word) || word.starts_with("in ") {
        word = words.next()?;
    }
    (word == "fn").then(|| words.next().map(str::to_owned))?
}

/// Parameters in the brackets behind a function's name and generics, without `self`.
fn parameters(header: &str) -> usize {
    let Some(list) = parameter_list(header) else { return 0 };
    let (mut depth, mut count, mut text) = (0_i32, 0, String::new());
    let mut named = |text: &mut String| {
        let is_self = text.trim_start_matches(['&', ' ', '\n']).ends_with("self");
        count += usize::from(!text.trim().is_empty() && !is_self);
        text.clear();
    };
    let mut before = ' ';
    for sign in list.chars() {
        depth += match sign {
            '(' | '[' | '{' | '<' => 1,
            ')' | ']' | '}' => -1,
            '>' if before != '-' => -1,
            _ => 0,
        };
        if sign == ',' && depth == 0 {
            named(&mut text);
        } else {
            text.push(sign);
        }
        before = sign;
    }
    named(&mut text);
    count
}

/// The text between the brackets of a function's parameters.
fn parameter_list(header: &str) -> Option<&str> {
    let (mut angles, mut before, mut open, mut depth) = (0_i32, ' ', None, 0_i32);
    for (at, sign) in header.char_indices() {
        match (sign, open) {
            ('<', None) => angles += 1,
            ('>', None) if before != '-' => angles -= 1,
            // The brackets of `pub(crate)` stand before the keyword.
            ('(', None) if angles == 0 && header[..at].contains("fn ") => open = Some(at + 1),
            ('(', Some(_)) => depth += 1,
            (')', Some(from)) if depth == 0 => return Some(&header[from..at]),
            (')', Some(_)) => depth -= 1,
            _ => {}
        }
        before = sign;
    }
    None
}

/// Every source of the workspace by its path from `crates`.
fn sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<PathBuf> = vec![crates.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&crates).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn no_file_is_longer_than_the_limit_but_those_listed() {
    let long = sources().into_iter().map(|(name, source)| (name, source.lines().count()));
    let listed = |name: &str| LONG.iter().any(|(file, _)| *file == name);
    let long: Vec<(String, usize)> =
        long.filter(|(name, lines)| *lines > FILE_LINES && !listed(name)).collect();
    assert!(long.is_empty(), "longer than {FILE_LINES} lines; cut by ideas: {long:?}");
}

#[test]
fn functions_fit_on_a_screen_and_take_few_parameters() {
    let of_tests = |name: &str| !name.contains("/src/") || name.contains("tests");
    let mut lengths = Vec::new();
    let mut wide = Vec::new();
    for (name, source) in sources() {
        for function in functions(&source) {
            if function.parameters > PARAMETERS {
                wide.push(format!("{name}: {} with {}", function.name, function.parameters));
            }
        }
        let tests_apart = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if !of_tests(&name) {
            lengths.extend(functions(tests_apart).into_iter().map(|function| function.lines));
        }
    }
    assert!(wide.is_empty(), "more than {PARAMETERS} parameters; some belong together: {wide:?}");
    lengths.sort_unstable();
    let (median, long) = (lengths[lengths.len() / 2], lengths[lengths.len() * 95 / 100]);
    assert!(lengths.len() > 3000, "{} functions were found", lengths.len());
    assert!(median <= MEDIAN, "half of all functions have more than {MEDIAN} lines: {median}");
    assert!(long <= PERCENTILE_95, "one function in twenty has more than {PERCENTILE_95} lines: {long}");
}

#[test]
fn functions_are_measured_as_a_reader_counts() {
    let source = "\
pub(crate) fn short(&mut self) {}
impl X {
    fn long<F: Fn(u8) -> u8>(
        &self,
        a: (u8, u8),
        b: Map<u8, [u8; 2]>,
        c: impl Fn(u8, u8) -> u8,
    ) -> u8 {
        if a.0 > 0 {
            1
        }
    }
}
// fn not_code() {
";
    let function = |name: &str, lines, parameters| Function { name: name.to_owned(), lines, parameters };
    assert_eq!(functions(source), [function("short", 1, 0), function("long", 10, 3)]);
    assert_eq!(parameters("unsafe fn f(mut self, Pair { a, b }: Pair, f: fn(u8, u8)) -> u8 {"), 2);
}
