//! Processes that a launcher starts together: with an address they are ranks of one run; a program that cannot find the others
//! trains nothing, and says so once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use support::{Home, texts, training, wait_until};

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
                let begin =
                    format!("error: {launcher} started 3 processes ({}=3), which cannot", variables[1]);
                assert!(err.starts_with(&begin), "{err}");
                assert!(err.contains("MASTER_PORT") && err.contains("`--ranks 3`"), "{err}");
                assert_eq!(err.lines().count(), 1, "{err}");
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

/// Two epochs of a small text, with rows that end before the others, clipped at every step.
const RUN: &str = "train --model model --data text.txt --seq-len 16 --micro-batch 1 --memory 128MiB --save-steps 3 --threads 1 \
                   --report-to none --max-grad-norm 0.25 --learning-rate 0.01";

/// Processes as `torchrun` starts them on one machine, rank 0 last.
fn torchrun(home: &Home, ranks: usize, arguments: &str) -> Vec<Child> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let of = |rank: usize| {
        let mut command = launched(home.command(arguments), LAUNCHERS[3].1, [rank, ranks]);
        command.env("LOCAL_WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut processes: Vec<Child> = (0..ranks).rev().map(of).collect();
    processes.reverse();
    processes
}

fn ended(processes: Vec<Child>) -> Vec<Output> {
    processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect()
}

#[test]
fn processes_that_meet_at_an_address_train_as_threads_do() {
    for (ranks, settings) in [
        (2, "--zero-stage 0 --global-batch 8 --max-steps 6"),
        (3, "--zero-stage 2 --global-batch 6 --max-steps 6"),
    ] {
        let home = Home::with_model();
        home.done(&format!("{RUN} {settings} --ranks {ranks} --output-dir threads"));
        let outputs = ended(torchrun(&home, ranks, &format!("{RUN} {settings} --output-dir processes")));
        for (rank, output) in outputs.iter().enumerate() {
            let (out, err) = texts(output);
            assert!(output.status.success(), "rank {rank}: {err}");
            assert_eq!(rank == 0, !out.is_empty() || !err.is_empty(), "rank {rank}: {out}{err}");
        }
        assert_eq!(home.losses("processes"), home.losses("threads"), "{ranks} ranks");
        let read = |run: &str| std::fs::read(home.path(run).join("model.safetensors")).unwrap();
        assert!(read("processes") == read("threads"), "{ranks} ranks: weights differ");
    }
}

/// The smallest `--memory` in MiB that works for two ranks, as the refusal of one that does not names it.
fn smallest_memory(home: &Home, arguments: &str) -> u64 {
    let refused = home.command(&format!("plan --ranks 2 --memory 1MiB {arguments}")).output().unwrap();
    let (_, said) = texts(&refused);
    let figure = said.split("`--memory ").nth(1).and_then(|rest| rest.split("MiB`").next());
    figure.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("{arguments}: {said}"))
}

#[test]
fn ranks_with_a_disk_train_to_the_same_bits_in_a_budget_that_is_too_small_without_one() {
    let home = Home::with_model();
    let fixed = "--global-batch 32 --micro-batch 16 --threads 2 --seed 3 --zero-stage 3";
    let disk = format!("{fixed} --offload disk --offload-folder .");
    let [with, without] = [&disk, fixed].map(|arguments| smallest_memory(&home, arguments));
    assert!(with + 4 < without, "{with} MiB with a disk, {without} MiB without");
    let train = format!("train --synthetic --max-steps 3 --report-to none {fixed}");
    home.done(&format!("{train} --ranks 2 --memory 1GiB --output-dir whole"));
    let train = format!("train --synthetic --max-steps 3 --report-to none {disk}");
    let memory = with.midpoint(without);
    let (_, told) = home.done(&format!("{train} --ranks 2 --memory {memory}MiB --output-dir threads"));
    assert!(told.contains("\neach rank offloads to disk: "), "{told}");
    // A process sets 32 MiB aside for messages.
    let memory = memory + 32;
    let outputs = ended(torchrun(&home, 2, &format!("{train} --memory {memory}MiB --output-dir processes")));
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", texts(output).1);
    }
    assert!(texts(&outputs[0]).1.contains("each rank offloads to disk: "), "{}", texts(&outputs[0]).1);
    for run in ["threads", "processes"] {
        assert_eq!(home.losses(run), home.losses("whole"), "{run}");
        assert!(
            home.read(&format!("{run}/model.safetensors")) == home.read("whole/model.safetensors"),
            "{run}"
        );
    }
}

#[test]
fn a_process_that_is_killed_ends_the_others_at_once_with_its_number() {
    let home = Home::with_model();
    let mut processes =
        torchrun(&home, 2, &format!("{RUN} --global-batch 8 --max-steps 100000 --output-dir out"));
    wait_until("the first checkpoint", || home.path("out/checkpoint-3").exists());
    processes[1].kill().unwrap();
    let outputs = ended(processes);
    assert!(!outputs[0].status.success());
    let (_, err) = texts(&outputs[0]);
    assert!(err.contains("rank 1 has closed its connection"), "{err}");
}

#[test]
fn processes_with_other_settings_are_refused_with_the_difference() {
    let home = Home::with_model();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let of = |rank: usize| {
        let settings = format!("{RUN} --global-batch 8 --max-steps 6 --output-dir out --seed {rank}");
        let mut command = launched(home.command(&settings), LAUNCHERS[3].1, [rank, 2]);
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let outputs = ended(vec![of(0), of(1)]);
    let (_, err) = texts(&outputs[0]);
    assert!(err.contains("its --seed is 1, and that of rank 0 is 0"), "{err}");
    assert!(outputs.iter().all(|output| !output.status.success()));
}
