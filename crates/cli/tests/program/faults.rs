//! Faults outside the run's state lose nothing: a run never begins anew because a checkpoint cannot be read, files of
//! others stay, and trained weights are saved before the program ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Home, SMALL, begun, names, texts, training, wait_until};

fn weights(home: &Home, run: &str) -> Vec<u8> {
    home.read(&format!("{run}/model.safetensors"))
}

#[test]
fn the_latest_of_checkpoints_that_cannot_be_read_is_refused_and_they_stay() {
    let home = begun();
    let state = "out/checkpoint-2/trainer_state.json";
    let (whole, there) = (home.read(state), names(&home.path("out")));
    let resume = training("--output-dir out --resume latest --save-total-limit 1");

    fs::remove_file(home.path(state)).unwrap();
    fs::create_dir(home.path(state)).unwrap();
    let unread = |why: &str| {
        format!(
            "out/checkpoint-2 may be whole and cannot be read now: out/checkpoint-2/trainer_state.json {why}; mend that, or \
             move the checkpoint away to go on without it"
        )
    };
    home.refused(&resume, &unread("cannot be read (it is not a file); check the path and its permissions"));
    fs::remove_dir(home.path(state)).unwrap();

    home.write(state, String::from_utf8(whole.clone()).unwrap().replace("\"format\": 1", "\"format\": 2"));
    home.refused(&resume, &unread("has form 2 and this version reads 1; use the version that wrote it"));

    home.write(state, &whole[..200]);
    let output = home.command(&resume).output().unwrap();
    let (_, err) = texts(&output);
    assert!(
        err.starts_with("error: out holds a checkpoint and none that is whole: out/checkpoint-2/"),
        "{err}"
    );
    assert!(err.ends_with("to begin anew, name another --output-dir or move them away\n"), "{err}");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(names(&home.path("out")), there);

    home.write(state, whole);
    home.done(&resume);
    assert_eq!(weights(&home, "out").len(), home.read("out/checkpoint-4/model.safetensors").len());
}

#[test]
fn a_folder_of_somebody_else_survives_a_limit_of_one_checkpoint() {
    let home = begun();
    home.copy("hf/llama", "out/checkpoint-500");
    home.write("out/checkpoint-500/trainer_state.json", json!({ "global_step": 500 }).to_string());
    let theirs = names(&home.path("out/checkpoint-500"));
    home.done(&training("--output-dir out --resume latest --save-total-limit 1"));
    assert_eq!(names(&home.path("out/checkpoint-500")), theirs);
    let checkpoints: Vec<String> =
        names(&home.path("out")).into_iter().filter(|name| name.starts_with("checkpoint-")).collect();
    assert_eq!(checkpoints, ["checkpoint-4", "checkpoint-500"]);

    // A run does not begin in a folder that holds nothing but such a checkpoint.
    fs::create_dir(home.path("new")).unwrap();
    fs::rename(home.path("out/checkpoint-500"), home.path("new/checkpoint-500")).unwrap();
    let refused = |them: &str| {
        let is = "new/checkpoint-500 is a checkpoint of Hugging Face's Trainer after step 500, whose optimizer state is not \
                  read here; it holds a model: train it further with `--model new/checkpoint-500 --tokenizer \
                  FOLDER_OF_ITS_TOKENIZER` and a new --output-dir";
        let expected =
            format!("`new` holds no whole checkpoint, {them}: {is}; to begin anew, name an empty folder");
        home.refused(&training("--output-dir new --resume latest"), &expected);
    };
    refused("and no run of plimsoll wrote the one there");
    fs::create_dir(home.path("new/checkpoint-100")).unwrap();
    refused("and no run of plimsoll wrote the 2 there, of which the newest is this");
}

#[test]
fn a_folder_given_as_a_checkpoint_is_told_what_it_is_and_what_to_type() {
    let home = begun();
    let resume = |from: &str| training(&format!("--output-dir out --resume {from}"));
    home.refused(
        &resume("model"),
        "model is a model, not a checkpoint: it has no trainer_state.json; train it further with `--model model` and a new \
         --output-dir",
    );
    home.refused(
        &resume("out"),
        "out is the folder of a run, not a checkpoint; go on with `--resume latest --output-dir out`, or give one of its \
         checkpoints, such as checkpoint-2",
    );
    home.refused(&resume("nowhere"), "nowhere does not exist; give the folder checkpoint-N of a run");
    home.refused(&resume("text.txt"), "text.txt is not a folder; give the folder checkpoint-N of a run");
    fs::create_dir(home.path("tuned")).unwrap();
    home.write("tuned/adapter_config.json", "{}");
    home.refused(
        &resume("tuned"),
        "tuned is an adapter, not a checkpoint: it has no trainer_state.json; train it further with `--model BASE --adapter \
         tuned` and a new --output-dir",
    );
    home.write("tuned/trainer_state.json", json!({ "global_step": 30, "log_history": [] }).to_string());
    home.refused(
        &resume("tuned"),
        "tuned is a checkpoint of Hugging Face's Trainer after step 30, whose optimizer state is not read here; it holds an \
         adapter: train it further with `--model BASE --adapter tuned` and a new --output-dir",
    );
    fs::create_dir(home.path("theirs")).unwrap();
    fs::rename(home.path("tuned"), home.path("theirs/checkpoint-30")).unwrap();
    home.refused(
        &resume("theirs"),
        "theirs is the folder of a run of Hugging Face's Trainer; theirs/checkpoint-30 is a checkpoint of Hugging Face's \
         Trainer after step 30, whose optimizer state is not read here; it holds an adapter: train it further with `--model \
         BASE --adapter theirs/checkpoint-30` and a new --output-dir",
    );
}

#[test]
fn a_model_that_was_saved_without_its_tokenizer_says_how_to_name_one() {
    let home = Home::with_model();
    home.copy("hf/llama", "theirs/checkpoint-30");
    home.write("theirs/checkpoint-30/trainer_state.json", json!({ "global_step": 30 }).to_string());
    let lacks = "theirs/checkpoint-30 has no tokenizer.json; give the folder of the model's tokenizer as --tokenizer, or save \
                 the fast tokenizer there with transformers' save_pretrained";
    let train = format!("train --data text.txt --max-steps 1 {SMALL} --model theirs/checkpoint-30");
    home.refused(&train, lacks);
    home.refused(
        &train.replace("train", "plan").replace(" --max-steps 1", "").replace(" --report-to none", ""),
        lacks,
    );
    home.done(&format!("{train} --tokenizer model"));
    home.refused(
        &training("--output-dir out --resume theirs/checkpoint-30"),
        "theirs/checkpoint-30 is a checkpoint of Hugging Face's Trainer after step 30, whose optimizer state is not read here; \
         it holds a model: train it further with `--model theirs/checkpoint-30 --tokenizer FOLDER_OF_ITS_TOKENIZER` and a new \
         --output-dir",
    );
}

#[test]
fn records_that_cannot_be_written_to_standard_output_are_dropped_and_the_run_goes_on() {
    let home = Home::with_model();
    home.done(&training("--output-dir whole"));
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = home.command(&training("--output-dir out --json")).stdout(full()).output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let note = "note: what --json asks for from here on is not written (cannot write the output: No space left on device";
    assert_eq!(err.matches(note).count(), 1, "{err}");
    assert_eq!(weights(&home, "out"), weights(&home, "whole"));
    assert_eq!(home.losses("out"), home.losses("whole"));
    // Neither standard output nor standard error can be written to.
    let mut command = home.command(&training("--output-dir silent --json"));
    assert!(command.stdout(full()).stderr(full()).status().unwrap().success());
    assert_eq!(weights(&home, "silent"), weights(&home, "whole"));
    // Where nothing is kept, the records are all there is.
    let mut command = home.command("train --max-steps 10000000 --memory 64MiB --json");
    let output = command.stdout(full()).output().unwrap();
    assert!(
        texts(&output).1.ends_with("error: cannot write the output: No space left on device (os error 28)\n")
    );
    assert_eq!(output.status.code(), Some(1));
}

/// Makes the embedding of one token infinite.
fn poison(home: &Home, token: usize) {
    let mut weights = home.read("model/model.safetensors");
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    let tensor = &header["model.embed_tokens.weight"];
    assert_eq!(tensor["dtype"], "F32");
    let begin = 8 + length + tensor["data_offsets"][0].as_u64().unwrap() as usize;
    let width = tensor["shape"][1].as_u64().unwrap() as usize;
    for number in 0..width {
        let at = begin + 4 * (token * width + number);
        weights[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    }
    home.write("model/model.safetensors", weights);
}

#[test]
fn steps_before_one_that_is_not_finite_are_saved_and_gone_on_from_by_name() {
    let home = Home::with_model();
    // A model whose head is not tied to its embedding.
    home.copy("hf/mistral", "model");
    let train = |rest: &str| {
        let run =
            format!("train --model model --data text.txt --max-steps 60 --save-steps 500 {SMALL} {rest}");
        let output = home.command(&run).output().unwrap();
        (output.status.code(), texts(&output).1)
    };
    // This word occurs once, deep in the text.
    let vocabulary = home.json("model/tokenizer.json")["model"]["vocab"].clone();
    let rare = vocabulary["ship"].as_u64().unwrap() as usize;
    let text = String::from_utf8(home.read("text.txt")).unwrap();
    home.write("text.txt", text.replacen("line 70 ", "ship line 70 ", 1));
    poison(&home, rare);
    let (code, err) = train("--output-dir out");
    assert_eq!(code, Some(3), "{err}");
    let checkpoints: Vec<String> =
        names(&home.path("out")).into_iter().filter(|name| name.contains('-')).collect();
    let [last] = &checkpoints[..] else { panic!("{checkpoints:?}\n{err}") };
    let step: u64 = last.strip_prefix("last-finite-").unwrap().parse().unwrap();
    assert!(step > 0);
    assert!(
        err.contains(&format!("saved out/{last}\nnote: the same weights and data lead to the same numbers")),
        "{err}"
    );
    let told =
        format!("of step {} is not a finite number; the weights are as step {step} left them\n", step + 1);
    assert!(err.ends_with(&told), "{err}");

    // The saved weights have the same bits as those of a run that paused at that step.
    let (code, err) = train(&format!("--output-dir paused --stop-after {step}"));
    assert_eq!(code, Some(0), "{err}");
    let saved = home.read(&format!("out/{last}/model.safetensors"));
    assert_eq!(saved, home.read(&format!("paused/checkpoint-{step}/model.safetensors")));

    let (code, err) = train("--output-dir out --resume latest");
    let expected = format!(
        "error: `out` holds no checkpoint but out/{last}, from before a step whose numbers were not finite"
    );
    assert!(code == Some(2) && err.starts_with(&expected), "{err}");
    let (code, err) = train(&format!("--output-dir out --resume out/{last} --learning-rate 0.00001"));
    assert!(code == Some(3) && err.contains(&format!("going on after step {step} of out/{last}\n")), "{err}");
    assert!(err.ends_with(&told), "the same word is met again: {err}");
    assert_eq!(home.read(&format!("out/{last}/model.safetensors")), saved);
}

#[test]
fn what_a_killed_run_leaves_beside_its_checkpoints_is_cleared_and_nothing_else() {
    let home = begun();
    for ours in ["report.html.4711.part", "metrics.jsonl.part"] {
        home.write(&format!("out/{ours}"), "half");
    }
    for dir in [".tmp-model", ".tmp-checkpoint-3", ".tmp-old-checkpoint-1", ".tmp-last-finite-9"] {
        fs::create_dir(home.path(&format!("out/{dir}"))).unwrap();
    }
    for theirs in ["notes.part", "report.htmlx.part", ".tmp-notes"] {
        home.write(&format!("out/{theirs}"), "theirs");
    }
    home.done(&training("--output-dir out --resume latest"));
    let left: Vec<String> = names(&home.path("out"))
        .into_iter()
        .filter(|name| name.contains(".part") || name.starts_with('.'))
        .collect();
    assert_eq!(left, [".tmp-notes", "notes.part", "report.htmlx.part"]);
}

/// Sends a signal to a run that tokenises its data, which is long before its first step.
fn signalled(home: &Home, arguments: &str, signal: &str) -> (Option<i32>, String) {
    let ids = home.path("cache/plimsoll/data");
    let _ = fs::remove_dir_all(&ids);
    let mut child = home.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The run's folder is made first; then millions of lines have to be read, whose ids go to a file.
    wait_until("the first ids", || {
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        fs::read_dir(&ids).is_ok_and(|mut files| files.next().is_some())
    });
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), texts(&output).1)
}

#[test]
fn a_signal_before_the_first_step_is_a_sentence_and_the_usual_code() {
    let home = Home::with_model();
    let line = format!("{}\n", json!({ "text": "the ship grows" }));
    home.write("long.jsonl", line.repeat(2_000_000));
    let train = format!("train --model model --data long.jsonl --output-dir out {SMALL}");
    for (signal, how, code) in [("-INT", "interrupted", 130), ("-TERM", "terminated", 143)] {
        let (status, err) = signalled(&home, &train, signal);
        let said = format!(
            "{how} before the first step; nothing was trained, and nothing saved before was changed\n"
        );
        assert!(err.ends_with(&said), "{err}");
        assert_eq!(status, Some(code), "{err}");
        assert!(!home.path("out").exists(), "the folder was new, and nothing is in it");
    }
}

#[test]
fn a_low_limit_on_address_space_is_one_sentence() {
    let home = Home::with_model();
    let limited =
        |kib: u64, arguments: &str| home.limited(&format!("ulimit -v {kib}"), arguments).output().unwrap();
    let mut refused = 0;
    for kib in (16_000..80_000).step_by(4_000) {
        if !limited(kib, "--version").status.success() {
            continue; // Not even the system's loader has room.
        }
        let _ = fs::remove_dir_all(home.path("out"));
        let output = limited(kib, &training("--output-dir out"));
        let (_, err) = texts(&output);
        match output.status.code() {
            Some(0) => {}
            Some(1 | 2) => {
                assert_eq!(err.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{kib}: {err}");
                refused += usize::from(err.contains("(ulimit -v)"));
            }
            code => panic!("{kib} KiB end with {code:?}: {err}"),
        }
    }
    assert!(refused > 0);
}
