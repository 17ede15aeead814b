//! Files of models and samples that are missing, broken or do not belong together: one sentence each that names the
//! file and the way out, as the user's mistake.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::{Value, json};

use crate::support::{self, Home, SMALL};

const WEIGHTS: &str = "model/model.safetensors";

/// Trains `--model model` on the text, with what else is given.
fn training(rest: &str) -> String {
    format!("train --model model --data text.txt --max-steps 2 {SMALL} {rest}")
}

fn refused(home: &Home, expected: &str) {
    home.refused(&training(""), expected);
}

/// Changes what the header of a safetensors file says, not the bytes behind it.
fn edit_header(home: &Home, name: &str, edit: impl Fn(&mut Value)) {
    let bytes = home.read(name);
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header = serde_json::from_slice(header).unwrap();
    edit(&mut header);
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    home.write(name, [&length, header.as_bytes(), data].concat());
}

#[test]
fn a_folder_without_weights_says_what_it_should_hold() {
    let home = Home::with_model();
    fs::remove_file(home.path(WEIGHTS)).unwrap();
    refused(
        &home,
        "model holds no model.safetensors and no model.safetensors.index.json; give a folder that does",
    );
    home.write("model/pytorch_model.bin.index.json", "");
    refused(
        &home,
        "model holds pickled weights only; save the model with `safe_serialization=True` and give that",
    );
    home.refused(
        "generate --model nowhere --prompt a",
        "nowhere is not a folder; give the folder that holds config.json and the weights",
    );
}

#[test]
fn weights_that_are_cut_off_or_garbled_are_told_apart() {
    let home = Home::with_model();
    let whole = home.read(WEIGHTS);
    let with = |bytes: &[u8], expected: &str| {
        home.write(WEIGHTS, bytes);
        refused(&home, expected);
    };
    with(&whole[..5], "model/model.safetensors is too short for a safetensors file; fetch it again");
    with(&whole[..500], "model/model.safetensors is cut off inside its header; fetch it again");
    with(
        &whole[..40_000],
        "model/model.safetensors is cut off: `model.layers.0.mlp.down_proj.weight` would end at byte 39040 of the data, of which there are 37976; fetch the file again",
    );
    with(
        b"<html>404: no such file</html>",
        "model/model.safetensors does not begin like a safetensors file; fetch it again",
    );
    let mut garbled = whole.clone();
    garbled[9] = 0xff;
    with(
        &garbled,
        "model/model.safetensors has a header that is no JSON object (key must be a string at line 1 column 2); fetch the file again",
    );
    let longer = [&whole[..], &[0; 12]].concat();
    with(
        &longer,
        "model/model.safetensors has 12 bytes at its end that belong to no tensor; fetch the file again",
    );
}

#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let home = Home::with_model();
    edit_header(&home, WEIGHTS, |header| header["model.norm.weight"]["shape"] = json!([33]));
    refused(
        &home,
        "model/model.safetensors says that `model.norm.weight` lies at bytes 94720 to 94848, which is not the size of F32 [33]; fetch the file again",
    );
    home.copy("hf/llama", "model");
    edit_header(&home, WEIGHTS, |header| header["model.norm.weight"]["dtype"] = json!("I32"));
    refused(
        &home,
        "model/model.safetensors holds `model.norm.weight` as I32; weights are read from F32, BF16 or F16",
    );
}

#[test]
fn weights_of_another_shape_than_the_configuration_are_refused() {
    let home = Home::with_model();
    home.set("model/config.json", "intermediate_size", json!(64));
    refused(
        &home,
        "model/model.safetensors holds `model.layers.0.mlp.down_proj.weight` as [32, 48] where the configuration has [32, 64]; weights and configuration must be of the same model",
    );
    home.copy("hf/llama", "model");
    home.set("model/config.json", "num_hidden_layers", json!(3));
    refused(
        &home,
        "model holds no tensor `model.layers.2.input_layernorm.weight` or `layers.2.input_layernorm.weight`; its weights are not those of this configuration",
    );
}

#[test]
fn a_configuration_that_cannot_be_used_is_named_once() {
    let home = Home::with_model();
    home.write("model/config.json", "{\"model_type\":");
    refused(&home, "model/config.json cannot be read: EOF while parsing a value at line 1 column 14");
    home.copy("hf/llama", "model");
    home.set("model/config.json", "architectures", json!(["MambaForCausalLM"]));
    refused(
        &home,
        "model/config.json describes a `MambaForCausalLM`, which cannot be trained here; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MixtralForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, OlmoeForCausalLM, GPT2LMHeadModel, BertForMaskedLM, BertForSequenceClassification, BertForPreTraining, GPT2Model",
    );
    home.copy("hf/llama", "model");
    home.set("model/config.json", "hidden_act", json!("tanh"));
    refused(&home, "model/config.json: `hidden_act` is \"tanh\", which is not supported; it may be silu");
    for (key, value, wanted) in [
        ("num_attention_heads", 5, "a divisor of `hidden_size`, which is 32"),
        ("num_attention_heads", 32, "a number that leaves heads of an even width"),
        ("num_key_value_heads", 3, "a divisor of `num_attention_heads`, which is 4"),
    ] {
        home.copy("hf/llama", "model");
        home.set("model/config.json", "head_dim", Value::Null);
        home.set("model/config.json", key, json!(value));
        refused(
            &home,
            &format!("model/config.json: `{key}` is {value}, which is not supported; it may be {wanted}"),
        );
    }
    home.copy("hf/llama", "model");
    home.set("model/config.json", "hidden_act", json!("tanh"));
    fs::rename(home.path("model/config.json"), home.path("other.json")).unwrap();
    refused(
        &home,
        "model/config.json cannot be read (it does not exist); check the path and its permissions",
    );
    home.refused(
        "plan --config other.json",
        "other.json: `hidden_act` is \"tanh\", which is not supported; it may be silu",
    );
}

#[test]
fn an_index_is_believed_only_inside_its_folder() {
    let home = Home::with_model();
    fs::remove_file(home.path(WEIGHTS)).unwrap();
    home.copy("hf/llama2", "model");
    let index = "model/model.safetensors.index.json";
    let text = String::from_utf8(home.read(index)).unwrap();
    // The file that the index names exists and is whole.
    fs::copy(home.path("model/model-00002-of-00003.safetensors"), home.path("outside.safetensors")).unwrap();
    home.write(index, text.replace("model-00002-of-00003", "../outside"));
    refused(
        &home,
        "model/model.safetensors.index.json names `../outside.safetensors`, which lies outside its folder; only files beside it are read",
    );
    home.write(index, "{}");
    refused(
        &home,
        "model/model.safetensors.index.json is no index of weights (missing field `weight_map` at line 1 column 2); fetch it again",
    );
    home.write(index, &text);
    fs::remove_file(home.path("model/model-00002-of-00003.safetensors")).unwrap();
    refused(
        &home,
        "model/model-00002-of-00003.safetensors cannot be read (it does not exist); check the path and its permissions",
    );
}

#[test]
fn a_tokenizer_that_does_not_suit_the_model_is_refused() {
    let home = Home::with_model();
    home.copy("tokenizer/chatml", "model");
    refused(
        &home,
        "the tokenizer has 323 ids and the model's embedding only 256 rows; use the tokenizer that was published with the model",
    );
    home.write("model/tokenizer.json", "{}");
    refused(
        &home,
        "model/tokenizer.json cannot be used (Model missing. at line 1 column 2); take the file that was published with the model",
    );
    fs::remove_file(home.path("model/tokenizer.json")).unwrap();
    refused(
        &home,
        "model has no tokenizer.json; give the folder of the model's tokenizer as --tokenizer, or save the fast tokenizer \
         there with transformers' save_pretrained",
    );
}

#[test]
fn bytes_are_read_by_models_of_ours_that_say_so_and_by_no_other() {
    let home = Home::new();
    home.done(&format!(
        "train --model tiny --layers 1 --data text.txt --max-steps 1 --output-dir own {SMALL}"
    ));
    assert!(home.json("own/config.json")["vocab_size"].as_u64().unwrap() >= 259);
    home.done(&format!("train --model own --data text.txt --max-steps 1 --output-dir further {SMALL}"));
    home.done("generate --model further --prompt ship --max-new-tokens 1 --memory 64MiB");
    home.set("further/config.json", "plimsoll_tokenizer", Value::Null);
    let expected = "further has no tokenizer.json; save the model's fast tokenizer there with transformers' save_pretrained";
    home.refused(
        &format!("train --model further --data text.txt --max-steps 1 {SMALL}"),
        "further has no tokenizer.json; give the folder of the model's tokenizer as --tokenizer, or save the fast tokenizer \
         there with transformers' save_pretrained",
    );
    home.refused(&format!("train --model own --tokenizer further --data text.txt {SMALL}"), expected);
    home.refused("generate --model further --prompt ship", expected);
}

#[test]
fn samples_are_found_below_a_folder_and_foreign_kinds_refused() {
    let home = Home::new();
    fs::create_dir_all(home.path("nest/sub")).unwrap();
    home.write("nest/sub/a.jsonl", "{\"text\": \"the ship keeps its load\"}\n".repeat(20));
    let train = |data: &str| format!("train --model tiny --layers 1 --data {data} --max-steps 1 {SMALL}");
    home.done(&train("nest"));
    home.write("one.json", "{}");
    home.refused(
        &train("one.json"),
        "one.json is of a kind that is not read; give --data .txt, .jsonl or .parquet files",
    );
}

#[test]
fn a_broken_line_is_named_or_counted() {
    let home = Home::with_model();
    let good = "{\"text\": \"the ship keeps its load\"}\n".repeat(20);
    home.write(
        "d.jsonl",
        format!("{good}{{\"text\": \"the sh\n{good}{{\"text\": \"\"}}\n{{\"txt\": \"a\"}}\n"),
    );
    let train = format!("train --model model --data d.jsonl --max-steps 1 {SMALL}");
    let broken = "d.jsonl, line 21: it is not JSON (EOF while parsing a string, at column 16); mend the line, or pass over such lines with --skip-bad-lines";
    home.refused(&train, broken);
    let (_, said) = home.done(&format!("{train} --skip-bad-lines --output-dir out"));
    assert_eq!(
        said.lines().next(),
        Some(
            "3 samples were passed over; the first: d.jsonl, line 21: it is not JSON (EOF while parsing a string, at column 16)"
        )
    );
    // A fault that was tolerated once is reported the next time.
    home.refused(&train, broken);
    home.write("d.jsonl", format!("{good}{{\"text\": \"\"}}\n"));
    home.refused(
        &train,
        "d.jsonl, line 21: `text` is empty; mend the line, or pass over such lines with --skip-bad-lines",
    );
    home.write("d.jsonl", "{\"text\": \"\"}\n");
    home.refused(&format!("{train} --skip-bad-lines"), "d.jsonl: none of 1 samples can be used; the first is d.jsonl, line 1: `text` is empty; give --data other files");
}

#[test]
fn texts_longer_than_the_model_reads_are_refused() {
    let home = Home::with_model();
    home.refused(
        "train --model model --data text.txt --seq-len 33",
        "--seq-len 33 is longer than the 32 positions that `model` can read; give 32 or less",
    );
    let prompt = ".".repeat(40);
    home.refused(
        &format!("generate --model model --prompt {prompt}"),
        "the prompt has 41 tokens and the model reads 32; shorten it",
    );
}

#[test]
fn an_adapter_for_another_model_is_refused() {
    let home = Home::with_model();
    home.copy("lora/gpt2", "adapter");
    home.set("adapter/adapter_config.json", "auto_mapping", Value::Null);
    let expected = "adapter does not go with this model (lora: no module of the model is a target; it has down_proj, embed_tokens, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj); give the one it was trained on as --model";
    home.refused(&training("--adapter adapter"), expected);
    home.refused("generate --model model --adapter adapter --prompt a", expected);
    home.refused("export --merge --model model --adapter adapter --out merged", expected);
    home.copy("lora/gpt2", "adapter");
    home.refused(&training("--adapter adapter"), "adapter does not go with this model (it was trained on a `gpt2`, and this is a `llama`); give the one it was trained on as --model");
    home.copy("lora/llama", "adapter");
    home.set("adapter/adapter_config.json", "base_model_name_or_path", json!("owner/larger"));
    home.set("adapter/adapter_config.json", "r", json!(8));
    home.refused(&training("--adapter adapter"), "adapter does not go with this model (it holds `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` as [4, 32] where [8, 32] is wanted); give `owner/larger` as --model");
    home.set("adapter/adapter_config.json", "peft_type", json!("ADALORA"));
    home.refused(
        &training("--adapter adapter"),
        "adapter/adapter_config.json: `peft_type` is ADALORA, and LORA, IA3, PROMPT_TUNING, PREFIX_TUNING and BOTTLENECK are supported here; where PEFT can merge it, merge it with PEFT (`PeftModel.from_pretrained(base, adapter).merge_and_unload()`), save the result with `save_pretrained`, and give that folder as --model",
    );
    home.refused(
        &training("--adapter model"),
        "model/adapter_config.json cannot be read (it does not exist); check the path and its permissions",
    );
}

#[test]
fn an_adapter_of_another_family_or_with_tensors_of_no_layer_is_refused() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    let export = "export --merge --model model --adapter adapter --out merged";
    // The adapter's configuration names one layer less than it was trained for.
    let config = home.json("adapter/adapter_config.json");
    let targets = config["target_modules"].as_array().unwrap();
    let fewer: Vec<&Value> =
        targets.iter().filter(|name| *name != "model.layers.0.self_attn.q_proj").collect();
    assert_eq!(fewer.len() + 1, targets.len());
    home.set("adapter/adapter_config.json", "target_modules", json!(fewer));
    home.refused(export, "adapter does not go with this model (it holds `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`, and adapter_config.json makes no use of that here); give the one it was trained on as --model");

    // The model is a Mistral of equal shape. That the adapter belongs to a Llama is stated by its own configuration, or else
    // by the folder of the model that it was trained on.
    home.copy("lora/llama", "adapter");
    home.copy("hf/llama", "mistral");
    home.set("mistral/config.json", "architectures", json!(["MistralForCausalLM"]));
    home.set("mistral/config.json", "model_type", json!("mistral"));
    home.set("mistral/config.json", "sliding_window", Value::Null);
    let mapping = json!({"base_model_class": "LlamaForCausalLM", "parent_library": "transformers.models.llama.modeling_llama"});
    for (mapping, base) in [(mapping, Value::Null), (Value::Null, json!("model"))] {
        home.set("adapter/adapter_config.json", "auto_mapping", mapping);
        home.set("adapter/adapter_config.json", "base_model_name_or_path", base.clone());
        let way_out =
            base.as_str().map_or("the one it was trained on".to_owned(), |base| format!("`{base}`"));
        home.refused("export --merge --model mistral --adapter adapter --out merged", &format!("adapter does not go with this model (it was trained on a `llama`, and this is a `mistral`); give {way_out} as --model"));
    }
    home.done(export);
}

#[test]
fn a_model_can_be_written_into_the_folder_one_stands_in() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    fs::create_dir(home.path("here")).unwrap();
    let mut command = home.command("export --merge --model ../model --adapter ../adapter --out .");
    let output = command.current_dir(home.path("here")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    home.done("export --merge --model model --adapter adapter --out there");
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        assert!(home.read(&format!("here/{name}")) == home.read(&format!("there/{name}")), "{name}");
    }
    assert_eq!(home.read("here/config.json"), home.read("model/config.json"));
    assert!(!home.path("here/.tmp-model").exists());
}

#[test]
fn a_pipe_is_no_file_of_weights_and_nobody_waits_for_it() {
    let home = Home::with_model();
    fs::remove_file(home.path(WEIGHTS)).unwrap();
    let made = std::process::Command::new("mkfifo").arg(home.path(WEIGHTS)).status().unwrap();
    assert!(made.success());
    let expected =
        "model/model.safetensors cannot be read (it is not a file); check the path and its permissions";
    refused(&home, expected);
    fs::remove_file(home.path(WEIGHTS)).unwrap();
    fs::create_dir(home.path(WEIGHTS)).unwrap();
    refused(&home, expected);
}

#[test]
fn pipes_in_place_of_small_files_are_not_waited_for() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    home.done(&training("--output-dir out --save-steps 1"));
    let piped = |name: &str, command: &str| {
        let before = fs::read(home.path(name)).ok();
        let _ = fs::remove_file(home.path(name));
        assert!(std::process::Command::new("mkfifo").arg(home.path(name)).status().unwrap().success());
        let output = home.command(command).output().unwrap();
        let (_, said) = support::texts(&output);
        assert!(said.contains(&format!("{name} cannot be read (it is not a file)")), "{said}");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        fs::remove_file(home.path(name)).unwrap();
        if let Some(before) = before {
            home.write(name, before);
        }
    };
    let generate = "generate --model model --adapter adapter --prompt a --memory 64MiB";
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        piped(&format!("model/{name}"), generate);
    }
    piped("model/special_tokens_map.json", generate);
    piped("model/chat_template.jinja", generate);
    piped("adapter/adapter_config.json", generate);
    for name in ["config.json", "optimizer.safetensors"] {
        let resume = training("--output-dir out --resume out/checkpoint-2");
        piped(&format!("out/checkpoint-2/{name}"), &resume);
    }
}

#[test]
fn a_garbled_tokenizer_is_an_error_and_no_panic() {
    let home = Home::with_model();
    let text = String::from_utf8(home.read("model/tokenizer.json")).unwrap();
    home.write("model/tokenizer.json", text.replace("\"decoder\": {", "\"decoder\": -"));
    let output = home.command("generate --model model --prompt a").output().unwrap();
    let (_, said) = support::texts(&output);
    assert!(said.starts_with("error: model/tokenizer.json cannot be used ("), "{said}");
    assert!(said.ends_with("; take the file that was published with the model\n"), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}

#[test]
fn a_model_in_a_folder_can_begin_from_scratch() {
    let home = Home::with_model();
    let train = |rest: &str| {
        home.done(&training(&format!("--learning-rate 1e-30 --weight-decay 0 {rest}")));
    };
    train("--init True --output-dir again");
    train("--output-dir on");
    // The last bytes of the file, all of them behind the header.
    let of = |name: &str| {
        let bytes = home.read(&format!("{name}/model.safetensors"));
        bytes[bytes.len() - 90_000..].to_vec()
    };
    let (model, on, again) = (of("model"), of("on"), of("again"));
    assert!(on == model, "at a rate of almost nothing it is as it was");
    let differ = again.iter().zip(&model).filter(|(a, b)| a != b).count();
    assert!(differ > 60_000, "{differ} of 90000 bytes were drawn anew");
    assert_eq!(home.read("again/tokenizer.json"), home.read("model/tokenizer.json"));
    assert_eq!(home.json("again/config.json")["vocab_size"], 256);
    // A run that begins from scratch needs no weights, and the settings that it prints begin from scratch as well.
    fs::remove_file(home.path(WEIGHTS)).unwrap();
    train("--init --output-dir third");
    assert!(of("third") == again, "the same seed draws the same");
    let (printed, _) = home.done(&training("--init --print-config"));
    assert!(printed.contains("init = true\n") && printed.contains("tokenizer = \"model\"\n"), "{printed}");
    home.copy("lora/llama", "adapter");
    home.refused(
        &training("--init --adapter adapter"),
        "--adapter belongs to the weights that --init does away with; leave one of them out",
    );
}

#[test]
fn a_path_that_looks_like_an_id_is_looked_for_in_both_places() {
    let home = Home::new();
    let mut command = home.command("generate --model models/mine --prompt a");
    command.env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", "hub");
    let (_, said) = support::texts(&command.output().unwrap());
    assert_eq!(
        said,
        "error: there is no folder `models/mine`, and `models/mine` is not complete in the cache `hub` and HF_HUB_OFFLINE forbids asking for it\n"
    );
}

#[test]
fn an_export_does_not_touch_what_is_there() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    let export = "export --merge --model model --adapter adapter --out";
    home.refused(&format!("{export} model"), "model is not empty; give a folder that does not exist yet");
    home.refused(&format!("{export} text.txt"), "text.txt is not a folder; give one that does not exist yet");
}

#[test]
fn a_folder_with_the_name_of_a_preset_is_said_to_stand_before_it() {
    let home = Home::with_model();
    home.copy_from(&home.path("model"), "tiny");
    let note = "--model tiny is the folder `tiny` here and not the preset of that name; rename the folder or run \
                elsewhere to have the preset";
    let (_, said) = home.done("plan --model tiny --seq-len 16 --memory 64MiB --threads 1");
    assert_eq!(said, format!("note: {note}\n"));
    std::fs::remove_file(home.path("tiny/config.json")).unwrap();
    let (_, said) = support::texts(&home.command("plan --model tiny").output().unwrap());
    assert!(said.starts_with("error: ") && said.trim_end().ends_with(note), "{said}");
    let (_, said) = home.done("plan --model s --memory 1GiB --threads 1");
    assert_eq!(said, "");
}
