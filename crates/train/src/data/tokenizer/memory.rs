//! Bytes that a tokenizer holds for each byte of text encoded at once: the measurement behind the factors in `room.rs`.
//! Each case runs in a process of its own, because a process keeps freed memory.
//!
//! ```console
//! $ cargo test -p plimsoll-train --lib bytes_of_a_tokenizer -- --ignored --nocapture
//! ```

use std::env;
use std::process::Command;

use super::tests::open;
use crate::memory;

/// Bytes of a text.
const BYTES: usize = 1 << 20;
/// The case that a started process measures: a tokenizer, and the number of a text.
const CASE: &str = "PLIMSOLL_MEASURED_CASE";

/// Prose, and texts that make much of every byte.
fn texts() -> [(&'static str, String); 8] {
    let repeated = |part: &str| part.repeat(BYTES / part.len());
    let words = (0u64..).map(|n| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut distinct = String::new();
    for word in words.take_while(|_| true) {
        if distinct.len() >= BYTES {
            break;
        }
        distinct.push_str(&word);
    }
    [
        ("prose", repeated("The harbour lay still, and the boats waited for the evening tide to turn. ")),
        ("words never seen before", distinct.clone()),
        ("no space in it", distinct.replace(' ', "")),
        ("one letter again and again", repeated("x")),
        ("every letter a word", repeated("a ")),
        ("every character a sign", repeated("!?.,;")),
        ("Chinese", repeated("漢字仮名交じり文")),
        ("emoji", repeated("🚢⚓🌊")),
    ]
}

/// Bytes for each byte of the text.
fn measured(tokenizer: &str, text: &str) -> f64 {
    let tokenizer = open(tokenizer);
    tokenizer.encode_placed("warm").unwrap();
    let before = memory::process().unwrap().resident;
    let tokens = tokenizer.encode_placed(text).unwrap();
    let held = memory::process().unwrap().peak.saturating_sub(before);
    assert!(!tokens.is_empty());
    held as f64 / text.len() as f64
}

#[test]
#[ignore = "a measurement, not a test"]
fn bytes_of_a_tokenizer_for_each_byte_of_text() {
    if let Ok(case) = env::var(CASE) {
        let (tokenizer, text) = case.split_once(' ').unwrap();
        let texts = texts();
        let (name, text) = &texts[text.parse::<usize>().unwrap()];
        println!("measured {tokenizer:8} {name:28} {:6.0}", measured(tokenizer, text));
        return;
    }
    for tokenizer in ["chatml", "llama3", "bert"] {
        for text in 0..texts().len() {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "data::tokenizer::memory::bytes_of_a_tokenizer_for_each_byte_of_text"]);
            command.args(["--ignored", "--nocapture"]).env(CASE, format!("{tokenizer} {text}"));
            let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
            println!("{}", said.lines().find(|line| line.starts_with("measured")).unwrap_or(&said));
        }
    }
}
