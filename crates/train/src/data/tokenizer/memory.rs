//! Two measurements: the bytes that a tokenizer holds for each byte of text encoded at once, for the factors in `room.rs`; and
//! the bytes that reading a tokenizer takes, beside the number that `needed.rs` names. Each case runs in a process of its own,
//! because a process keeps freed memory.
//!
//! ```console
//! $ cargo test -p plimsoll-train --lib bytes_of_a_tokenizer -- --ignored --nocapture
//! $ cargo test -p plimsoll-train --lib bytes_to_read -- --ignored --nocapture
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

/// A `tokenizer.json` of `words` short words: byte pairs with merges as texts or as lists, words, or words with scores.
fn vocabulary(kind: &str, words: usize) -> String {
    let word = |n: usize| {
        let letters = (0..4).map(|at| char::from(b'a' + (n / 26usize.pow(at) % 26) as u8));
        letters.collect::<String>()
    };
    let joined = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(",");
    let letters = (0..26u8).map(|n| char::from(b'a' + n)).map(String::from);
    // Pairs of letters, then pairs of pairs: each word of four letters is a merge.
    let pairs = (0..676).map(|n| word(n)[..2].to_owned());
    let all: Vec<String> = letters.chain(pairs).chain((0..words).map(word)).collect();
    let ids = joined(&mut all.iter().enumerate().map(|(id, word)| format!("\"{word}\":{id}")));
    let mut merges = all.iter().skip(26).map(|word| word.split_at(word.len() / 2));
    let model = match kind {
        "texts" => {
            let merges = joined(&mut merges.map(|(a, b)| format!("\"{a} {b}\"")));
            format!("{{\"type\":\"BPE\",\"vocab\":{{{ids}}},\"merges\":[{merges}]}}")
        }
        "lists" => {
            let merges = joined(&mut merges.by_ref().map(|(a, b)| format!("[\"{a}\",\"{b}\"]")));
            format!("{{\"type\":\"BPE\",\"vocab\":{{{ids}}},\"merges\":[{merges}]}}")
        }
        "words" => {
            format!(
                "{{\"type\":\"WordPiece\",\"unk_token\":\"a\",\"continuing_subword_prefix\":\"##\",\
                 \"max_input_chars_per_word\":100,\"vocab\":{{{ids}}}}}"
            )
        }
        _ => {
            let scored = joined(&mut all.iter().map(|word| format!("[\"{word}\",-1.5]")));
            format!("{{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[{scored}]}}")
        }
    };
    format!("{{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{model}}}")
}

#[test]
#[ignore = "a measurement, not a test"]
fn bytes_to_read_a_tokenizer_are_fewer_than_are_named() {
    if let Ok(case) = env::var(CASE) {
        let (kind, words) = case.split_once(' ').unwrap();
        let folder = crate::scratch::Scratch::new();
        let path = folder.write("tokenizer.json", vocabulary(kind, words.parse().unwrap()));
        let before = memory::process().unwrap().resident;
        let tokenizer = super::Tokenizer::open(folder.path()).unwrap();
        let held = memory::process().unwrap().peak.saturating_sub(before);
        let (bytes, words) = (std::fs::metadata(&path).unwrap().len(), tokenizer.vocabulary());
        let named = crate::reading::needed() - before;
        println!("measured {kind:6} {words:7} words, {bytes:9} bytes: {held:10} held, {named:10} named");
        return;
    }
    for case in ["texts", "lists", "words", "scores"]
        .into_iter()
        .flat_map(|kind| [1000, 30_000, 400_000].map(|n| (kind, n)))
    {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "data::tokenizer::memory::bytes_to_read_a_tokenizer_are_fewer_than_are_named"]);
        command.args(["--ignored", "--nocapture"]).env(CASE, format!("{} {}", case.0, case.1));
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        println!("{}", said.lines().find(|line| line.starts_with("measured")).unwrap_or(&said));
    }
}
