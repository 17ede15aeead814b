//! The folder of a run: where it must not go, a disk that fills up, and checkpoints that are broken or another's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use plimsoll::Instructions;
use serde_json::json;

use crate::support::{Home, SMALL, begun, names, texts, training};

/// Runs a command that must fail with this sentence as its last, whatever was said before.
fn ends_with(mut command: Command, code: i32, expected: &str) {
    let output = command.output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(err.lines().last(), Some(&*format!("error: {expected}")));
    assert_eq!(output.status.code(), Some(code));
}

#[test]
fn a_folder_that_cannot_hold_a_run_is_refused_before_anything_is_read() {
    let home = Home::with_model();
    let with =
        |folder: &str| format!("train --model model --data no-such-file.jsonl --output-dir {folder} {SMALL}");
    home.refused(
        &with("model"),
        "--output-dir `model` is not empty; name another folder, or go on with --resume latest",
    );
    home.refused(
        &with("text.txt"),
        "--output-dir `text.txt` cannot be written to (File exists (os error 17)); name another folder",
    );
    home.refused(
        &with("text.txt/run"),
        "--output-dir `text.txt/run` cannot be written to (Not a directory (os error 20)); name another folder",
    );
}

#[test]
fn a_run_that_is_refused_takes_the_folder_away_that_it_has_made_and_no_other() {
    let home = Home::with_model();
    let train = |folder: &str| {
        format!("train --model model --data no-such-file.jsonl --output-dir {folder} --max-steps 1 {SMALL}")
    };
    fs::create_dir(home.path("mine")).unwrap();
    for folder in ["new", "mine"] {
        home.refused(
            &train(folder),
            "no-such-file.jsonl does not exist; give --data a text file or a folder",
        );
    }
    assert!(!home.path("new").exists() && home.path("mine").exists());
}

#[test]
fn what_cannot_be_gone_on_from_is_refused() {
    let home = begun();
    let resume = |rest: &str| training(&format!("--resume {rest}"));
    home.refused(
        "train --resume latest",
        "--resume needs --output-dir, the folder of the run that is to go on",
    );
    home.refused(
        &resume("latest --output-dir model"),
        "`model` holds no whole checkpoint, and has a `config.json`; to begin anew, name an empty folder",
    );
    home.refused(
        &resume("model --output-dir out"),
        "model is a model, not a checkpoint: it has no trainer_state.json; train it further with `--model model` and a new --output-dir",
    );
}

#[test]
fn a_run_goes_on_only_in_its_own_folder_or_an_empty_one_and_not_before_what_is_there() {
    let home = begun();
    home.done(&training("--output-dir out --resume latest"));
    let resume = |from: u64, to: &str| training(&format!("--resume out/checkpoint-{from} --output-dir {to}"));
    let (model, trained) = (home.read("model/model.safetensors"), home.read("out/model.safetensors"));
    home.refused(
        &resume(2, "model"),
        "`model` holds no checkpoint, and has a `config.json`; name an empty folder as --output-dir",
    );
    assert_eq!(home.read("model/model.safetensors"), model);
    home.refused(
        &resume(2, "out"),
        "`out` holds checkpoint-4, later than out/checkpoint-2; move that away or name another --output-dir, or go on after it with --resume latest",
    );
    home.done(&resume(2, "new"));
    assert_eq!(home.read("new/model.safetensors"), trained);
    home.refused(
        &resume(2, "new"),
        "`new` holds checkpoint-4 already; name an empty folder as --output-dir, or go on with what is there with --resume latest",
    );
    // Once the later checkpoint has been moved away, it no longer matters.
    fs::rename(home.path("out/checkpoint-4"), home.path("later")).unwrap();
    home.done(&resume(2, "out"));
    assert_eq!(home.read("out/model.safetensors"), trained);
}

#[test]
fn a_checkpoint_of_another_model_or_run_is_told_by_what_differs() {
    let home = begun();
    let differs = |settings: &str, what: &str| {
        home.refused(
            &training(&format!("--output-dir out --resume latest {settings}")),
            &format!(
                "out/checkpoint-2 is a checkpoint of another run: its {what}; resume with the same settings, or give another --output-dir"
            ),
        );
    };
    differs("--seed 1", "seed is 0, here it is 1");
    differs("--optim sgd", "optim is adamw_torch, here it is sgd");
    differs("--gradients-dtype bf16", "gradients_dtype is f32, here it is bf16");
    differs("--lora-r 2", "lora_alpha is none, here it is 4");
    home.copy("hf/mistral", "model");
    differs("", "architectures is [\"LlamaForCausalLM\"], here it is [\"MistralForCausalLM\"]");
    home.copy("hf/llama", "model");
    home.set("model/config.json", "rms_norm_eps", json!(0.01));
    differs("", "rms_norm_eps is 0.00001, here it is 0.01");
}

#[test]
fn a_capacity_of_experts_neither_comes_nor_goes_and_a_changed_rate_of_biases_is_said() {
    let home = Home::with_model();
    home.copy("hf/olmoe", "model");
    let begin = |settings: &str| home.done(&training(&format!("{settings} --stop-after 2"))).1;
    let biases = begin("--output-dir free --router-aux-loss bias");
    let capacity = begin("--output-dir tight --expert-capacity-factor 1.5");
    for (said, told, other) in [(&biases, "biases", "capacity"), (&capacity, "capacity", "biases")] {
        let unsaved = said.lines().filter(|line| line.contains("in the saved model")).collect::<Vec<_>>();
        assert!(unsaved.len() == 1 && unsaved[0].contains(told) && !unsaved[0].contains(other), "{said}");
    }
    let differs = |settings: &str, what: &str| {
        let output = home.command(&training(&format!("--resume latest {settings}"))).output().unwrap();
        let (_, err) = texts(&output);
        let told =
            format!("another run: its expert_capacity_factor is {what}; resume with the same settings");
        assert!(err.contains(&told), "{err}");
        assert_eq!(output.status.code(), Some(2));
    };
    let free = "--output-dir free --router-aux-loss bias";
    differs(&format!("{free} --expert-capacity-factor 0.25"), "unlimited, here it is 0.25");
    differs("--output-dir tight", "1.5, here it is unlimited");
    differs("--output-dir tight --expert-capacity-factor 2", "1.5, here it is 2");
    let (_, said) = home.done(&training(&format!("--resume latest {free} --stop-after 3")));
    assert!(!said.contains("from here on"), "{said}");
    let (_, said) = home.done(&training(&format!("--resume latest {free} --router-bias-update-rate 0.5")));
    assert!(said.contains("note: router_bias_update_rate is 0.5 from here on, and was 0.001\n"), "{said}");
}

#[test]
fn a_script_may_always_ask_for_the_latest() {
    let home = Home::with_model();
    home.done(&training("--output-dir whole"));
    let always = training("--output-dir out --resume latest");
    let (_, said) = home.done(&always);
    assert!(said.starts_with("`out` holds no whole checkpoint yet; the run begins anew\n"), "{said}");
    assert_eq!(home.read("out/model.safetensors"), home.read("whole/model.safetensors"));
    // Killed before the first checkpoint, a run leaves this much.
    let metrics = home.read("out/metrics.jsonl");
    fs::remove_dir_all(home.path("out")).unwrap();
    fs::create_dir(home.path("out")).unwrap();
    home.write("out/metrics.jsonl", metrics);
    let (_, said) = home.done(&always);
    assert!(said.starts_with("`out` holds no whole checkpoint yet; the run begins anew\n"), "{said}");
    assert_eq!(home.losses("out"), home.losses("whole"), "each step is told once");
}

#[test]
fn data_is_known_by_what_is_in_it_and_a_changed_rate_is_said() {
    let home = begun();
    let text = home.read("text.txt");
    home.write("same.txt", &text);
    let resume = training("--output-dir out --resume latest");
    let (_, said) = home.done(&format!("{resume} --stop-after 3").replace("text.txt", "./same.txt"));
    assert!(!said.contains("from here on"), "{said}");
    let other = String::from_utf8(text).unwrap().replacen("bytes.", "bytes", 1);
    home.write("text.txt", other);
    let output = home.command(&resume).output().unwrap();
    let (_, err) = texts(&output);
    assert!(err.contains("out/checkpoint-3 is a checkpoint of another run: its data is "), "{err}");
    assert_eq!(output.status.code(), Some(2));
    let changed = format!("{resume} --learning-rate 0.01").replace("text.txt", "same.txt");
    let (_, said) = home.done(&changed);
    assert!(said.contains("\nnote: learning_rate is 0.01 from here on, and was 0.00005\n"), "{said}");
}

#[test]
fn instructions_are_forced_kept_and_told_where_a_run_goes_on_with_others() {
    let home = Home::with_model();
    home.refused(
        &training("--instructions sse9"),
        "no instructions are called `sse9`; known are portable, avx2, avx512, avx512-bf16",
    );
    home.refused(
        "plan --device cuda:h100 --instructions portable",
        "--instructions is for the processor; leave it out for cuda:h100",
    );
    home.refused(&training("--tf32"), "--tf32 is for a GPU: leave it out, or write --device cuda");
    home.done(&training("--output-dir out --instructions portable --stop-after 2"));
    let kept = &home.json("out/checkpoint-2/trainer_state.json")["plan"]["instructions"];
    assert_eq!(kept, "portable");
    let (_, said) =
        home.done(&training("--output-dir out --resume latest --instructions portable --stop-after 3"));
    assert!(said.contains("\nportable instructions\n") && !said.contains("was computed with"), "{said}");
    let Some(other) = Instructions::available().pop().filter(|&path| path != Instructions::Portable) else {
        return;
    };
    let (_, said) = home.done(&training(&format!("--output-dir out --resume latest --instructions {other}")));
    let note = format!(
        "\nnote: the run so far was computed with portable instructions and goes on with {other}, within rounding\n"
    );
    assert!(said.contains(&note), "{said}");
}

#[test]
fn a_disk_without_room_for_the_run_is_told_before_it_begins() {
    let home = Home::with_model();
    let train = "train --model model --data text.txt --save-steps 1 --output-dir out";
    let output = home.command(&format!("{train} --max-steps 100000000 {SMALL}")).output().unwrap();
    let (_, err) = texts(&output);
    let last = err.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: the run needs ") && last.contains("on the disk of `out` (100000000 × "),
        "{err}"
    );
    assert!(last.ends_with("or keep fewer with --save-total-limit or --save-steps"), "{err}");
    assert_eq!(output.status.code(), Some(2));
    fs::remove_dir_all(home.path("out")).unwrap();
    let (_, said) = home.done(&format!("{train} --max-steps 9 --save-total-limit 2 {SMALL}"));
    assert!(said.contains(" on the disk, 3 × "), "{said}");
}

#[test]
fn what_is_tuned_has_the_defaults_of_transformers_and_is_kept() {
    let home = Home::with_model();
    let printed = |rest: &str| home.done(&format!("train --model ./model --print-config {rest}")).0;
    let has = |printed: &str, lines: &[&str]| {
        for line in lines {
            assert!(printed.lines().any(|known| known == *line), "{line} is not in\n{printed}");
        }
    };
    let tuned = printed("--data text.txt");
    has(
        &tuned,
        &[
            "learning_rate = 0.00005",
            "lr_scheduler_type = \"linear\"",
            "warmup_steps = 0",
            "adam_beta2 = 0.999",
            "weight_decay = 0.0",
            "num_train_epochs = 3.0",
            "output_dir = \"plimsoll-out/model\"",
        ],
    );
    assert!(!tuned.contains("max_steps"), "{tuned}");
    has(&printed("--data text.txt --lora-r 2 --max-steps 5"), &["learning_rate = 0.0002", "max_steps = 5"]);
    has(&printed("--data text.txt --max-steps -1 --num_train_epochs 2"), &["num_train_epochs = 2.0"]);
    has(
        &home.done("train --print-config").0,
        &["learning_rate = 0.001", "max_steps = 100", "weight_decay = 0.1"],
    );
    let train = format!("train --model ./model --data text.txt {SMALL}");
    let (_, said) = home.done(&train);
    assert!(said.ends_with("what was trained is in plimsoll-out/model\n"), "{said}");
    home.refused(
        &train,
        "--output-dir `plimsoll-out/model` is not empty; name another folder, or go on with --resume latest",
    );
}

#[test]
fn adapters_do_not_go_on_over_other_weights() {
    let home = Home::with_model();
    let train = training("--output-dir out --lora-r 2");
    home.done(&format!("{train} --stop-after 2"));
    let mut weights = home.read("model/model.safetensors");
    // Changes one bit of the last tensor, a norm of 32 numbers.
    let changed = weights.len() - 128;
    weights[changed] ^= 1;
    home.write("model/model.safetensors", weights);
    let output = home.command(&format!("{train} --resume latest")).output().unwrap();
    let (_, err) = texts(&output);
    assert!(err.contains("a checkpoint of another run: its weights of the model is "), "{err}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_broken_checkpoint_is_passed_over_for_the_one_before() {
    let home = Home::with_model();
    home.done(&training("--output-dir whole"));
    home.done(&training("--output-dir out"));
    let weights = home.read("out/checkpoint-4/model.safetensors");
    home.write("out/checkpoint-4/model.safetensors", &weights[..1000]);
    let broken = format!(
        "out/checkpoint-4/model.safetensors has 1000 bytes and had {} when it was saved; take another checkpoint",
        weights.len()
    );
    home.refused(&training("--output-dir out --resume out/checkpoint-4"), &broken);
    let (_, said) = home.done(&training("--output-dir out --resume latest"));
    assert!(
        said.starts_with(&format!("passed over: {broken}\n"))
            && said.contains("\ngoing on after step 2 of out/checkpoint-2\n"),
        "{said}"
    );
    assert_eq!(home.read("out/model.safetensors"), home.read("whole/model.safetensors"));
}

#[test]
fn a_checkpoint_is_believed_only_inside_its_folder() {
    let home = begun();
    let state = "out/checkpoint-2/trainer_state.json";
    let text = String::from_utf8(home.read(state)).unwrap();
    let outside = text.replace("\"config.json\"", "\"../config.json\"");
    home.write(state, &outside);
    let resume = training("--output-dir out --resume out/checkpoint-2");
    home.refused(
        &resume,
        "out/checkpoint-2/trainer_state.json is not as it was written: its checksum differs; take another checkpoint",
    );
    // A file with a correct checksum is refused as well.
    let sum = home.json(state)["checksum"].as_str().unwrap().to_owned();
    let unsigned = outside.trim_end().replace(&sum, "");
    home.write(state, outside.replace(&sum, &sha256(&unsigned)));
    home.refused(
        &resume,
        "out/checkpoint-2/trainer_state.json names `../config.json`, which lies outside its folder; only files beside it are read",
    );
}

fn sha256(text: &str) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_disk_that_fills_up_leaves_the_checkpoint_before_and_it_can_be_gone_on_from() {
    let home = begun();
    home.done(&training("--output-dir whole"));
    let size = |name: &str| fs::metadata(home.path(&format!("out/checkpoint-2/{name}"))).unwrap().len();
    // No file may grow beyond this many blocks of 1024 bytes. With the first limit not even weights fit, with the second
    // only weights do.
    for (file, blocks) in
        [("model", size("model.safetensors") / 2048), ("optimizer", size("optimizer.safetensors") / 1024)]
    {
        let first = format!("trap '' XFSZ; ulimit -f {blocks}");
        let limited = home.limited(&first, &training("--output-dir out --resume latest"));
        let expected = format!(
            "out/.tmp-checkpoint-4/{file}.safetensors cannot be written (File too large (os error 27)); make room or give another folder; what was saved before is untouched"
        );
        ends_with(limited, 1, &expected);
        let mut left = names(&home.path("out"));
        left.retain(|name| name.contains("checkpoint"));
        assert_eq!(left, ["checkpoint-2"]);
    }
    home.done(&training("--output-dir out --resume latest"));
    assert_eq!(home.read("out/model.safetensors"), home.read("whole/model.safetensors"));
}
