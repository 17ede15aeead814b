//! Tokenizers that expand short texts, state wrong sizes of their tables, or nest without end.

use super::*;

/// A name, a change of a tokenizer, and whether it must be refused.
type TokenizerCase<'a> = (&'a str, &'a dyn Fn(&mut Value), bool);

/// Changes a tokenizer of `testdata`; a command is refused for it or keeps to the budget.
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

/// Byte pairs: every pair of letters, then words of two pairs.
fn byte_pairs(home: &Home, words: usize) {
    let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
    let pair = |n: usize| [letter(n), letter(n / 26)].iter().collect::<String>();
    let all: Vec<String> = (0..26)
        .map(|n| letter(n).to_string())
        .chain((0..676).map(pair))
        .chain((0..words).map(|n| pair(n) + &pair(n / 676)))
        .collect();
    let vocab: serde_json::Map<String, Value> =
        all.iter().enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
    let merges: Vec<String> = all[26..]
        .iter()
        .map(|word| {
            let (left, right) = word.split_at(word.len() / 2);
            format!("{left} {right}")
        })
        .collect();
    let model = json!({ "type": "BPE", "vocab": vocab, "merges": merges });
    let tokenizer = json!({ "version": "1.0", "added_tokens": [], "model": model });
    home.write("words/tokenizer.json", tokenizer.to_string());
    home.set("model/config.json", "vocab_size", json!(all.len()));
}

#[test]
fn a_budget_too_small_for_a_tokenizer_names_one_that_is_enough_to_read_it() {
    let home = Home::with_model();
    fs::create_dir(home.path("words")).unwrap();
    byte_pairs(&home, 40_000);
    let train = TRAIN.replace("--model model", "--config model/config.json --tokenizer words");
    for small in ["1KiB", "12MiB"] {
        let Ended { code, said, .. } = run(&home, &format!("{train} --memory {small}"));
        let shown = small.replace('K', ".0 K").replace('M', ".0 M");
        let begins =
            format!("error: words/tokenizer.json takes more memory to read than the budget of {shown} has");
        assert!(code == Some(2) && said.starts_with(&begins), "{code:?} {said}");
        let enough = named(&said);
        assert!((20..=80).contains(&enough), "{said}");
        let Ended { code, said, peak, .. } = run(&home, &format!("{train} --memory {enough}MiB"));
        assert!(!said.contains("tokenizer.json"), "{code:?} {said}");
        assert!(peak <= enough << 20, "reached {} KiB of {enough} MiB: {said}", peak >> 10);
        // The smallest plan of this vocabulary may need more, and then the error names the amount.
        if code == Some(2) {
            let least = named(&said);
            let Ended { code, said, peak, .. } = run(&home, &format!("{train} --memory {least}MiB"));
            assert!(code == Some(0) && peak <= least << 20, "{} KiB of {least} MiB: {said}", peak >> 10);
        }
    }
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
