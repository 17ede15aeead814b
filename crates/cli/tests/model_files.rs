//! Files of models and samples that are missing, broken or do not belong together: one sentence each that names the
//! file and the way out, as the user's mistake.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::{Value, json};

mod support;
use support::{Home, SMALL};

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
    home.write("model/pytorch_model.bin", "");
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
        "model/config.json describes a `MambaForCausalLM`, which cannot be trained here; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel, BertForMaskedLM, BertForSequenceClassification, BertForPreTraining, GPT2Model",
    );
    home.copy("hf/llama", "model");
    home.set("model/config.json", "hidden_act", json!("tanh"));
    refused(&home, "model/config.json: `hidden_act` is \"tanh\", which is not supported; it may be silu");
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
    // The file it leads to is there and whole.
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
        "model has no tokenizer.json; save the model's fast tokenizer there with transformers' save_pretrained",
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
    // What was passed over once is not forgiven for ever.
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
    let expected = "adapter does not go with this model (lora: no linear layer is called `c_attn`; the model has down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj); give the one it was trained on as --model";
    home.refused(&training("--adapter adapter"), expected);
    home.refused("generate --model model --adapter adapter --prompt a", expected);
    home.refused("export --merge --model model --adapter adapter --out merged", expected);
    home.copy("lora/llama", "adapter");
    home.set("adapter/adapter_config.json", "base_model_name_or_path", json!("owner/larger"));
    home.set("adapter/adapter_config.json", "r", json!(8));
    home.refused(&training("--adapter adapter"), "adapter does not go with this model (it holds `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` as [4, 32] where [8, 32] is wanted); give `owner/larger` as --model");
    home.set("adapter/adapter_config.json", "peft_type", json!("IA3"));
    home.refused(
        &training("--adapter adapter"),
        "adapter/adapter_config.json: `peft_type` is IA3; only LORA is supported",
    );
    home.refused(
        &training("--adapter model"),
        "model/adapter_config.json cannot be read (it does not exist); check the path and its permissions",
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
