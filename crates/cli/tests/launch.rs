//! Processes that a launcher starts together: a program that cannot find the others trains nothing, and says so once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
use std::process::Command;

use support::{Home, texts, training};

/// The variables by which each launcher tells a process its number and how many there are, and one more that it sets.
const LAUNCHERS: [(&str, [&str; 3]); 4] = [
    ("mpirun", ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
    ("mpiexec", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"]),
    ("srun", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"]),
    ("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
];

/// A command as a launcher starts it.
fn launched(mut command: Command, [rank, ranks, here]: [&str; 3], of: [usize; 2]) -> Command {
    command.env(rank, of[0].to_string()).env(ranks, of[1].to_string()).env(here, of[0].to_string());
    command
}

/// Whether a launcher's processes could find each other in this build.
fn would_begin_mpi(launcher: &str) -> bool {
    cfg!(feature = "mpi") && launcher != "torchrun"
}

#[test]
fn processes_that_cannot_find_each_other_train_nothing_and_one_of_them_says_so() {
    let home = Home::with_model();
    for (launcher, variables) in LAUNCHERS.into_iter().filter(|(launcher, _)| !would_begin_mpi(launcher)) {
        for rank in 0..3 {
            let command = home.command(&training("--output-dir out"));
            let output = launched(command, variables, [rank, 3]).output().unwrap();
            let (out, err) = texts(&output);
            assert_eq!(out, "", "{launcher}, rank {rank}");
            if rank == 0 {
                assert_eq!(output.status.code(), Some(2), "{err}");
                let begin = format!("error: {launcher} started 3 processes ({}=3), and ", variables[1]);
                assert!(err.starts_with(&begin), "{err}");
                assert!(err.contains("`--ranks 3`") && err.lines().count() == 1, "{err}");
            } else {
                assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{launcher}, rank {rank}");
            }
            assert!(!home.path("out").exists(), "{launcher}, rank {rank}");
        }
    }
}

#[test]
fn a_world_of_one_process_trains_as_without_a_launcher() {
    let home = Home::with_model();
    let command = home.command(&training("--output-dir out"));
    let output = launched(command, LAUNCHERS[0].1, [0, 1]).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert!(home.path("out/model.safetensors").exists());
}

#[test]
fn other_commands_work_in_the_first_process_alone() {
    let home = Home::with_model();
    let plan = "plan --model model --seq-len 16 --memory 64MiB --threads 1 --out plan.json";
    let silent = launched(home.command(plan), LAUNCHERS[0].1, [1, 2]).output().unwrap();
    assert_eq!((silent.status.code(), texts(&silent)), (Some(0), (String::new(), String::new())));
    assert!(!home.path("plan.json").exists());
    let planned = launched(home.command(plan), LAUNCHERS[0].1, [0, 2]).output().unwrap();
    assert!(planned.status.success() && home.path("plan.json").exists(), "{}", texts(&planned).1);
}

#[test]
fn a_wrong_flag_is_told_by_the_first_process_alone() {
    let home = Home::with_model();
    let of = |rank| launched(home.command("train --modle x"), LAUNCHERS[3].1, [rank, 2]).output().unwrap();
    assert!(texts(&of(0)).1.contains("--modle"));
    assert_eq!((of(1).status.code(), texts(&of(1)).1), (Some(0), String::new()));
}
