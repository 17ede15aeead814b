//! A run removes only checkpoints that it wrote or has just read as whole. A checkpoint that cannot be read is an error,
//! never "no checkpoint".

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use plimsoll_train::checkpoint::{Best, Checkpoint, Checkpoints, EvaluationState};
use plimsoll_train::{Options, Trainer};
use tempfile::TempDir;

use crate::running::{latest, open, pinned, save, take, trainer, write_text};
use crate::support::names;

/// A run with a checkpoint after each of the first `steps` steps in `out`.
fn saved(home: &TempDir, steps: u64) -> (Trainer, PathBuf) {
    let (mut trained, out) = (trainer(&write_text(home.path()), &pinned()), home.path().join("out"));
    let checkpoints = open(&out, None).unwrap();
    for _ in 0..steps {
        take(&mut trained, 1);
        save(&trained, &checkpoints);
    }
    (trained, out)
}

/// Cuts a file off in the middle.
fn cut(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// Puts something in the place of a state that the system does not let be read, or that another version wrote.
fn hide(state: &Path, how: &str) {
    let text = fs::read_to_string(state).unwrap();
    fs::remove_file(state).unwrap();
    match how {
        "folder" => fs::create_dir(state).unwrap(),
        "loop" => symlink("trainer_state.json", state).unwrap(),
        _ => fs::write(state, text.replace("\"format\": 1", "\"format\": 2")).unwrap(),
    }
}

#[test]
fn a_state_that_cannot_be_read_is_an_error_with_the_way_out_and_everything_stays() {
    let reasons = [
        ("folder", "it is not a file"),
        ("loop", "Too many levels of symbolic links"),
        ("later", "has form 2"),
    ];
    for (how, reason) in reasons {
        let home = TempDir::new().unwrap();
        let (_, out) = saved(&home, 2);
        for step in [1, 2] {
            hide(&out.join(format!("checkpoint-{step}/trainer_state.json")), how);
        }
        let fault = open(&out, Some(1)).unwrap().latest().unwrap_err().to_string();
        assert!(fault.contains("checkpoint-2 may be whole and cannot be read now"), "{fault}");
        assert!(fault.contains(reason) && fault.contains("move the checkpoint away"), "{fault}");
        assert_eq!(names(&out), ["checkpoint-1", "checkpoint-2"]);
    }
}

#[test]
fn checkpoints_that_are_all_broken_are_an_error_too() {
    let home = TempDir::new().unwrap();
    let (_, out) = saved(&home, 2);
    for step in [1, 2] {
        cut(&out.join(format!("checkpoint-{step}/trainer_state.json")));
    }
    let fault = open(&out, Some(1)).unwrap().latest().unwrap_err().to_string();
    assert!(fault.contains("holds 2 checkpoints and none that is whole"), "{fault}");
    assert!(fault.contains("checkpoint-2/trainer_state.json is broken"), "{fault}");
    assert!(fault.contains("to begin anew, name another --output-dir or move them away"), "{fault}");
    assert_eq!(names(&out), ["checkpoint-1", "checkpoint-2"]);
}

/// A folder by the name of a checkpoint that another program made.
fn foreign(out: &Path, step: u64) {
    let folder = out.join(format!("checkpoint-{step}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("trainer_state.json"), r#"{"global_step": 500, "log_history": []}"#).unwrap();
    fs::write(folder.join("model.safetensors"), "theirs").unwrap();
}

/// Trains on from the latest, with a checkpoint after every step; returns the notes.
fn go_on(data: &Path, checkpoints: &Checkpoints, steps: u64) -> Vec<String> {
    let mut trained = trainer(data, &pinned());
    let from = checkpoints.latest().unwrap().checkpoint.unwrap();
    trained.resume(checkpoints, &from).unwrap();
    let mut notes = checkpoints.take_notes();
    for _ in 0..steps {
        take(&mut trained, 1);
        save(&trained, checkpoints);
        notes.extend(checkpoints.take_notes());
    }
    notes
}

#[test]
fn folders_of_others_and_checkpoints_of_another_run_survive_rotation() {
    let home = TempDir::new().unwrap();
    let (_, out) = saved(&home, 2);
    let data = home.path().join("data.txt");
    foreign(&out, 500);
    // Whole, and of a run with another seed.
    let other = home.path().join("other");
    let mut another = trainer(&data, &Options { seed: 8, ..pinned() });
    take(&mut another, 1);
    save(&another, &open(&other, None).unwrap());
    fs::remove_dir_all(out.join("checkpoint-1")).unwrap();
    fs::rename(other.join("checkpoint-1"), out.join("checkpoint-1")).unwrap();

    let checkpoints = open(&out, Some(1)).unwrap();
    assert_eq!(go_on(&data, &checkpoints, 3), [""; 0]);
    assert_eq!(names(&out), ["checkpoint-1", "checkpoint-5", "checkpoint-500"]);
    assert_eq!(fs::read(out.join("checkpoint-500/model.safetensors")).unwrap(), b"theirs");
    Checkpoint::open(&out.join("checkpoint-1")).unwrap();
}

#[test]
fn a_broken_checkpoint_counts_for_nothing_and_is_set_aside_where_its_name_is_needed() {
    let home = TempDir::new().unwrap();
    let (_, out) = saved(&home, 4);
    let data = home.path().join("data.txt");
    cut(&out.join("checkpoint-4/model.safetensors"));
    foreign(&out, 5);
    let checkpoints = open(&out, Some(2)).unwrap();
    assert_eq!(checkpoints.latest().unwrap().broken.len(), 1);
    // Two whole ones stay at every moment: the broken one is none of them.
    let notes = go_on(&data, &checkpoints, 2);
    assert_eq!(
        names(&out),
        ["checkpoint-4", "checkpoint-4.before", "checkpoint-5", "checkpoint-5.before"],
        "{notes:?}"
    );
    let whole = |step: u64| Checkpoint::open(&checkpoints.path(step)).is_ok_and(|own| own.state.step == step);
    assert!(whole(4) && whole(5));
    assert_eq!(fs::read(out.join("checkpoint-5.before/model.safetensors")).unwrap(), b"theirs");
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(
        notes[0].contains("checkpoint-4 is left where it is") && notes[0].contains("bytes and had"),
        "{notes:?}"
    );
    assert!(notes[1].contains("its name is needed; it is now ") && notes[1].ends_with("checkpoint-4.before"));
}

#[test]
fn one_that_was_damaged_since_is_not_removed_and_named_once() {
    let home = TempDir::new().unwrap();
    let (mut trained, out) = saved(&home, 0);
    let checkpoints = open(&out, Some(1)).unwrap();
    let mut saving = || {
        take(&mut trained, 1);
        save(&trained, &checkpoints);
        checkpoints.take_notes()
    };
    assert_eq!(saving(), [""; 0]);
    // The file's length is unchanged and one number differs, which only a full read shows.
    drop(saving());
    let moments = out.join("checkpoint-2/optimizer.safetensors");
    let mut bytes = fs::read(&moments).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&moments, bytes).unwrap();
    // This process wrote the checkpoint and does not read it again; the next process does.
    drop(checkpoints);
    fs::rename(out.join("checkpoint-2"), home.path().join("kept")).unwrap();
    let checkpoints = open(&out, Some(1)).unwrap();
    take(&mut trained, 1);
    save(&trained, &checkpoints);
    fs::rename(home.path().join("kept"), out.join("checkpoint-2")).unwrap();
    let mut saving = || {
        take(&mut trained, 1);
        save(&trained, &checkpoints);
        checkpoints.take_notes()
    };
    let notes = saving();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("checkpoint-2 is left where it is") && notes[0].contains("checksum"),
        "{notes:?}"
    );
    assert_eq!(saving(), [""; 0]);
    assert_eq!(names(&out), ["checkpoint-2", "checkpoint-5"]);
}

#[test]
fn a_kill_between_two_renames_leaves_the_new_one_or_the_old_one() {
    for new_is_whole in [true, false] {
        let home = TempDir::new().unwrap();
        let (_, out) = saved(&home, 1);
        let [named, new, old] =
            ["checkpoint-1", ".tmp-checkpoint-1", ".tmp-old-checkpoint-1"].map(|name| out.join(name));
        fs::create_dir(&new).unwrap();
        for entry in fs::read_dir(&named).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), new.join(entry.file_name())).unwrap();
        }
        fs::rename(&named, &old).unwrap();
        if !new_is_whole {
            cut(&new.join("optimizer.safetensors"));
        }
        let checkpoints = open(&out, None).unwrap();
        assert_eq!(latest(&checkpoints).unwrap().state.step, 1);
        assert_eq!(names(&out), ["checkpoint-1"], "{new_is_whole}");
    }
    // An unreadable checkpoint may be the only one of its step.
    let home = TempDir::new().unwrap();
    let (_, out) = saved(&home, 1);
    fs::rename(out.join("checkpoint-1"), out.join(".tmp-checkpoint-1")).unwrap();
    hide(&out.join(".tmp-checkpoint-1/trainer_state.json"), "loop");
    assert!(
        open(&out, None)
            .unwrap_err()
            .to_string()
            .contains(".tmp-checkpoint-1/trainer_state.json cannot be read")
    );
    assert_eq!(names(&out), [".tmp-checkpoint-1"]);
}

#[test]
fn what_a_kill_after_a_save_leaves_goes_when_the_run_goes_on() {
    let home = TempDir::new().unwrap();
    let (mut trained, out) = saved(&home, 3);
    let data = home.path().join("data.txt");
    // The best was that of step 2; step 4 is better, and the run is killed once that is written.
    take(&mut trained, 1);
    let best = Some(Best { step: 4, metric: 1.0 });
    let progress = EvaluationState { best, surpasses: Some(2), ..EvaluationState::default() };
    trained.save(&open(&out, None).unwrap(), &progress).unwrap();
    assert_eq!(names(&out), ["checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4"]);

    go_on(&data, &open(&out, None).unwrap(), 0);
    assert_eq!(names(&out), ["checkpoint-1", "checkpoint-3", "checkpoint-4"], "the surpassed one");
    go_on(&data, &open(&out, Some(2)).unwrap(), 0);
    assert_eq!(names(&out), ["checkpoint-3", "checkpoint-4"], "one too many");
    // A run that resumes from another folder takes no checkpoint here for its own left-over.
    let from = Checkpoint::open(&out.join("checkpoint-4")).unwrap();
    let elsewhere = open(&home.path().join("elsewhere"), Some(1)).unwrap();
    trainer(&data, &pinned()).resume(&elsewhere, &from).unwrap();
    assert_eq!(names(&out), ["checkpoint-3", "checkpoint-4"]);
}
