//! A base in few bits, from planning to merging, as people type it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::Home;

const SIZES: &str = "--seq-len 16 --global-batch 4 --memory 64MiB --threads 1";

/// With a model 64 wide, once as floats and once as bitsandbytes has quantised it.
fn home() -> Home {
    let home = Home::new();
    for folder in ["llama", "llama-nf4"] {
        home.copy(&format!("quantised/{folder}"), folder);
    }
    home
}

fn training(rest: &str) -> String {
    format!(
        "train --synthetic --max-steps 4 --learning-rate 0.01 --save-steps 2 --report-to none {SIZES} {rest}"
    )
}

/// The error of a command that is refused.
fn error(home: &Home, arguments: &str) -> String {
    let output = home.command(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_run_over_four_bits_is_planned_stopped_resumed_to_the_bit_and_merged() {
    let home = home();
    let (planned, _) =
        home.done(&format!("plan --synthetic --model llama --lora-r 2 --load-in-4bit {SIZES}"));
    assert!(planned.contains("nf4, scales in 8 bits; 288 KiB as f32"), "{planned}");
    for line in ["    embedding  ", "    head  ", "    others  "] {
        assert!(planned.contains(line), "{line}: {planned}");
    }
    let train = training("--model llama --lora-r 2 --load-in-4bit");
    home.done(&format!("{train} --output-dir at-once"));
    home.done(&format!("{train} --output-dir paused --stop-after 2"));
    let other = format!("{} --output-dir paused --resume latest", training("--model llama --lora-r 2"));
    let why = error(&home, &other);
    assert!(why.contains("quantised weights is nf4, scales in 8 bits, here it is none"), "{why}");
    home.done(&format!("{train} --output-dir paused --resume latest"));
    let weights = |run: &str| home.read(&format!("{run}/adapter_model.safetensors"));
    assert!(weights("at-once") == weights("paused"), "a pause changes nothing");
    let (_, told) = home.done("export --merge --model at-once --out merged");
    assert!(told.contains("the adapter was merged into the original weights of llama"), "{told}");
}

#[test]
fn a_folder_of_bitsandbytes_is_trained_over_and_merged_without_further_words() {
    let home = home();
    home.done(&training("--model llama-nf4 --lora-r 2 --output-dir adapter"));
    let (_, told) = home.done("export --merge --model adapter --out merged");
    assert!(told.contains("the adapter was merged into the dequantised weights of llama-nf4"), "{told}");
    let why = error(&home, &training("--model llama-nf4"));
    assert!(why.contains("are quantised and cannot be trained; add --lora-r"), "{why}");
}
