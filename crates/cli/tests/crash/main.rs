//! A run that trains, evaluates, saves, rotates, goes on, offloads and exports, struck at points spread over its calls:
//! killed, or a call fails, or the power is cut. After each, the same command ends in the bits of an undisturbed run, and
//! leaves no temporary files.
//!
//! Here the points are few. `scripts/crash` asks for more, up to every call, through `PLIMSOLL_CRASH_POINTS` (points of each
//! phase), `PLIMSOLL_CRASH_SEED` (where they begin, and what a power cut leaves) and `PLIMSOLL_CRASH_RANDOM` (points are drawn and
//! not spread).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;

mod power;
mod shim;
#[path = "../support/mod.rs"]
mod support;
use power::{Disk, Random, Record, is_checkpoint, records};
use shim::{Strike, WATCHED, run, shim};
use support::{Home, names, texts};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Arguments of all runs: evaluations that find a new best, a limit that removes older checkpoints, adapters to export.
const TRAIN: &str = "train --model model --data text.txt --eval-data text.txt --eval-steps 2 --max-eval-samples 4 \
                     --max-steps 7 --save-steps 3 --save-total-limit 1 --lora-r 2 --learning-rate 0.01 --global-batch 4 \
                     --micro-batch 4 --threads 1 --output-dir run/out --resume latest";
const EXPORT: &str = "export --merge --model model --adapter run/out --out run/merged";

/// How a run is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The budget has room for everything.
    Roomy,
    /// The budget is so narrow that activations wait on the disk.
    Offloaded,
}

impl Scenario {
    fn train(self) -> String {
        let rest = match self {
            Scenario::Roomy => "--seq-len 16 --memory 64MiB --report-to tensorboard,html",
            Scenario::Offloaded => {
                "--seq-len 512 --memory 35MiB --report-to none --recompute none --offload disk --offload-folder run"
            }
        };
        format!("{TRAIN} {rest}")
    }
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// From the beginning of the run to a pause.
    First,
    /// From the pause to the end of the run.
    Second,
    /// The merged model.
    Export,
}

impl Phase {
    const ALL: [Phase; 3] = [Phase::First, Phase::Second, Phase::Export];

    fn command(self, scenario: Scenario) -> String {
        match self {
            Phase::First => format!("{} --stop-after 4", scenario.train()),
            Phase::Second => scenario.train(),
            Phase::Export => EXPORT.to_owned(),
        }
    }
}

/// The undisturbed run.
struct Undisturbed {
    scenario: Scenario,
    home: Home,
    shim: &'static Path,
    /// The number of calls in each phase.
    calls: Vec<u64>,
}

impl Undisturbed {
    /// Runs all phases; the watched folder is kept as it was before each.
    fn new(scenario: Scenario) -> Option<Undisturbed> {
        let shim = shim()?;
        let (home, mut calls) = (home(), Vec::new());
        for phase in Phase::ALL {
            copy(&home.path(WATCHED), &home.path(&format!("before-{phase:?}")));
            let (output, count) = run(&home, shim, &phase.command(scenario), Strike::Never, None);
            let (_, said) = texts(&output);
            assert!(output.status.success(), "{phase:?}: {said}");
            let offloads = said.contains("\noffload to disk: ") && !said.contains("nothing has to leave");
            assert!(
                offloads == (scenario == Scenario::Offloaded) || phase == Phase::Export,
                "the budget is too much or too little for this test: {said}"
            );
            calls.push(count);
        }
        assert!(calls.iter().all(|&calls| calls > 50), "{calls:?}");
        Some(Undisturbed { scenario, home, shim, calls })
    }

    /// A home that stands before a phase.
    fn before(&self, phase: Phase) -> Home {
        let home = home();
        fs::remove_dir(home.path(WATCHED)).unwrap();
        copy(&self.home.path(&format!("before-{phase:?}")), &home.path(WATCHED));
        home
    }

    /// Runs the commands that remain after a strike to their end in a home, and compares the results.
    fn recover(&self, home: &Home, struck: Phase, what: &str) {
        for phase in [Phase::Second, Phase::Export].into_iter().filter(|phase| struck <= *phase) {
            let output = home.command(&phase.command(self.scenario)).output().unwrap();
            assert!(output.status.success(), "after {what}: {}", texts(&output).1);
        }
        for file in ["out/adapter_model.safetensors", "merged/model.safetensors"] {
            let [got, expected] = [home, &self.home].map(|home| home.read(&format!("{WATCHED}/{file}")));
            assert!(got == expected, "{file} differs after {what}");
        }
        for folder in ["", "out", "merged"] {
            let [got, expected] = [home, &self.home].map(|home| names(&home.path(WATCHED).join(folder)));
            assert_eq!(got, expected, "after {what}");
        }
    }

    /// Points spread over the calls of a phase, or drawn from them; the same in every run of one seed.
    fn points(&self, phase: Phase, most: u64) -> Vec<u64> {
        let place = Phase::ALL.iter().position(|known| *known == phase).unwrap();
        let calls = self.calls[place];
        if number("PLIMSOLL_CRASH_RANDOM").is_some() {
            let mut random = Random(seed() + place as u64);
            return (0..most).map(|_| 1 + random.below(calls)).collect();
        }
        let stride = (calls / most).max(1);
        (1 + seed() % stride..=calls).step_by(stride as usize).collect()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn seed() -> u64 {
    number("PLIMSOLL_CRASH_SEED").unwrap_or(7)
}

/// Points of each phase: `few` in the ordinary tests.
fn most(few: u64) -> u64 {
    number("PLIMSOLL_CRASH_POINTS").unwrap_or(few)
}

fn home() -> Home {
    let home = Home::with_model();
    home.set("model/config.json", "max_position_embeddings", 512.into());
    fs::create_dir(home.path(WATCHED)).unwrap();
    home
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The newest checkpoint of a run that was paused, if any.
fn newest_checkpoint(home: &Home) -> Option<PathBuf> {
    let folder = home.path(WATCHED).join("out");
    let checkpoints =
        names(&folder).into_iter().map(|name| folder.join(name)).filter(|path| is_checkpoint(path));
    checkpoints.max()
}

/// A command that met a fault ends well or with one sentence, never by a panic or an abort.
fn ended_in_words(output: &Output, what: &str) {
    let (_, err) = texts(output);
    let code = output.status.code();
    assert!(matches!(code, Some(0..=2)), "{what}: {:?} {err}", output.status);
    let sentences = err.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(sentences, usize::from(code != Some(0)), "{what}: {err}");
}

/// Kills a run at points of its phases and takes it to its end.
fn kill(scenario: Scenario, phases: &[Phase], few: u64) {
    let Some(undisturbed) = Undisturbed::new(scenario) else { return };
    for &phase in phases {
        for point in undisturbed.points(phase, most(few)) {
            let home = undisturbed.before(phase);
            let command = phase.command(scenario);
            let (output, calls) = run(&home, undisturbed.shim, &command, Strike::Kill(point), None);
            let what = format!("a kill at call {point} of {phase:?}, {scenario:?}");
            // Threads transfer to the tier in any order, so a run may make fewer calls than the one that was counted.
            let killed = output.status.signal() == Some(9) || calls < point;
            assert!(killed, "{what}: {}", texts(&output).1);
            undisturbed.recover(&home, phase, &what);
            assert_eq!(home.losses("run/out"), undisturbed.home.losses("run/out"), "after {what}");
        }
    }
}

/// Lets calls of a run fail, one or all from a point on, and takes it to its end.
fn fail(scenario: Scenario, phases: &[Phase], few: u64) {
    let Some(undisturbed) = Undisturbed::new(scenario) else { return };
    for &phase in phases {
        for (count, point) in undisturbed.points(phase, most(few)).into_iter().enumerate() {
            let home = undisturbed.before(phase);
            let strike = match count % 2 {
                0 => Strike::Fail(point, EIO),
                _ => Strike::Last(point, ENOSPC, ""),
            };
            let (output, _) = run(&home, undisturbed.shim, &phase.command(scenario), strike, None);
            let what = format!("{strike:?} in {phase:?}, {scenario:?}");
            ended_in_words(&output, &what);
            undisturbed.recover(&home, phase, &what);
            assert_eq!(home.losses("run/out"), undisturbed.home.losses("run/out"), "after {what}");
        }
    }
}

#[test]
fn a_kill_at_any_call_changes_no_bit_and_leaves_no_litter() {
    kill(Scenario::Roomy, &Phase::ALL, 4);
}

#[test]
fn a_call_that_fails_is_a_sentence_and_loses_nothing() {
    fail(Scenario::Roomy, &Phase::ALL, 4);
}

#[test]
fn a_run_that_offloads_survives_kills_and_failing_calls() {
    kill(Scenario::Offloaded, &[Phase::Second], 2);
    fail(Scenario::Offloaded, &[Phase::Second], 2);
}

#[test]
fn a_power_cut_at_any_change_loses_no_more_than_steps_that_are_taken_again() {
    let Some(undisturbed) = Undisturbed::new(Scenario::Roomy) else { return };
    for phase in [Phase::First, Phase::Second] {
        let home = undisturbed.before(phase);
        let mut disk = Disk::of(&home.path(WATCHED));
        if let Some(checkpoint) = newest_checkpoint(&home) {
            disk.count_on(checkpoint);
        }
        let log = home.path("log");
        let command = phase.command(Scenario::Roomy);
        let (output, _) = run(&home, undisturbed.shim, &command, Strike::Never, Some(&log));
        assert!(output.status.success());
        let records = records(&log);
        let stride = (records.len() as u64 / most(5)).max(1);
        for (at, record) in (1..).zip(&records) {
            disk.apply(record);
            let what = format!("a power cut after change {at} of {phase:?}");
            assert!(disk.saved_is_synced(), "{what} loses {:?}, which was saved", disk.saved());
            if at % stride != seed() % stride {
                continue;
            }
            let struck = undisturbed.before(phase);
            fs::remove_dir_all(struck.path(WATCHED)).unwrap();
            disk.cut(&struck.path(WATCHED), &mut Random(seed() + at));
            assert!(disk.saved_is_in(&struck.path(WATCHED)), "{what} loses {:?}", disk.saved());
            undisturbed.recover(&struck, phase, &what);
            assert_eq!(struck.losses("run/out"), undisturbed.home.losses("run/out"), "after {what}");
        }
        disk.end_of_saving();
        assert!(disk.saved().is_some(), "{phase:?} saved no checkpoint");
        assert!(disk.saved_is_synced(), "a power cut after {phase:?} loses {:?}", disk.saved());
    }
}

#[test]
fn a_run_that_forgets_to_sync_a_folder_is_seen_to_lose_its_checkpoint() {
    let Some(shim) = shim() else { return };
    let home = home();
    let (before, log) = (Disk::of(&home.path(WATCHED)), home.path("log"));
    let (output, _) = run(&home, shim, &Phase::First.command(Scenario::Roomy), Strike::Never, Some(&log));
    assert!(output.status.success(), "{}", texts(&output).1);
    let records = records(&log);
    let loses = |forgotten: &dyn Fn(&Record) -> bool| {
        let (mut disk, mut lost) = (before.clone(), false);
        for record in records.iter().filter(|record| !forgotten(record)) {
            disk.apply(record);
            lost |= !disk.saved_is_synced();
        }
        disk.end_of_saving();
        lost || !disk.saved_is_synced()
    };
    assert!(!loses(&|_| false), "the run itself loses nothing");
    let root = home.path(WATCHED);
    // The parent of a new output folder, the folder that checkpoints lie in, and the checkpoint's own.
    assert!(loses(&|record| record.syncs_a_folder() && record.path() == root));
    assert!(loses(&|record| record.syncs_a_folder() && record.path() == root.join("out")));
    assert!(loses(&|record| record.syncs_a_folder() && record.path().parent() == Some(&root.join("out"))));
}

#[test]
fn event_files_that_cannot_be_written_are_dropped_and_metrics_that_cannot_end_the_run_saved() {
    let Some(shim) = shim() else { return };
    let home = home();
    let train = "train --model model --data text.txt --max-steps 6 --save-steps 100 --seq-len 16 --global-batch 4 --memory \
                 64MiB --threads 1 --output-dir run/";
    home.done(&format!("{train}whole"));
    let strike = |at, only| Strike::Last(at, ENOSPC, only);
    // The first calls open the file and write its version.
    let (output, _) = run(&home, shim, &format!("{train}events"), strike(4, "tfevents"), None);
    let (_, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    assert_eq!(err.matches("note: TensorBoard's file from here on is not written (").count(), 1, "{err}");
    let weights = |run: &str| home.read(&format!("run/{run}/model.safetensors"));
    assert!(weights("events") == weights("whole"));

    let (output, _) = run(&home, shim, &format!("{train}metrics"), strike(5, "metrics.jsonl"), None);
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("error: cannot write `run/metrics/metrics.jsonl`: No space left on device"),
        "{err}"
    );
    let saved = names(&home.path("run/metrics"));
    assert!(saved.iter().any(|name| name.starts_with("checkpoint-")), "{saved:?}");
    home.done(&format!("{train}metrics --resume latest"));
    assert!(weights("metrics") == weights("whole"));
}
