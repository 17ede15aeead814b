//! No file breaks the budget: each crafted one ends in one error that names it, below the ceiling.
//!
//! Every file here was made to take far more memory, depth or time than its size lets one expect. The program is run with
//! a budget of 64 MiB, and the most it ever held is read from the kernel when it has ended. That figure begins with what
//! the process holds that starts it, so it is started by a process of its own, which is small. That one also ends the
//! program where it hangs.
#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking, and only libc tells the peak"
)]

use std::env;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

mod data;
mod graphs;
mod long_chains;
mod long_texts;
mod mixtures;
mod models;
#[path = "../support/mod.rs"]
mod support;
mod templates;
mod tokenizers;

use support::{Home, PATIENCE, in_time};

/// The budget of every run, and what its peak may lie above it: a page or two that were touched between two looks.
const BUDGET: &str = "--memory 64MiB";
const CEILING: u64 = (64 << 20) + (1 << 20);
/// The most seconds of the processor that a file may take.
const SECONDS: f64 = 20.0;
/// Limits of the system around a program, should it escape all of its own: seconds of the processor, bytes of addresses.
const OUTER: [(libc::__rlimit_resource_t, u64); 2] = [(libc::RLIMIT_CPU, 60), (libc::RLIMIT_AS, 32 << 30)];

const TRAIN: &str = "train --model model --data text.txt --max-steps 1 --seq-len 16 --global-batch 4 --threads 2 --report-to none";
const GENERATE: &str = "generate --model model --prompt aaaaaaaaaaaaaaaa --max-new-tokens 2 --threads 1";

/// How a process ended: its exit code, what it wrote to standard error, the most bytes it held, and the seconds of the
/// processor that it took.
struct Ended {
    code: Option<i32>,
    said: String,
    peak: u64,
    seconds: f64,
}

fn run(home: &Home, arguments: &str) -> Ended {
    let [said, peak] = ["said", "peak"].map(|name| home.path(name));
    let mut starter = support::hermetic(Command::new(env::current_exe().unwrap()), &home.path(""));
    starter.args(["--exact", "starts_the_program", "--ignored", "--nocapture"]).current_dir(home.path(""));
    starter.env("CEILING_ARGUMENTS", arguments);
    let output = starter.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ended: Value = serde_json::from_slice(&fs::read(peak).unwrap()).unwrap();
    let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
    assert!(ended["hung"] == false, "{arguments}: took longer than {PATIENCE:?}: {said:.2000}");
    Ended {
        code: ended["code"].as_i64().map(|code| code as i32),
        said,
        peak: ended["peak"].as_u64().unwrap(),
        seconds: ended["seconds"].as_f64().unwrap(),
    }
}

#[test]
#[ignore = "run by the others, in a process of its own"]
fn starts_the_program() {
    let Ok(arguments) = env::var("CEILING_ARGUMENTS") else { return };
    let program = env::var("CEILING_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_plimsoll").to_owned());
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: between fork and exec it calls nothing but setrlimit.
    unsafe { command.pre_exec(limit) };
    #[allow(clippy::zombie_processes, reason = "wait4 waits for it, and tells its peak")]
    let child = command.stderr(File::create("said").unwrap()).spawn().unwrap();
    let (status, usage, hung) = waited_for(child.id() as libc::pid_t);
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    let seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    let ended = json!({ "code": code, "peak": usage.ru_maxrss * 1024, "seconds": seconds, "hung": hung });
    fs::write("peak", ended.to_string()).unwrap();
}

/// Takes on the outer limits, in the process that becomes the program.
fn limit() -> std::io::Result<()> {
    for (resource, most) in OUTER {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the limit lives here.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The status and usage of a child that has ended, and whether it had to be killed.
fn waited_for(pid: libc::pid_t) -> (libc::c_int, libc::rusage, bool) {
    // SAFETY: a plain record of numbers, for which zeros are a value.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    // SAFETY: both out-parameters live here.
    let mut wait = |how| unsafe { libc::wait4(pid, &raw mut status, how, &raw mut usage) } == pid;
    let hung = in_time(|| wait(libc::WNOHANG).then_some(())).is_none();
    if hung {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        wait(0);
    }
    (status, usage, hung)
}

/// The program refuses a file: one line that names it, the exit code of a user's mistake, and no more memory than stated.
fn refused(home: &Home, what: &str, arguments: &str, file: &str) {
    refused_within(home, what, &format!("{arguments} {BUDGET}"), file);
}

/// As [`refused`], of a command that may have a budget or none.
fn refused_within(home: &Home, what: &str, arguments: &str, file: &str) {
    let Ended { code, said, peak, seconds } = run(home, arguments);
    let begins = said.starts_with("error: ") && said.contains(file);
    assert!(begins && said.lines().count() == 1 && said.len() < 1500, "{what}: {arguments}: {said:.2000}");
    assert!(!said.contains("panicked") && code == Some(2), "{what}: {arguments}: {code:?} {said}");
    assert!(peak <= CEILING, "{what}: {arguments}: reached {} KiB: {said}", peak >> 10);
    assert!(seconds <= SECONDS, "{what}: {arguments}: took {seconds} s: {said}");
}

/// The program may take the file or refuse it, but keeps to the budget and does not crash.
fn bounded(home: &Home, what: &str, arguments: &str) {
    let Ended { code, said, peak, seconds } = run(home, &format!("{arguments} {BUDGET}"));
    assert!(
        matches!(code, Some(0 | 2)) && !said.contains("panicked"),
        "{what}: {arguments}: {code:?} {said:.2000}"
    );
    assert!(peak <= CEILING, "{what}: {arguments}: reached {} KiB: {said:.2000}", peak >> 10);
    assert!(seconds <= SECONDS, "{what}: {arguments}: took {seconds} s: {said:.2000}");
}

/// The budget that an error names, in MiB.
fn named(said: &str) -> u64 {
    let number = said.split("--memory ").nth(1).and_then(|rest| rest.split("MiB").next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no budget in: {said}"))
}

/// Writes a file piece by piece.
fn written(path: &Path, write: impl FnOnce(&mut BufWriter<File>)) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    write(&mut out);
    out.flush().unwrap();
}

/// Repeats a text until there are `bytes` of it.
fn fill(out: &mut impl Write, text: &str, bytes: usize) {
    for _ in 0..bytes / text.len() {
        out.write_all(text.as_bytes()).unwrap();
    }
}

fn sparse(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

/// JSON of that many lists in each other.
fn deep(open: &str, inner: &str, close: &str, depth: usize) -> String {
    [open.repeat(depth).as_str(), inner, &close.repeat(depth)].concat()
}

#[test]
fn settings_plans_states_and_tables_beyond_reason_are_refused() {
    let home = Home::with_model();
    for (what, text) in [
        ("deep lists", format!("x = {}", deep("[", "", "]", 100_000))),
        ("deep tables", format!("x = {}", deep("{a = ", "1", "}", 100_000))),
        ("a deep key", format!("{} = 1", vec!["a"; 200_000].join("."))),
        ("deep headers", format!("[{}]", vec!["a"; 200_000].join("."))),
    ] {
        home.write("s.toml", text);
        refused(&home, what, "plan --settings s.toml", "s.toml");
    }
    sparse(&home.path("s.toml"), 1 << 33);
    refused(&home, "8 GiB of settings", "plan --settings s.toml", "s.toml");

    let plan = "train --max-steps 1 --plan p.json";
    home.write("p.json", deep("[", "", "]", 200_000));
    refused(&home, "a deep plan", plan, "p.json");
    sparse(&home.path("p.json"), 1 << 33);
    refused(&home, "a plan of 8 GiB", plan, "p.json");
    written(&home.path("p.json"), |out| {
        out.write_all(b"[0").unwrap();
        fill(out, ",{}", 60_000_000);
        out.write_all(b"]").unwrap();
    });
    refused(&home, "a plan of 20 million objects", plan, "p.json");

    home.done(&format!("{TRAIN} --output-dir out {BUDGET}"));
    let resume = TRAIN.replace("--max-steps 1", "--max-steps 2 --output-dir out --resume out/checkpoint-1");
    let state = "out/checkpoint-1/trainer_state.json";
    for (what, text) in
        [("a deep state", deep("[", "", "]", 200_000)), ("a state of lists", "[[],".repeat(5_000_000))]
    {
        home.write(state, text);
        refused(&home, what, &resume, "checkpoint-1");
    }
    sparse(&home.path(state), 1 << 33);
    refused(&home, "a state of 8 GiB", &resume, "checkpoint-1");

    // These commands have no budget of their own.
    for (command, file) in [("layout t.csv", "t.csv"), ("plan --dag g.json --memory 1GiB", "g.json")] {
        sparse(&home.path(file), 1 << 33);
        refused_within(&home, "8 GiB", command, file);
        home.write(file, deep("[", "", "]", 200_000));
        refused_within(&home, "a deep list", command, file);
    }
}
