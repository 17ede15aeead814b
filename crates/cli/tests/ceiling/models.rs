//! Weights, configurations and adapters that promise more than a machine has.

use super::*;

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
