//! The kernels' sources, as they were when the crate was compiled.
//!
//! Headers are handed to the compiler by name, so no folder is needed at run time. `codes.cuh` is written here: it
//! holds the tables of [`plimsoll_exec::codes`], so that both devices round to the same numbers.

use std::fmt::Write;

use plimsoll_exec::codes::{Codes, SIGNED, UNSIGNED};
use plimsoll_exec::quantised::{NF4, SCALES};
use sha2::{Digest, Sha256};

/// One file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource {
    /// Its name, without the ending `.cu`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Whether products and sums may be fused into one operation. Files that must give the CPU's bits forbid it.
    pub fused: bool,
}

impl KernelSource {
    /// A hash of everything that the compiled code can depend on: the text and the headers that it includes, without
    /// comments and empty lines. `kernels/judged.txt` lists the hashes that were judged on a GPU.
    pub fn fingerprint(&self) -> String {
        let headers = headers();
        let mut hash = Sha256::new();
        let mut waiting = vec![self.text];
        let mut seen: Vec<&str> = Vec::new();
        while let Some(text) = waiting.pop() {
            for line in text.lines().map(without_comment).filter(|line| !line.is_empty()) {
                hash.update(line);
                hash.update("\n");
                let named = line.strip_prefix("#include \"").map(|name| name.trim_end_matches('"'));
                if let Some((name, text)) =
                    headers.iter().find(|(name, _)| Some(*name) == named && !seen.contains(name))
                {
                    seen.push(name);
                    waiting.push(text);
                }
            }
        }
        hash.update([u8::from(self.fused)]);
        hash.finalize().iter().take(8).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }
}

/// A line up to its comment.
fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim_end()
}

macro_rules! source {
    ($name:literal, $fused:literal) => {
        KernelSource { name: $name, text: include_str!(concat!("../kernels/", $name, ".cu")), fused: $fused }
    };
}

/// Every file of kernels.
pub const SOURCES: [KernelSource; 27] = [
    source!("movement", true),
    source!("cast", true),
    source!("elementwise", true),
    source!("dropout", true),
    source!("jitter", true),
    source!("product", true),
    source!("conv", true),
    source!("sums", true),
    source!("norms", true),
    source!("row_norms", true),
    source!("softmax", true),
    source!("errors", true),
    source!("routing", true),
    source!("experts", true),
    source!("grouped", true),
    source!("balance", true),
    source!("steering", true),
    source!("quantised", false),
    source!("subspace", true),
    source!("embedding", true),
    source!("rope", true),
    source!("attention", true),
    source!("attention_grad", true),
    source!("updates", false),
    source!("matrices", false),
    source!("apollo", false),
    source!("draw", false),
];

/// Names and texts of the headers that sources include.
pub fn headers() -> Vec<(&'static str, String)> {
    let fixed = [
        ("block.cuh", include_str!("../kernels/block.cuh")),
        ("columns.cuh", include_str!("../kernels/columns.cuh")),
        ("random.cuh", include_str!("../kernels/random.cuh")),
        ("stored.cuh", include_str!("../kernels/stored.cuh")),
        ("normal.cuh", include_str!("../kernels/normal.cuh")),
        ("attention.cuh", include_str!("../kernels/attention.cuh")),
        ("tensor.cuh", include_str!("../kernels/tensor.cuh")),
    ];
    let mut headers: Vec<(&str, String)> = fixed.map(|(name, text)| (name, text.to_owned())).into();
    headers.push(("codes.cuh", codes()));
    headers.push(("quantised.cuh", quantised()));
    headers
}

/// Tables of 8-bit codes: the numbers, and the middles between neighbours.
fn codes() -> String {
    let mut text = String::from("// The tables of `exec/src/codes.rs`.\n#pragma once\n");
    for (name, codes) in [("SIGNED", &*SIGNED), ("UNSIGNED", &*UNSIGNED)] {
        table(&mut text, &format!("{name}_NUMBERS"), &codes.numbers);
        table(&mut text, &format!("{name}_MIDDLES"), &middles(codes));
    }
    text
}

/// Tables of weights in few bits.
fn quantised() -> String {
    let mut text = String::from("// The tables of `exec/src/quantised.rs`.\n#pragma once\n");
    table(&mut text, "NF4_NUMBERS", &NF4);
    table(&mut text, "SCALE_NUMBERS", &SCALES.numbers);
    text
}

fn middles(codes: &Codes) -> Vec<f32> {
    let pairs = codes.numbers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1]));
    pairs.chain([f32::MAX]).collect() // the last is never passed
}

fn table(text: &mut String, name: &str, numbers: &[f32]) {
    // Exponents of ten lose no bit of a float that is printed with all its digits.
    let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:e}f")).collect();
    let _ = writeln!(text, "__device__ const float {name}[{}] = {{{}}};", numbers.len(), numbers.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_256_numbers_that_read_back_to_the_bit() {
        let text = codes();
        let line = text.lines().find(|line| line.contains("UNSIGNED_NUMBERS")).unwrap();
        let list = line.split(['{', '}']).nth(1).unwrap();
        let numbers: Vec<f32> =
            list.split(", ").map(|number| number.trim_end_matches('f').parse().unwrap()).collect();
        assert_eq!(numbers, UNSIGNED.numbers);
    }

    #[test]
    fn every_kernel_is_as_a_gpu_has_judged_it_or_waits_by_name() {
        let table = include_str!("../kernels/judged.txt");
        let lines =
            || table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace());
        let judged: Vec<(String, String)> = lines()
            .filter_map(|mut words| Some((words.next()?.to_owned(), words.next()?.to_owned())))
            .collect();
        let covers = |source: &KernelSource| {
            let fingerprint = source.fingerprint();
            judged.iter().any(|(name, hash)| name == source.name && *hash == fingerprint)
        };
        let unjudged: Vec<String> = SOURCES
            .iter()
            .filter(|source| !covers(source))
            .map(|source| format!("{} {}", source.name, source.fingerprint()))
            .collect();
        let waiting: Vec<String> =
            judged.iter().filter(|(word, _)| word == "waiting").map(|(_, name)| name.clone()).collect();
        let names: Vec<&str> = unjudged.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(
            names, waiting,
            "changed since a GPU judged them: {unjudged:#?}; run scripts/gpu_check.sh on a GPU and take over its lines, or \
             write `waiting NAME` in kernels/judged.txt until somebody does"
        );
    }

    #[test]
    fn a_fingerprint_follows_code_and_headers_and_not_comments() {
        let source = |text| KernelSource { name: "x", text, fused: true };
        let plain = source("int a;\n#include \"random.cuh\"\n");
        assert_eq!(plain.fingerprint(), source("int a; // one\n\n#include \"random.cuh\"\n").fingerprint());
        assert_ne!(plain.fingerprint(), source("int b;\n#include \"random.cuh\"\n").fingerprint());
        assert_ne!(plain.fingerprint(), source("int a;\n#include \"block.cuh\"\n").fingerprint());
        assert_ne!(plain.fingerprint(), KernelSource { fused: false, ..plain }.fingerprint());
    }

    #[test]
    fn every_header_that_a_source_includes_is_there() {
        let headers = headers();
        let texts =
            SOURCES.iter().map(|source| source.text).chain(headers.iter().map(|(_, text)| text.as_str()));
        for text in texts {
            for line in text.lines().filter_map(|line| line.strip_prefix("#include \"")) {
                let name = line.trim_end_matches('"');
                assert!(headers.iter().any(|(header, _)| *header == name), "{name}");
            }
        }
    }
}
