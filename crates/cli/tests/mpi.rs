//! `mpirun -n N plimsoll train`: the bits of thread ranks, one set of files, one error, and no rank outlives a failed one.
//!
//! These tests need an installed Open MPI and a program with the feature `mpi`; `scripts/mpi.sh` runs them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use support::{Home, mpirun, process_of_rank, texts, wait_until};

/// Two epochs of a small text, with rows that end before the others, clipped at every step.
const RUN: &str = "train --model model --data text.txt --seq-len 16 --global-batch 8 --micro-batch 1 --memory 128MiB \
                   --max-steps 6 --save-steps 3 --threads 1 --report-to none --max-grad-norm 0.25 --learning-rate 0.01";

fn done(home: &Home, ranks: usize, arguments: &str) -> String {
    let output = mpirun(home, ranks, arguments).output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.success(), "{ranks} ranks, {arguments}: {err}");
    err
}

/// Lines that plimsoll itself wrote about an error; the rest of them are the launcher's.
fn errors(output: &Output) -> Vec<String> {
    let (_, err) = texts(output);
    err.lines().filter(|line| line.starts_with("error: ")).map(str::to_owned).collect()
}

/// Files of a run that must not depend on where its ranks live.
fn results(home: &Home, run: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for folder in [run.to_owned(), format!("{run}/checkpoint-3"), format!("{run}/checkpoint-6")] {
        for entry in fs::read_dir(home.path(&folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                let name = path.strip_prefix(home.path(run)).unwrap().display().to_string();
                files.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// Trains the same run on threads and on processes.
fn agree(ranks: usize, settings: &str) {
    agree_in(&Home::with_model(), RUN, ranks, settings);
}

fn agree_in(home: &Home, run: &str, ranks: usize, settings: &str) {
    home.done(&format!("{run} {settings} --ranks {ranks} --output-dir threads"));
    let told = done(home, ranks, &format!("{run} {settings} --output-dir processes"));
    assert_eq!(told.matches("effective batch").count(), 1, "one process prints: {told}");
    assert_eq!(home.losses("processes"), home.losses("threads"), "{ranks} ranks, {settings}");
    let (threads, processes) = (results(home, "threads"), results(home, "processes"));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&processes), names(&threads));
    assert!(processes.len() >= 3 && processes == threads, "{ranks} ranks, {settings}: files differ");
}

#[test]
fn processes_have_the_bits_of_threads_at_every_stage() {
    for (ranks, stage) in [(2, 0), (4, 0), (2, 1), (4, 1), (2, 2), (4, 2), (2, 3), (4, 3)] {
        agree(ranks, &format!("--zero-stage {stage}"));
    }
}

#[test]
fn processes_have_the_bits_of_threads_with_adapters() {
    agree(2, "--lora-r 4 --lora-dropout 0.1 --zero-stage 1");
}

#[test]
fn processes_have_the_bits_of_threads_with_dropout() {
    let home = Home::with_model();
    // GPT-2 has dropout of a tenth at its embeddings, attention and branches.
    let gpt2 = r#"{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 259}"#;
    home.write("gpt2.json", gpt2);
    agree_in(&home, &RUN.replace("--model model", "--config gpt2.json"), 2, "--zero-stage 1");
}

#[test]
fn a_run_of_processes_resumes_as_if_never_interrupted_and_at_another_number_of_ranks() {
    let home = Home::with_model();
    done(&home, 2, &format!("{RUN} --zero-stage 1 --output-dir whole"));
    done(&home, 2, &format!("{RUN} --zero-stage 1 --output-dir parts --stop-after 3"));
    done(&home, 2, &format!("{RUN} --zero-stage 1 --output-dir parts --resume latest"));
    assert!(results(&home, "parts") == results(&home, "whole"));
    home.done(&format!("{RUN} --output-dir parts --resume latest"));
}

#[test]
fn one_process_under_the_launcher_trains_alone() {
    let home = Home::with_model();
    done(&home, 1, &format!("{RUN} --output-dir processes"));
    home.done(&format!("{RUN} --output-dir alone"));
    assert!(results(&home, "processes") == results(&home, "alone"));
}

/// Two processes with different arguments.
fn different(home: &Home, second: &str) -> Output {
    let mut command = mpirun(home, 1, &format!("{RUN} --output-dir out"));
    command.args([":", "-n", "1", env!("CARGO_BIN_EXE_plimsoll")]).args(second.split_whitespace());
    command.output().unwrap()
}

#[test]
fn ranks_that_differ_are_refused_with_the_difference() {
    let home = Home::with_model();
    home.write("other.txt", "another text that is long enough for a few rows of sixteen tokens. ".repeat(40));
    let cases = [
        (
            format!("{RUN} --output-dir out --weight-decay 0.5"),
            "error: rank 1 ended: its --weight-decay is 0.5, and that of rank 0 is ",
        ),
        (RUN.replace("text.txt", "other.txt") + " --output-dir out", "error: rank 1 ended: its --data is "),
        (RUN.replace("--max-steps", "--max-stips"), "error: rank 1 ended: "),
    ];
    for (second, expected) in cases {
        let output = different(&home, &second);
        let told = errors(&output);
        assert!(!output.status.success(), "{second}");
        assert_eq!(told.len(), 1, "{}", texts(&output).1);
        assert!(told[0].starts_with(expected), "{told:?}");
    }
    let mut refused = mpirun(&home, 2, &format!("{RUN} --ranks 3"));
    let told = errors(&refused.output().unwrap());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("mpirun started 2 processes; leave --ranks out"), "{told:?}");
}

#[test]
fn another_build_of_the_program_is_refused_as_a_rank() {
    let home = Home::with_model();
    let other = home.path("plimsoll-other");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &other).unwrap();
    fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"x").unwrap();
    let mut command = mpirun(&home, 1, &format!("{RUN} --output-dir out"));
    command.args([":", "-n", "1"]).arg(&other).args(RUN.split_whitespace()).args(["--output-dir", "out"]);
    let output = command.output().unwrap();
    let told = errors(&output);
    assert!(!output.status.success());
    assert_eq!(told.len(), 1, "{}", texts(&output).1);
    assert!(told[0].starts_with("error: rank 1 ended: its program is version "), "{told:?}");
    assert!(told[0].contains(", and that of rank 0 is version "), "{told:?}");
    assert!(!home.path("out/checkpoint-3").exists(), "nothing is trained");
}

/// Starts a run without an end, and waits for its first checkpoint; returns the process ids of its ranks.
fn under_way(home: &Home, ranks: usize, rest: &str) -> (Child, Vec<String>) {
    let long =
        RUN.replace("--max-steps 6", "--max-steps 100000").replace("--save-steps 3", "--save-steps 20");
    let arguments = format!("{long} --output-dir out --save-total-limit 2 {rest}");
    let mut command = mpirun(home, ranks, &arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let saved = home.path("out/checkpoint-20/trainer_state.json");
    wait_until("the first checkpoint", || saved.exists());
    (child, (0..ranks).map(|rank| process_of_rank(home, rank).unwrap()).collect())
}

fn signal(kind: &str, process: &str) {
    assert!(Command::new("kill").args([kind, process]).status().unwrap().success());
}

#[test]
fn a_rank_that_is_killed_ends_all_and_the_run_goes_on_from_its_last_checkpoint() {
    for (ranks, killed) in [(2, 0), (4, 1), (4, 3)] {
        let home = Home::with_model();
        let (child, processes) = under_way(&home, ranks, "--zero-stage 2");
        signal("-KILL", &processes[killed]);
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "rank {killed}");
        let told = texts(&output).1;
        assert!(told.contains(&format!("rank {killed} ")), "the launcher names it: {told}");
        let resumed = RUN.replace("--max-steps 6", "--max-steps 100000");
        let resumed = format!("{resumed} --zero-stage 2 --resume latest --output-dir out");
        let last = fs::read_dir(home.path("out")).unwrap().filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_prefix("checkpoint-")?.parse::<u64>().ok()
        });
        let last = last.max().unwrap();
        done(&home, ranks, &format!("{resumed} --stop-after {}", last + 1));
    }
}

#[test]
fn a_rank_that_is_stopped_ends_all_with_one_error_that_names_it() {
    for stopped in [1, 0] {
        let home = Home::with_model();
        let (child, ranks) = under_way(&home, 2, "--ddp-timeout 2");
        signal("-STOP", &ranks[stopped]);
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        // The launcher wakes a rank before it ends it, so that the rank may still repeat what it was told.
        let mut told = errors(&output);
        told.dedup();
        assert_eq!(told.len(), 1, "{}", texts(&output).1);
        assert!(told[0].starts_with(&format!("error: rank {stopped} has ")), "{told:?}");
    }
}
