//! Fifty times `kill -9` at random instants of training and saving: every later run resumes from a whole checkpoint, and
//! the last one ends in the bits of an undisturbed run. Another test fills the disk.
//!
//! The runs that are killed are processes of their own: this very binary, asked by an environment variable to be one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use plimsoll_exec::random::{Stream, name_hash};
use tempfile::TempDir;

use crate::running::{bits, latest, open, pinned, save, take, trainer, write_text};
use crate::support::names;

const KILLS: u32 = 50;
/// Steps between two checkpoints: few, so that about every other kill falls into a save.
const SAVE_EVERY: u64 = 10;
/// The test that such a process is asked for.
const CHILD: [&str; 2] = ["kill::child", "--exact"];
const FOLDER: &str = "PLIMSOLL_TEST_FOLDER";
const LAST_STEP: &str = "PLIMSOLL_TEST_LAST_STEP";

/// Trains from the latest checkpoint to `last` or for ever, saving on the way.
fn train(folder: &Path, last: u64) {
    let checkpoints = open(&folder.join("out"), Some(2)).unwrap();
    let mut trainer = trainer(&folder.join("data.txt"), &pinned());
    if let Some(checkpoint) = latest(&checkpoints) {
        trainer.resume(&checkpoints, &checkpoint).unwrap();
    }
    while trainer.run().steps() < last {
        let step = trainer.step().unwrap().step;
        if step.is_multiple_of(SAVE_EVERY) {
            save(&trainer, &checkpoints);
        }
    }
}

/// Not a test: the code that the processes below run.
#[test]
fn child() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let last = std::env::var(LAST_STEP).ok().and_then(|last| last.parse().ok());
        train(Path::new(&folder), last.unwrap_or(u64::MAX));
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHILD).env(FOLDER, folder).stdout(Stdio::null());
    command
}

/// Whether a process ended by itself, and well.
fn ended_well(mut child: Child) -> bool {
    child.wait().unwrap().success()
}

#[test]
fn fifty_kills_change_no_bit() {
    let folder = TempDir::new().unwrap();
    let (data, output) = (write_text(folder.path()), folder.path().join("out"));
    let random = Stream::new(5, name_hash("kills"), 0);
    let (mut in_saves, mut furthest) = (0, 0);
    for kill in 0..KILLS {
        let mut child = command(folder.path()).spawn().unwrap();
        sleep(Duration::from_micros(u64::from(random.bits(kill, 0) % 400_000)));
        assert!(child.try_wait().unwrap().is_none(), "the run before kill {kill} failed to go on");
        child.kill().unwrap();
        child.wait().unwrap();
        in_saves += usize::from(names(&output).iter().any(|name| name.starts_with(".tmp-checkpoint-")));
        if output.exists() {
            let reached = latest(&open(&output, None).unwrap()).map_or(0, |checkpoint| checkpoint.state.step);
            assert!(reached >= furthest, "kill {kill} took the run from step {furthest} back to {reached}");
            furthest = reached;
        }
    }
    assert!(in_saves > 0 && furthest > 0, "{in_saves} kills fell into a save, {furthest} steps were saved");
    let last = furthest + SAVE_EVERY;
    assert!(ended_well(command(folder.path()).env(LAST_STEP, last.to_string()).spawn().unwrap()));

    let mut undisturbed = trainer(&data, &pinned());
    take(&mut undisturbed, last);
    let checkpoints = open(&output, None).unwrap();
    let mut interrupted = trainer(&data, &pinned());
    interrupted.resume(&checkpoints, &latest(&checkpoints).unwrap()).unwrap();
    assert_eq!(interrupted.run().steps(), last);
    assert!(bits(&interrupted) == bits(&undisturbed), "after {last} steps");
}

#[test]
fn a_disk_that_fills_up_leaves_the_checkpoint_before_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    write_text(folder.path());
    let output = folder.path().join("out");
    train(folder.path(), SAVE_EVERY);
    // No file may grow beyond so many blocks of 512 bytes: first not even weights fit, then only they do.
    let weights = fs::metadata(output.join("checkpoint-10/model.safetensors")).unwrap().len();
    for blocks in [1, weights / 512 + 1] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let program: PathBuf = std::env::current_exe().unwrap();
        let limited = Command::new("sh")
            .args(["-c", &script, program.to_str().unwrap()])
            .args(CHILD)
            .arg("--nocapture")
            .envs([(FOLDER, folder.path().as_os_str()), (LAST_STEP, "30".as_ref())])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&limited.stderr).into_owned();
        assert!(!limited.status.success() && told.contains("File too large"), "{told}");
        assert_eq!(names(&output), ["checkpoint-10"]);
        assert_eq!(latest(&open(&output, None).unwrap()).unwrap().state.step, 10);
    }
}
