//! No file breaks the budget: each crafted one ends in one error that names it, below the ceiling.
//!
//! Every file here was made to take far more memory, depth or time than its size lets one expect. The program is run with
//! a budget of 64 MiB, and the most it ever held is read from the kernel when it has ended. That figure begins with what
//! the process holds that starts it, so it is started by a process of its own, which is small.
#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking, and only libc tells the peak"
)]

use std::env;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

mod support;
use support::Home;

/// The budget of every run, and what its peak may lie above it: a page or two that were touched between two looks.
const BUDGET: &str = "--memory 64MiB";
const CEILING: u64 = (64 << 20) + (1 << 20);

const TRAIN: &str = "train --model model --data text.txt --max-steps 1 --seq-len 16 --global-batch 4 --threads 2 --report-to none";
const GENERATE: &str = "generate --model model --prompt aaaaaaaaaaaaaaaa --max-new-tokens 2 --threads 1";

/// How a process ended: its exit code, what it wrote to standard error, and the most bytes it held.
struct Ended {
    code: Option<i32>,
    said: String,
    peak: u64,
}

fn run(home: &Home, arguments: &str) -> Ended {
    let [said, peak] = ["said", "peak"].map(|name| home.path(name));
    let mut starter = Command::new(env::current_exe().unwrap());
    starter.args(["--exact", "starts_the_program", "--ignored", "--nocapture"]).current_dir(home.path(""));
    starter.env("XDG_CACHE_HOME", home.path("cache")).env("CEILING_ARGUMENTS", arguments);
    let output = starter.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ended: Value = serde_json::from_slice(&fs::read(peak).unwrap()).unwrap();
    Ended {
        code: ended["code"].as_i64().map(|code| code as i32),
        said: String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned(),
        peak: ended["peak"].as_u64().unwrap(),
    }
}

#[test]
#[ignore = "run by the others, in a process of its own"]
fn starts_the_program() {
    let Ok(arguments) = env::var("CEILING_ARGUMENTS") else { return };
    let program = env::var("CEILING_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_plimsoll").to_owned());
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null());
    #[allow(clippy::zombie_processes, reason = "wait4 waits for it, and tells its peak")]
    let child = command.stderr(File::create("said").unwrap()).spawn().unwrap();
    // SAFETY: a plain record of numbers, for which zeros are a value.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    let pid = child.id() as libc::pid_t;
    // SAFETY: both out-parameters live here.
    assert_eq!(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) }, pid);
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    fs::write("peak", json!({ "code": code, "peak": usage.ru_maxrss * 1024 }).to_string()).unwrap();
}

/// The program refuses a file: one line that names it, the exit code of a user's mistake, and no more memory than stated.
fn refused(home: &Home, what: &str, arguments: &str, file: &str) {
    refused_within(home, what, &format!("{arguments} {BUDGET}"), file);
}

/// As [`refused`], of a command that may have a budget or none.
fn refused_within(home: &Home, what: &str, arguments: &str, file: &str) {
    let Ended { code, said, peak } = run(home, arguments);
    let begins = said.starts_with("error: ") && said.contains(file);
    assert!(begins && said.lines().count() == 1 && said.len() < 1500, "{what}: {arguments}: {said:.2000}");
    assert!(!said.contains("panicked") && code == Some(2), "{what}: {arguments}: {code:?} {said}");
    assert!(peak <= CEILING, "{what}: {arguments}: reached {} KiB: {said}", peak >> 10);
}

/// The program may take the file or refuse it, but keeps to the budget and does not crash.
fn bounded(home: &Home, what: &str, arguments: &str) {
    let Ended { code, said, peak } = run(home, &format!("{arguments} {BUDGET}"));
    assert!(
        matches!(code, Some(0 | 2)) && !said.contains("panicked"),
        "{what}: {arguments}: {code:?} {said:.2000}"
    );
    assert!(peak <= CEILING, "{what}: {arguments}: reached {} KiB: {said:.2000}", peak >> 10);
}

/// Writes a file piece by piece.
fn written(path: &Path, write: impl FnOnce(&mut BufWriter<File>)) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    write(&mut out);
    out.flush().unwrap();
}

/// Repeats a text until there are `bytes` of it.
fn fill(out: &mut impl Write, text: &str, bytes: usize) {
    for _ in 0..bytes / text.len() {
        out.write_all(text.as_bytes()).unwrap();
    }
}

fn sparse(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

/// JSON of that many lists in each other.
fn deep(open: &str, inner: &str, close: &str, depth: usize) -> String {
    [open.repeat(depth).as_str(), inner, &close.repeat(depth)].concat()
}

/// A weight file with a header of so many bytes, written by `write`, and `data` bytes behind it.
fn weights(home: &Home, length: u64, data: u64, write: impl FnOnce(&mut BufWriter<File>)) {
    let path = home.path("model/model.safetensors");
    written(&path, |out| {
        out.write_all(&length.to_le_bytes()).unwrap();
        write(out);
    });
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(8 + length + data).unwrap();
}

#[test]
fn headers_of_weights_take_no_more_than_the_budget() {
    let home = Home::with_model();
    let file = "model/model.safetensors";
    let all = |what: &str| {
        for command in ["plan --model model", TRAIN, GENERATE] {
            refused(&home, what, command, file);
        }
    };
    let entry = |n: usize| format!("\"t{n:07}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},");
    let count = 77_000_000 / entry(0).len();
    weights(&home, (count * entry(0).len() + 1) as u64 + entry(0).len() as u64, 0, |out| {
        out.write_all(b"{").unwrap();
        for n in 0..=count {
            let text = entry(n);
            let text = if n == count { text.replace("},", "}}") } else { text };
            out.write_all(text.as_bytes()).unwrap();
        }
    });
    all("1.2 million empty tensors");
    let long = |begin: &str, repeated: &str, end: &str| {
        let bytes = 77_000_000 / repeated.len() * repeated.len();
        weights(&home, (begin.len() + bytes + end.len()) as u64, 0, |out| {
            out.write_all(begin.as_bytes()).unwrap();
            fill(out, repeated, bytes);
            out.write_all(end.as_bytes()).unwrap();
        });
    };
    let one = "\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    long("{\"", "n", &format!("\":{{\"dtype\":{one}"));
    refused(&home, "a name of 77 MB", "plan --model model", file);
    long("{\"x\":{\"dtype\":\"F32\",\"shape\":[0", ",0", "],\"data_offsets\":[0,0]}}");
    refused(&home, "a shape of 38 million extents", "plan --model model", file);
    long("{\"__metadata__\":{\"a\":\"", "b", "\"}}");
    refused(&home, "metadata of 77 MB", "plan --model model", file);
    long("{\"x\":", "[", "");
    refused(&home, "77 million brackets", "plan --model model", file);
    long("{\"x\":{\"dtype\":\"F32\",\"extra\":\"", "\\u0041", "\"}}");
    refused(&home, "an unknown key of 77 MB", "plan --model model", file);
}

#[test]
fn headers_that_lie_are_refused_by_what_they_say() {
    let home = Home::with_model();
    let x = |rest: &str| format!("{{\"x\":{{\"dtype\":\"F32\",\"shape\":{rest}}}}}");
    let cases = [
        ("overflowing offsets", x("[1],\"data_offsets\":[18446744073709551612,18446744073709551615]")),
        ("offsets beyond 64 bits", x("[1],\"data_offsets\":[0,99999999999999999999999]")),
        (
            "a product of extents beyond 64 bits",
            x("[4294967296,4294967296,4294967296],\"data_offsets\":[0,8]"),
        ),
        ("a name that comes twice", {
            let x = "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
            format!("{{{x},{x}}}")
        }),
        ("metadata that comes twice", "{\"__metadata__\":{},\"__metadata__\":{}}".to_owned()),
        ("a name of metadata that comes twice", "{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}".to_owned()),
        ("a deep value", format!("{{\"x\":{}}}", deep("[", "", "]", 50_000))),
    ];
    for (what, header) in cases {
        weights(&home, header.len() as u64, 8, |out| out.write_all(header.as_bytes()).unwrap());
        refused(&home, what, "plan --model model", "model/model.safetensors");
    }
    for length in [u64::MAX, 1 << 62, 100_000_000, 99_999_999] {
        home.write("model/model.safetensors", [&length.to_le_bytes()[..], b"{}"].concat());
        refused(&home, "a length that lies", "plan --model model", "model/model.safetensors");
    }
}

#[test]
fn configurations_of_absurd_sizes_are_refused() {
    let home = Home::with_model();
    let original = home.read("model/config.json");
    for (key, value) in [
        ("num_hidden_layers", json!(1u64 << 60)),
        ("num_hidden_layers", json!(1_000_000)),
        ("hidden_size", json!(1u64 << 40)),
        ("intermediate_size", json!(1u64 << 62)),
        ("vocab_size", json!(1u64 << 50)),
        ("max_position_embeddings", json!(1u64 << 60)),
        ("num_attention_heads", json!(u64::MAX)),
        ("rope_theta", json!("x".repeat(100))),
    ] {
        home.set("model/config.json", key, value);
        bounded(&home, key, "plan --model model");
        bounded(&home, key, TRAIN);
        home.write("model/config.json", &original);
    }
    for (what, open, inner, close) in
        [("lists", "[", "", "]"), ("objects", "{\"a\":", "1", "}"), ("unclosed", "[", "", "")]
    {
        home.write("model/config.json", deep(open, inner, close, 500_000));
        refused(&home, what, "plan --model model", "model/config.json");
        refused(&home, what, GENERATE, "model/config.json");
    }
    written(&home.path("model/config.json"), |out| {
        out.write_all(b"{\"a\":[0").unwrap();
        fill(out, ",[]", 30_000_000);
        out.write_all(b"]}").unwrap();
    });
    refused(&home, "ten million lists", "plan --model model", "model/config.json");
    sparse(&home.path("model/config.json"), 4 << 30);
    refused(&home, "4 GiB of nothing", "plan --model model", "model/config.json");
    home.write("model/config.json", &original);

    home.write("model/generation_config.json", deep("[", "", "]", 100_000));
    refused(&home, "a deep list", GENERATE, "model/generation_config.json");
    fs::remove_file(home.path("model/generation_config.json")).unwrap();

    fs::remove_file(home.path("model/model.safetensors")).unwrap();
    written(&home.path("model/model.safetensors.index.json"), |out| {
        out.write_all(b"{\"weight_map\":{\"a\":\"b\"").unwrap();
        for n in 0..1_000_000 {
            write!(out, ",\"t{n}\":\"f{n}\"").unwrap();
        }
        out.write_all(b"}}").unwrap();
    });
    refused(&home, "a million files", "plan --model model", "model/model.safetensors.index.json");
    written(&home.path("model/model.safetensors.index.json"), |out| {
        out.write_all(b"{\"weight_map\":{\"a\":\"b\"}, \"metadata\":").unwrap();
        out.write_all(deep("[", "", "]", 100_000).as_bytes()).unwrap();
        out.write_all(b"}").unwrap();
    });
    refused(&home, "deep metadata, which nobody looks at", "plan --model model", "model/b");
}

#[test]
fn adapters_of_absurd_sizes_are_refused() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    let file = "adapter/adapter_config.json";
    let adapter = format!("{TRAIN} --adapter adapter");
    for (key, value) in
        [("r", json!(1u64 << 40)), ("r", json!(-1)), ("target_modules", json!("(".repeat(300)))]
    {
        let original = home.read(file);
        home.set(file, key, value);
        refused(&home, key, &adapter, "adapter");
        home.write(file, original);
    }
    home.write(file, deep("{\"a\":", "1", "}", 100_000));
    refused(&home, "a deep object", &adapter, file);
}

/// A name, a change of a tokenizer, and whether it must be refused.
type TokenizerCase<'a> = (&'a str, &'a dyn Fn(&mut Value), bool);

/// What a tokenizer of `testdata` becomes, and a command is refused for it or keeps to the budget.
fn tokenizers(cases: &[TokenizerCase]) {
    for (what, change, must_fail) in cases {
        let home = Home::with_model();
        home.write("text.txt", "a".repeat(60_000) + &" a b c".repeat(1000));
        let mut tokenizer = home.json("model/tokenizer.json");
        change(&mut tokenizer);
        home.write("model/tokenizer.json", tokenizer.to_string());
        drop(tokenizer);
        for command in [TRAIN, GENERATE] {
            if *must_fail {
                refused(&home, what, command, "model/tokenizer.json");
            } else {
                bounded(&home, what, command);
            }
        }
    }
}

fn replace(pattern: &Value, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

fn sequence(normalizers: &[Value]) -> Value {
    json!({ "type": "Sequence", "normalizers": normalizers })
}

/// Bytes as base64, without a library for it.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        let digit =
            |at: usize| if at <= three.len() { DIGITS[(bits >> (18 - 6 * at) & 63) as usize] } else { b'=' };
        text.extend((0..4).map(|at| char::from(digit(at))));
    }
    text
}

#[test]
fn normalisers_that_make_much_of_little_are_refused() {
    let string = |text: &str| json!({ "String": text });
    tokenizers(&[
        ("an `a` becomes 100 kB", &|t| t["normalizer"] = replace(&string("a"), &"b".repeat(100_000)), true),
        (
            "an `a` becomes 30, five times in a row",
            &|t| t["normalizer"] = sequence(&vec![replace(&string("a"), &"a".repeat(30)); 5]),
            true,
        ),
        (
            "something stands before every character",
            &|t| t["normalizer"] = sequence(&[replace(&json!({ "Regex": "" }), &"x".repeat(50_000))]),
            false,
        ),
        (
            "sequences in sequences",
            &|t| t["normalizer"] = (0..50).fold(json!({ "type": "NFD" }), |inner, _| sequence(&[inner])),
            false,
        ),
        (
            "a text becomes longer at its front",
            &|t| t["normalizer"] = json!({ "type": "Prepend", "prepend": "x".repeat(3_000_000) }),
            true,
        ),
    ]);
}

#[test]
fn tables_of_characters_that_lie_are_refused() {
    let table = |bytes: &[u8]| json!({ "type": "Precompiled", "precompiled_charsmap": base64(bytes) });
    let lies: Vec<Vec<u8>> = (0..=8)
        .map(|len| vec![0xff; len])
        .chain((0..=8).map(|len| vec![0; len]))
        .chain([
            u32::MAX.to_le_bytes().to_vec(),
            [&(1u32 << 30).to_le_bytes()[..], &[0; 64]].concat(),
            // A trie whose first unit leads far away.
            [&4u32.to_le_bytes()[..], &0xffff_fc00u32.to_le_bytes()].concat(),
        ])
        .collect();
    let home = Home::with_model();
    let mut tokenizer = home.json("model/tokenizer.json");
    for lie in lies {
        tokenizer["normalizer"] = table(&lie);
        home.write("model/tokenizer.json", tokenizer.to_string());
        let what = format!("{lie:?}");
        bounded(&home, &what, GENERATE);
    }
    tokenizer["normalizer"] = table(&u32::MAX.to_le_bytes());
    home.write("model/tokenizer.json", tokenizer.to_string());
    refused(&home, "four bytes that promise 8 GiB", TRAIN, "model/tokenizer.json");
}

#[test]
fn vocabularies_patterns_and_depths_beyond_reason_are_refused() {
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    tokenizers(&[
        (
            "a pattern that tracks back",
            &|t| t["pre_tokenizer"] = split("(?=((a+)+)+$)a*?(?!a)b|(x+x+)+y"),
            false,
        ),
        ("a pattern of patterns", &|t| t["pre_tokenizer"] = split("((((a{90}){90}){90}){90})"), true),
        (
            "a pattern of many words",
            &|t| t["pre_tokenizer"] = split("(?i)\\w{500}(?=\\w{500})\\p{L}{500}"),
            false,
        ),
        ("a deep pattern", &|t| t["pre_tokenizer"] = split(&deep("(", "a", ")", 60_000)), true),
        ("ids that end at 4 billion", &|t| t["model"]["vocab"]["zz"] = json!(u32::MAX), false),
        (
            "a model of scores",
            &|t| {
                let vocab = json!([["a", 1e308], ["b", -1e308], ["", 0.0], ["aa", 1e308]]);
                t["model"] = json!({ "type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true });
                t["added_tokens"] = json!([]);
                t["post_processor"] = Value::Null;
            },
            false,
        ),
        (
            "an unknown word that is not there",
            &|t| {
                t["model"] = json!({ "type": "Unigram", "unk_id": 9_000_000, "vocab": [["a", -1.0]] });
                t["post_processor"] = Value::Null;
            },
            false,
        ),
        (
            "a decoder that makes much of little",
            &|t| t["decoder"] = replace(&json!({ "Regex": "." }), &"x".repeat(2_000_000)),
            false,
        ),
    ]);
    let home = Home::with_model();
    let tokenizer = home.read("model/tokenizer.json");
    home.write("model/tokenizer.json", deep("[", "", "]", 300_000));
    refused(&home, "a deep list", GENERATE, "model/tokenizer.json");
    home.write("model/tokenizer.json", format!("{{\"model\":{}}}", deep("{\"a\":", "1", "}", 100_000)));
    refused(&home, "a deep model", TRAIN, "model/tokenizer.json");
    written(&home.path("model/tokenizer.json"), |out| {
        let head = "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0";
        out.write_all(head.as_bytes()).unwrap();
        (1..1_000_000).for_each(|n| write!(out, ",\"w{n}\":{n}").unwrap());
        out.write_all(b"},\"merges\":[]}}").unwrap();
    });
    refused(&home, "a million words", TRAIN, "model/tokenizer.json");
    written(&home.path("model/tokenizer.json"), |out| {
        out.write_all(b"{\"version\":\"1.0\",\"added_tokens\":[").unwrap();
        let token = |n: usize| {
            format!(
                "{{\"id\":{n},\"content\":\"<{n}>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,\"special\":true}}"
            )
        };
        (0..200_000).for_each(|n| write!(out, "{},", token(n)).unwrap());
        write!(
            out,
            "{}],\"model\":{{\"type\":\"BPE\",\"vocab\":{{\"a\":0}},\"merges\":[]}}}}",
            token(200_000)
        )
        .unwrap();
    });
    refused(&home, "200,000 added words", TRAIN, "model/tokenizer.json");
    sparse(&home.path("model/tokenizer.json"), 1 << 40);
    refused(&home, "a TiB of nothing", GENERATE, "model/tokenizer.json");
    home.write("model/tokenizer.json", &tokenizer);
    home.write("model/tokenizer_config.json", deep("{\"a\":", "1", "}", 100_000));
    refused(&home, "deep settings", GENERATE, "model/tokenizer_config.json");
    sparse(&home.path("model/tokenizer_config.json"), 1 << 36);
    refused(&home, "64 GiB of settings", GENERATE, "model/tokenizer_config.json");
}

#[test]
fn lines_and_texts_beyond_reason_are_refused() {
    let home = Home::with_model();
    let train = |data: &str| TRAIN.replace("text.txt", data);
    sparse(&home.path("long.jsonl"), 1 << 30);
    refused(&home, "a line of 1 GiB", &train("long.jsonl"), "long.jsonl");
    refused(&home, "a line of 1 GiB", "plan --model model --data long.jsonl", "long.jsonl");
    sparse(&home.path("long.txt"), 1 << 30);
    refused(&home, "a text of 1 GiB without a seam", &train("long.txt"), "long.txt");
    home.write("deep.jsonl", format!("{{\"text\":\"a\",\"x\":{}}}\n", deep("[", "", "]", 100_000)));
    refused(&home, "a deep line", &train("deep.jsonl"), "deep.jsonl");
    written(&home.path("lists.jsonl"), |out| {
        out.write_all(b"{\"text\":\"a\",\"x\":[0").unwrap();
        fill(out, ",{}", 3_000_000);
        out.write_all(b"]}\n").unwrap();
    });
    bounded(&home, "a line of a million objects", &train("lists.jsonl"));
    written(&home.path("columns.jsonl"), |out| {
        out.write_all(b"{\"text\":\"a\"").unwrap();
        (0..300_000).for_each(|n| write!(out, ",\"{n}\":0").unwrap());
        out.write_all(b"}\n").unwrap();
    });
    bounded(&home, "a line of 300,000 columns", &train("columns.jsonl"));
}

#[test]
fn settings_plans_states_and_tables_beyond_reason_are_refused() {
    let home = Home::with_model();
    for (what, text) in [
        ("deep lists", format!("x = {}", deep("[", "", "]", 100_000))),
        ("deep tables", format!("x = {}", deep("{a = ", "1", "}", 100_000))),
        ("a deep key", format!("{} = 1", vec!["a"; 200_000].join("."))),
        ("deep headers", format!("[{}]", vec!["a"; 200_000].join("."))),
    ] {
        home.write("s.toml", text);
        refused(&home, what, "plan --settings s.toml", "s.toml");
    }
    sparse(&home.path("s.toml"), 1 << 33);
    refused(&home, "8 GiB of settings", "plan --settings s.toml", "s.toml");

    let plan = "train --max-steps 1 --plan p.json";
    home.write("p.json", deep("[", "", "]", 200_000));
    refused(&home, "a deep plan", plan, "p.json");
    sparse(&home.path("p.json"), 1 << 33);
    refused(&home, "a plan of 8 GiB", plan, "p.json");
    written(&home.path("p.json"), |out| {
        out.write_all(b"[0").unwrap();
        fill(out, ",{}", 60_000_000);
        out.write_all(b"]").unwrap();
    });
    refused(&home, "a plan of 20 million objects", plan, "p.json");

    home.done(&format!("{TRAIN} --output-dir out {BUDGET}"));
    let resume = TRAIN.replace("--max-steps 1", "--max-steps 2 --output-dir out --resume out/checkpoint-1");
    let state = "out/checkpoint-1/trainer_state.json";
    for (what, text) in
        [("a deep state", deep("[", "", "]", 200_000)), ("a state of lists", "[[],".repeat(5_000_000))]
    {
        home.write(state, text);
        refused(&home, what, &resume, "checkpoint-1");
    }
    sparse(&home.path(state), 1 << 33);
    refused(&home, "a state of 8 GiB", &resume, "checkpoint-1");

    // These have no budget of their own.
    for (command, file) in [("layout t.csv", "t.csv"), ("plan --dag g.json --memory 1GiB", "g.json")] {
        sparse(&home.path(file), 1 << 33);
        refused_within(&home, "8 GiB", command, file);
        home.write(file, deep("[", "", "]", 200_000));
        refused_within(&home, "a deep list", command, file);
    }
}

fn write_parquet_files(folder: &Path) {
    let codecs = [
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("lz4", Compression::LZ4),
        ("lz4_raw", Compression::LZ4_RAW),
    ];
    let properties = |codec: Compression| {
        WriterProperties::builder()
            .set_compression(codec)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
            .set_data_page_size_limit(1 << 30)
            .set_dictionary_page_size_limit(1 << 30)
    };
    for (name, codec) in codecs {
        // One text of 100 MB, which is nothing when it is packed.
        text(&folder.join(format!("{name}.parquet")), properties(codec).build(), 100_000_000);
    }
    list(&folder.join("list.parquet"), properties(Compression::SNAPPY).build(), 20_000_000);
    many_groups(&folder.join("groups.parquet"));
    let depth = 20_000;
    let schema = format!(
        "message m {{ {} optional int32 x; {} }}",
        "optional group g {".repeat(depth),
        "}".repeat(depth)
    );
    column(&folder.join("deep.parquet"), &schema, WriterProperties::new());
}

fn text(path: &Path, properties: WriterProperties, bytes: usize) {
    let schema = Arc::new(parse_message_type("message m { required binary text (UTF8); }").unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let text = ByteArray::from(vec![b'a'; bytes]);
    column.typed::<ByteArrayType>().write_batch(&[text], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

/// One row with a list of so many equal numbers.
fn list(path: &Path, properties: WriterProperties, elements: usize) {
    let schema =
        "message m { required group text (LIST) { repeated group list { required int32 element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (values, present, mut again) = (vec![7; elements], vec![1i16; elements], vec![1i16; elements]);
    again[0] = 0;
    column.typed::<Int32Type>().write_batch(&values, Some(&present), Some(&again)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

fn many_groups(path: &Path) {
    let schema = Arc::new(parse_message_type("message m { required int32 text; }").unwrap());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    for n in 0..30_000 {
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[n], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
}

fn column(path: &Path, schema: &str, properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[], Some(&[0]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn files_of_columns_that_unfold_are_refused() {
    let home = Home::with_model();
    // What writes deep schemas is as recursive as what reads them.
    let folder = home.path("");
    let writer = thread::Builder::new().stack_size(1 << 30).spawn(move || write_parquet_files(&folder));
    writer.unwrap().join().unwrap();
    let train = |name: &str| TRAIN.replace("text.txt", name);
    for name in ["snappy", "gzip", "zstd", "brotli", "lz4", "lz4_raw"] {
        let name = format!("{name}.parquet");
        let bytes = fs::metadata(home.path(&name)).unwrap().len();
        assert!(bytes < 6_000_000, "{name} has {bytes} bytes");
        refused(&home, "a text of 100 MB", &train(&name), &name);
    }
    refused(&home, "a list of 20 million numbers", &train("list.parquet"), "list.parquet");
    bounded(&home, "30,000 groups of rows", &train("groups.parquet"));
    refused(&home, "20,000 groups in each other", &train("deep.parquet"), "deep.parquet");
    lies(&home, &train("lie.parquet"));
}

/// A file whose footer, and whatever stands in it, is not what it says: each byte of the last kilobyte set to the largest
/// number of its encoding, some at a time.
fn lies(home: &Home, command: &str) {
    let whole = home.read("snappy.parquet");
    let small = if whole.len() > 1 << 20 { &whole[whole.len() - (1 << 20)..] } else { &whole[..] };
    let footer = small.len() - 8;
    let with = |from: usize, bytes: &[u8]| {
        let mut lie = small.to_vec();
        lie[from..from + bytes.len()].copy_from_slice(bytes);
        home.write("lie.parquet", lie);
        refused(home, &format!("{bytes:x?} at {from}"), command, "lie.parquet");
    };
    with(footer, &u32::MAX.to_le_bytes());
    with(footer, &i32::MAX.to_le_bytes());
    let begin = footer - u32::from_le_bytes(small[footer..footer + 4].try_into().unwrap()) as usize;
    // A varint of five bytes is a number of 32 bits, and one of ten the longest there is.
    for at in (begin..footer - 10).step_by(29) {
        with(at, &[0xff, 0xff, 0xff, 0xff, 0x0f]);
    }
    with(begin, &[0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]);
}
