//! Adapters by their folders alone, and adapters of chosen modules, ranks and tokens from training to merging.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::{Value, json};

use crate::support::{self, Home, SMALL};

/// The way out that PEFT offers for most adapters.
const MERGE: &str = "which is not supported here; merge it with PEFT (`PeftModel.from_pretrained(base, adapter).merge_and_unload()`), save the result with `save_pretrained`, and give that folder as --model";
/// The step before it, where embedding and head share a table: PEFT's merge changes both when one has an adapter.
const UNTIE: &str = "; before PEFT merges it, give the head weights of its own (`base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.clone()); base.config.tie_word_embeddings = False`), or the merged model has another embedding";

fn training(rest: &str) -> String {
    format!("train --data text.txt --max-steps 3 --learning-rate 0.01 {SMALL} {rest}")
}

/// The text that `generate` writes without chance.
fn written(home: &Home, model: &str) -> String {
    home.done(&format!("generate {model} --prompt line --max-new-tokens 12 --temperature 0 --memory 64MiB")).0
}

/// A home with a `model`, and an `adapter` whose configuration names that model.
fn with_adapter() -> Home {
    let home = Home::with_model();
    home.done(&training("--model model --lora-r 2 --output-dir adapter"));
    home
}

#[test]
fn an_adapter_as_the_model_stands_for_its_model_and_itself() {
    let home = with_adapter();
    assert_eq!(home.json("adapter/adapter_config.json")["base_model_name_or_path"], "model");
    let (alone, both) = ("--model adapter", "--model model --adapter adapter");
    let said = "adapter is an adapter for model, which is the model\n";
    assert_eq!(written(&home, alone), written(&home, both));
    let (_, told) = home.done(&training(&format!("{alone} --output-dir further")));
    assert_eq!(told.matches(said).count(), 1, "{told}");
    home.done(&training(&format!("{both} --output-dir same")));
    let weights = |run: &str| home.read(&format!("{run}/adapter_model.safetensors"));
    assert!(weights("further") == weights("same"), "trained further either way");
    let (planned, told) = home.done(&format!("plan --data text.txt {alone} --seq-len 16 --memory 64MiB"));
    assert!(told.contains(said) && !planned.is_empty(), "{told}");
    home.done(&format!("export --merge {alone} --out merged"));
    home.done(&format!("export --merge {both} --out beside"));
    assert!(home.read("merged/model.safetensors") == home.read("beside/model.safetensors"));
}

#[test]
fn an_adapter_whose_model_is_not_here_says_what_to_type() {
    let home = with_adapter();
    fs::rename(home.path("model"), home.path("moved")).unwrap();
    let expected = "--model adapter is an adapter for `model`, and there is no such folder here; if its model is in another \
                    folder, give `--model BASE_FOLDER --adapter adapter`";
    home.refused(&training("--model adapter"), expected);
    home.refused("generate --model adapter --prompt a", expected);
    home.refused("export --merge --model adapter --out merged", expected);
    home.set("adapter/adapter_config.json", "base_model_name_or_path", Value::Null);
    home.refused(
        "generate --model adapter --prompt a",
        "adapter is an adapter that does not say which model it belongs to; give `--model BASE_FOLDER --adapter adapter`",
    );
    // The base is named as on the hub, which cannot be asked or does not have the model.
    home.set("adapter/adapter_config.json", "base_model_name_or_path", json!("owner/base"));
    let typed = "; if its model is in another folder, give `--model BASE_FOLDER --adapter adapter`\n";
    for (offline, why) in [("1", "HF_HUB_OFFLINE forbids"), ("0", "could not be had from http://127.0.0.1:9")]
    {
        let mut command = home.command("generate --model adapter --prompt a");
        command.env("HF_HUB_OFFLINE", offline).env("HF_ENDPOINT", "http://127.0.0.1:9");
        let said = support::texts(&command.output().unwrap()).1;
        let begins =
            "error: --model adapter is an adapter for `owner/base`, and there is no folder `owner/base`";
        assert!(said.contains(begins) && said.contains(why) && said.ends_with(typed), "{said}");
    }
    home.set("adapter/adapter_config.json", "base_model_name_or_path", json!("moved"));
    home.refused(
        &training("--model adapter --adapter adapter"),
        "--model adapter is an adapter for `moved`, and --adapter adapter another; give `moved` as --model",
    );
    home.refused(
        "export --merge --model moved --out merged",
        "moved is no adapter; give the folder of one as --adapter",
    );
}

#[test]
fn an_adapter_that_is_no_folder_says_how_to_get_one() {
    let home = Home::with_model();
    home.refused(
        &training("--model model --adapter owner/adapter"),
        "--adapter owner/adapter is no folder; adapters are not downloaded here; run `hf download owner/adapter \
         --local-dir FOLDER` and give that folder",
    );
    home.refused(
        "generate --model model --adapter ./nowhere --prompt a",
        "--adapter ./nowhere is no folder; give the folder that adapter_config.json is in",
    );
}

#[test]
fn modules_ranks_layers_and_tokens_of_an_adapter_are_chosen_trained_resumed_and_merged() {
    let home = Home::with_model();
    let runs = [
        (
            r"--lora-target-modules .*\.(q|v|down)_proj --lora-exclude-modules .*\.0\.mlp.* --lora-rank-pattern q_proj=5",
            "pattern",
        ),
        (
            "--lora-target-modules q_proj,up_proj,model.embed_tokens --lora-layers-to-transform 1 --lora-alpha-pattern up_proj=3",
            "layers",
        ),
        ("--lora-target-modules v_proj --trainable-token-indices 5,101,7", "tokens"),
    ];
    for (flags, name) in runs {
        let train = training(&format!("--model model --lora-r 2 {flags} --save-steps 1 --output-dir {name}"));
        home.done(&format!("{train} --stop-after 1"));
        home.done(&format!("{train} --resume latest"));
        home.done(&train.replace(&format!("--output-dir {name}"), &format!("--output-dir {name}-at-once")));
        let weights = |run: &str| home.read(&format!("{run}/adapter_model.safetensors"));
        assert!(weights(name) == weights(&format!("{name}-at-once")), "{name}: a pause changes nothing");
        home.done(&training(&format!("--model {name} --output-dir {name}-further")));
        home.done(&format!("export --merge --model {name} --out {name}-merged"));
        let text = written(&home, &format!("--model {name}"));
        assert_eq!(text, written(&home, &format!("--model {name}-merged")), "{name}");
    }
    let config = |name: &str| home.json(&format!("{name}/adapter_config.json"));
    // PEFT refuses patterns that also fit modules without weights, so the modules are written down.
    assert_eq!(
        config("pattern")["target_modules"],
        json!([
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj",
            "model.layers.1.self_attn.q_proj",
            "model.layers.1.self_attn.v_proj",
            "model.layers.1.mlp.down_proj"
        ])
    );
    assert_eq!(config("pattern")["rank_pattern"], json!({"q_proj": 5}));
    assert_eq!(config("layers")["layers_to_transform"], json!([1]));
    assert_eq!(config("layers")["alpha_pattern"], json!({"up_proj": 3}));
    assert_eq!(config("tokens")["trainable_token_indices"], json!([5, 101, 7]));
    // The model's embedding is its output head too. The adapter changes the embedding and leaves the head as it was, so the
    // merged model has two tables.
    assert_eq!(home.json("layers-merged/config.json")["tie_word_embeddings"], false);
    assert_eq!(home.json("tokens-merged/config.json")["tie_word_embeddings"], true);
}

#[test]
fn every_kind_of_adapter_is_trained_resumed_and_used_and_merged_if_it_can_be() {
    let home = Home::with_model();
    for (flags, name) in [
        ("--lora-r 2 --use-dora --lora-dropout 0.1", "dora"),
        ("--lora-r 2 --use-dora --load-in-8bit", "dora-in-8-bits"),
        ("--lora-r 2 --use-dora --bf16", "dora-in-bf16"),
        ("--peft-type ia3 --learning-rate 0.1", "ia3"),
        ("--peft-type bottleneck --bottleneck-size 3 --non-linearity gelu --learning-rate 0.5", "bottleneck"),
    ] {
        let learning = if flags.contains("learning-rate") { "" } else { "--learning-rate 0.01" };
        let rest = format!("--data text.txt --max-steps 3 {SMALL} {learning}");
        let train = format!("train {rest} --model model {flags} --save-steps 1 --output-dir {name}");
        home.done(&format!("{train} --stop-after 1"));
        home.done(&format!("{train} --resume latest"));
        home.done(&train.replace(&format!("--output-dir {name}"), &format!("--output-dir {name}-at-once")));
        let weights = |run: &str| home.read(&format!("{run}/adapter_model.safetensors"));
        assert!(weights(name) == weights(&format!("{name}-at-once")), "{name}: a pause changes nothing");
        let bits = if flags.contains("8bit") { "--load-in-8bit" } else { "" };
        home.done(&training(&format!("--model {name} --output-dir {name}-further {bits}")));
        let text = written(&home, &format!("--model {name}"));
        assert_ne!(text, written(&home, "--model model"), "{name}: it was trained, so the text is another");
        let merge = format!("export --merge --model model --adapter {name} --out {name}-merged");
        if name == "bottleneck" {
            let why = "lora: a bottleneck adapter has a function between its products and cannot be merged; use model \
                       and adapter together, as --model and --adapter";
            home.refused(&merge, why);
            continue;
        }
        home.done(&merge);
        assert_eq!(text, written(&home, &format!("--model {name}-merged")), "{name}");
    }
    let config = |name: &str| home.json(&format!("{name}/adapter_config.json"));
    assert_eq!((&config("dora")["use_dora"], &config("dora")["peft_type"]), (&json!(true), &json!("LORA")));
    assert_eq!(config("ia3")["target_modules"], json!(["k_proj", "v_proj", "down_proj"]));
    assert_eq!(config("ia3")["feedforward_modules"], json!(["down_proj"]));
    assert_eq!(config("bottleneck")["target_modules"], json!(["o_proj", "down_proj"]));
}

#[test]
fn vectors_before_the_text_are_trained_resumed_and_used_and_cannot_be_merged() {
    for (kind, peft_type) in [("prompt_tuning", "PROMPT_TUNING"), ("prefix_tuning", "PREFIX_TUNING")] {
        let home = Home::with_model();
        let lines: Vec<String> = (0..12).map(|line| format!("{{\"text\": \"line {line}\"}}\n")).collect();
        home.write("texts.jsonl", lines.concat());
        let train = format!(
            "train --data texts.jsonl --packing false --max-steps 4 --learning-rate 0.5 {SMALL} --model model --peft-type \
             {kind} --num-virtual-tokens 3 --save-steps 2"
        );
        home.done(&format!("{train} --output-dir prompt --stop-after 2"));
        home.done(&format!("{train} --output-dir prompt --resume latest"));
        home.done(&format!("{train} --output-dir at-once"));
        let weights = |run: &str| home.read(&format!("{run}/adapter_model.safetensors"));
        assert!(weights("prompt") == weights("at-once"), "{kind}: a pause changes nothing");
        let (header, _) = tensors(&weights("prompt"));
        assert_eq!(header["prompt_embeddings"]["shape"][0], 3);
        let config = home.json("prompt/adapter_config.json");
        assert_eq!((&config["peft_type"], &config["num_virtual_tokens"]), (&json!(peft_type), &json!(3)));
        assert!(config.get("target_modules").is_none());
        assert_ne!(written(&home, "--model prompt"), written(&home, "--model model"), "{kind}");
        home.refused(
            "export --merge --model model --adapter prompt --out merged",
            "lora: vectors before a text are no part of any weight and cannot be merged; use model and adapter together, as \
             --model and --adapter",
        );
    }
}

#[test]
fn settings_of_another_kind_of_adapter_are_refused_with_the_kind_they_are_for() {
    let home = Home::with_model();
    for (flags, expected) in [
        (
            "--peft-type adalora",
            "--peft-type must be lora, ia3, bottleneck, intrinsic, prompt_tuning or prefix_tuning, got `adalora`",
        ),
        ("--peft-type lora", "--peft-type lora needs --lora-r, the rank of adapters"),
        ("--peft-type ia3 --lora-r 4", "--lora-r is for --peft-type lora; leave it out of ia3"),
        (
            "--lora-r 4 --bottleneck-size 4",
            "--bottleneck-size is for --peft-type bottleneck; leave it out of lora",
        ),
        ("--feedforward-modules down_proj", "--feedforward-modules needs --peft-type ia3"),
        ("--use-dora", "--use-dora needs --lora-r, the rank of adapters"),
        ("--num-virtual-tokens 4", "--num-virtual-tokens needs --peft-type prompt_tuning or prefix_tuning"),
        ("--peft-type prompt_tuning", "--peft-type prompt_tuning needs --num-virtual-tokens, such as 20"),
        (
            "--peft-type prompt_tuning --num-virtual-tokens 4 --modules-to-save norm",
            "--modules-to-save is for adapters of modules; leave it out of prompt_tuning",
        ),
        (
            "--peft-type prompt_tuning --num-virtual-tokens 4",
            "prompt tuning: the vectors belong to every text, and rows of several texts have them once; give --packing false \
             and texts as .jsonl or .parquet, for a model that writes",
        ),
        (
            "--peft-type ia3 --feedforward-modules up_proj",
            "lora: the feed-forward module `up_proj` is none of the modules that get adapters",
        ),
        (
            "--peft-type bottleneck --non-linearity relu",
            "there is no non-linearity `relu`; known are tanh, gelu and silu",
        ),
        (
            "--lora-r 4 --use-dora --lora-target-modules embed_tokens",
            "lora: `model.embed_tokens` is a table of words, which has no DoRA here; leave it out of the targets",
        ),
        (
            "--peft-type ia3 --train-only norm",
            "--train-only chooses among the model's own weights, which adapters leave alone; give --modules-to-save for \
             modules that are trained beside adapters",
        ),
    ] {
        home.refused(&training(&format!("--model model {flags}")), expected);
    }
}

#[test]
fn a_run_that_goes_on_with_other_modules_is_refused() {
    let home = Home::with_model();
    let train = |rest: &str| training(&format!("--model model --lora-r 2 --output-dir run {rest}"));
    home.done(&format!("{} --stop-after 1", train("--lora-rank-pattern q_proj=3")));
    let output = home.command(&format!("{} --resume latest", train(""))).output().unwrap();
    let (_, said) = support::texts(&output);
    assert!(said.contains("lora_rank_pattern is q_proj=3, here it is none"), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn a_module_that_is_not_there_is_refused_before_anything_is_planned() {
    let home = Home::with_model();
    let refused = |flags: &str, expected: &str| {
        home.refused(&training(&format!("--model model --lora-r 2 {flags}")), expected);
    };
    let known = "the model has down_proj, embed_tokens, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj";
    refused("--lora-target-modules query", &format!("lora: no layer is called `query`; {known}"));
    refused("--lora-layers-to-transform 1,2", "lora: the model has no layer 2; they count from 0");
    refused(
        "--lora-rank-pattern q_proj",
        "--lora-rank-pattern wants PATTERN=NUMBER, such as q_proj=16, got `q_proj`",
    );
    refused(
        "--lora-layers-pattern layers",
        "--lora-layers-pattern needs --lora-layers-to-transform, the numbers of layers",
    );
    refused(
        "--trainable-token-indices 256",
        "lora: trained tokens: there is no token 256; the model knows 256 of them",
    );
    home.refused(
        &training("--model model --lora-exclude-modules q_proj"),
        "--lora-exclude-modules needs --lora-r, the rank of adapters",
    );
}

/// The header of a safetensors file, and the bytes behind it.
fn tensors(bytes: &[u8]) -> (Value, Vec<u8>) {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), data.to_vec())
}

/// Writes the adapter's weights with one tensor more, of this type and shape.
fn write_with(home: &Home, mut header: Value, mut data: Vec<u8>, name: &str, like: &Value, bytes: &[u8]) {
    header[name] = json!({
        "dtype": like["dtype"], "shape": like["shape"], "data_offsets": [data.len(), data.len() + bytes.len()],
    });
    data.extend(bytes);
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    home.write("adapter/adapter_model.safetensors", [&length, header.as_bytes(), &data].concat());
}

#[test]
fn a_copy_of_the_table_beside_an_adapter_is_passed_over_unless_it_differs_from_the_model() {
    let home = Home::with_model();
    home.done(&training("--model model --lora-r 2 --lora-target-modules embed_tokens --output-dir adapter"));
    let (model, numbers) = tensors(&home.read("model/model.safetensors"));
    let table = &model["model.embed_tokens.weight"];
    let offsets = table["data_offsets"].as_array().unwrap();
    let offset = |which: usize| offsets[which].as_u64().unwrap() as usize;
    let mut copy = numbers[offset(0)..offset(1)].to_vec();
    let (header, data) = tensors(&home.read("adapter/adapter_model.safetensors"));
    let alone = written(&home, "--model adapter");
    // As PEFT writes it.
    let name = "base_model.model.model.embed_tokens.base_layer.weight";
    let mut write = |change: u8| {
        copy[5] ^= change;
        write_with(&home, header.clone(), data.clone(), name, table, &copy);
    };
    write(0);
    assert_eq!(written(&home, "--model adapter"), alone);
    write(1);
    let expected = format!("adapter holds `{name}`, a table with other numbers than the model's, {MERGE}");
    for command in
        ["generate --prompt a", "export --merge --out merged", "train --data text.txt --max-steps 1"]
    {
        home.refused(&format!("{command} --model model --adapter adapter"), &expected);
    }
}

#[test]
fn an_adapter_of_a_module_that_can_have_none_here_is_refused_with_a_way_that_keeps_it() {
    let home = Home::with_model();
    home.copy("lora/llama", "adapter");
    let generate = "generate --model model --adapter adapter --prompt a";
    for (name, first) in [("lm_head", UNTIE), ("wpe", "")] {
        home.set("adapter/adapter_config.json", "target_modules", json!(["q_proj", name]));
        let expected = format!(
            "adapter holds an adapter for `{name}`, an output head or a table of positions, {MERGE}{first}"
        );
        home.refused(generate, &expected);
    }
    home.copy("lora/llama", "adapter");
    fs::rename(home.path("adapter/adapter_model.safetensors"), home.path("adapter/adapter_model.bin"))
        .unwrap();
    home.refused(generate, "adapter holds pickled weights only; have PEFT write them anew (`PeftModel.from_pretrained(base, adapter).save_pretrained(folder)`) and give that folder");
    home.copy("lora/llama", "adapter");
    for (saved, module) in [("lm_head", "lm_head"), ("embed_tokens", "model.embed_tokens")] {
        home.set("adapter/adapter_config.json", "modules_to_save", json!([saved]));
        let expected = format!(
            "adapter holds a copy of `{module}`, which is embedding and output head at once in this model, {MERGE}"
        );
        home.refused(generate, &expected);
        home.refused(&training("--model model --adapter adapter"), &expected);
    }
}

#[test]
fn a_part_of_a_trained_adapter_that_is_missing_here_is_refused_with_a_way_that_keeps_its_numbers() {
    let home = Home::with_model();
    let untied = format!("{MERGE}{UNTIE}");
    let elsewhere = "which is not supported here; use it with the library that trained it, in the version it was trained with";
    let tokens = "trainable_token_indices";
    for (settings, what, way) in [
        (
            json!({"use_dora": true, "target_modules": ["q_proj", "embed_tokens"]}),
            "DoRA of `model.embed_tokens`, a table of words",
            untied.as_str(),
        ),
        (
            json!({tokens: {"embed_tokens": [3], "lm_head": [4]}}),
            "trained tokens of an output head that are not those of its table",
            &untied,
        ),
        (
            json!({tokens: {"lm_head": [4]}}),
            "trained tokens of an output head that are not those of its table",
            &untied,
        ),
        (json!({tokens: [3, 3]}), "a trained token twice", MERGE),
        (
            json!({tokens: [3], "target_modules": ["embed_tokens"]}),
            "trained tokens of a table that is trained or adapted too",
            elsewhere,
        ),
        (
            json!({"target_parameters": ["embed_tokens.weight"]}),
            "an adapter of the parameter `model.embed_tokens.weight`",
            &untied,
        ),
    ] {
        home.copy("lora/llama", "adapter");
        for (name, value) in settings.as_object().unwrap() {
            home.set("adapter/adapter_config.json", name, value.clone());
        }
        let expected = format!("adapter holds {what}, {way}");
        home.refused("generate --model model --adapter adapter --prompt a", &expected);
        home.refused(&training("--model model --adapter adapter"), &expected);
    }
}

#[test]
fn an_adapter_that_embedding_and_head_share_is_refused_with_a_way_that_merges_it_once() {
    let home = Home::with_model();
    let once = format!(
        "{MERGE}; before PEFT merges it, take the adapter off the head (`core = model.base_model.model; core.lm_head = getattr(core.lm_head, \"base_layer\", core.lm_head)`, where `model` is what `from_pretrained` returned), or the merged model has it twice"
    );
    let shared = "an adapter that `model.embed_tokens` and `lm_head` share";
    let copy = "a copy of `model.embed_tokens`, which is embedding and output head at once in this model";
    let keep = "which is not supported here; PEFT cannot merge it either, so use it there";
    for (settings, what, way) in [
        (json!({"target_modules": ["q_proj", "embed_tokens"]}), shared, once.as_str()),
        (json!({"target_modules": ["q_proj", "lm_head"]}), shared, &once),
        (json!({"target_modules": ["q_proj", "embed_tokens"], "use_dora": true}), shared, keep),
        (json!({"modules_to_save": ["embed_tokens"]}), copy, MERGE),
    ] {
        home.copy("lora/llama", "adapter");
        home.set("adapter/adapter_config.json", "ensure_weight_tying", json!(true));
        for (name, value) in settings.as_object().unwrap() {
            home.set("adapter/adapter_config.json", name, value.clone());
        }
        let expected = format!("adapter holds {what}, {way}");
        home.refused("generate --model model --adapter adapter --prompt a", &expected);
    }
}

#[test]
fn an_adapter_whose_merged_model_is_not_supported_here_either_is_not_told_to_be_merged() {
    let home = Home::new();
    home.copy("hf/gpt2", "model");
    home.copy("lora/gpt2", "adapter");
    let way = "which is not supported here; merged by PEFT, it is a model whose output head has weights of its own, and such models of this family are not supported here either; use it there";
    for (setting, name, what) in [
        ("target_modules", "lm_head", "an adapter for `lm_head`, an output head or a table of positions"),
        (
            "modules_to_save",
            "wte",
            "a copy of `transformer.wte`, which is embedding and output head at once in this model",
        ),
    ] {
        home.copy("lora/gpt2", "adapter");
        home.set("adapter/adapter_config.json", setting, json!([name]));
        home.refused("plan --model model --adapter adapter", &format!("adapter holds {what}, {way}"));
    }
}

#[test]
fn settings_of_an_adapter_that_change_none_of_its_numbers_are_passed_over() {
    let home = with_adapter();
    let text = written(&home, "--model adapter");
    home.set("adapter/adapter_config.json", "bias", json!("all"));
    home.set("adapter/adapter_config.json", "ensure_weight_tying", json!(true));
    home.set("adapter/adapter_config.json", "modules_to_save", json!(["pooler"]));
    assert_eq!(written(&home, "--model adapter"), text);
    // Biases that were trained are in the file of weights.
    let (header, data) = tensors(&home.read("adapter/adapter_model.safetensors"));
    let name = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias";
    write_with(&home, header, data, name, &json!({"dtype": "F32", "shape": [1]}), &[0; 4]);
    let expected = format!("adapter holds `{name}`, a trained bias, {MERGE}");
    home.refused("generate --model model --adapter adapter --prompt a", &expected);
}

#[test]
fn vectors_that_a_network_of_peft_made_are_used_as_they_are() {
    let home = Home::with_model();
    home.write("texts.jsonl", "{\"text\": \"line one\"}\n".repeat(8));
    home.done(&format!(
        "train --data texts.jsonl --packing false --max-steps 2 --learning-rate 0.5 {SMALL} --model model --peft-type \
         prefix_tuning --num-virtual-tokens 3 --output-dir prefix"
    ));
    let text = written(&home, "--model prefix");
    home.set("prefix/adapter_config.json", "prefix_projection", json!(true));
    assert_eq!(written(&home, "--model prefix"), text);
    home.set("prefix/adapter_config.json", "of_next_year", json!(3));
    home.refused(
        "generate --model model --adapter prefix --prompt a",
        "prefix/adapter_config.json: `of_next_year` is set to 3, which is not supported here; PEFT cannot merge it either, so \
         use it there",
    );
}
