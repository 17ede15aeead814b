//! A run that ends with a fault is saved first, as its last whole step left it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use plimsoll_model::Preset;
use plimsoll_plan::Strategy;
use plimsoll_train::checkpoint::{Checkpoint, Checkpoints};
use plimsoll_train::data::{Order, Source, Text};
use plimsoll_train::trainer::{Event, Listener, TrainLoop};
use plimsoll_train::{Optimizer, Options, TrainError, Trainer, Update, ValidationSet};
use tempfile::TempDir;

use crate::running::{
    GLOBAL_BATCH, WIDER, bits, latest, llama_trainer, of, open, pinned, save, take, trainer, write_text,
};
use crate::support::{Size, names, options};

const COURSE: TrainLoop = TrainLoop {
    steps: 12,
    pause: None,
    logging_steps: 4,
    eval_steps: None,
    stopping: None,
    save_steps: Some(100),
};

/// Trains; returns the fault and all events other than steps.
fn train(trainer: &mut Trainer, course: &TrainLoop, out: &Checkpoints) -> (Option<TrainError>, Vec<String>) {
    let mut told = Vec::new();
    let mut listener = |event: &Event<'_>| {
        match event {
            Event::Log(record) => told.push(format!("log {}", record.step)),
            Event::Saving => told.push("saving".to_owned()),
            Event::Saved(path) => told.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
            Event::Note(note) => told.push((*note).to_owned()),
            _ => {}
        }
        Ok(())
    };
    let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
    let fault = trainer.train(course, None, Some(out), listeners).err();
    (fault, told)
}

/// A trainer for which the embedding of `z` is not finite.
fn poisoned(data: &Path) -> Trainer {
    let mut trainer = llama_trainer(data, &pinned());
    let name = "model.embed_tokens.weight";
    let mut embedding = trainer.run().state(name).unwrap();
    let width = embedding.len() / 259;
    embedding[usize::from(b'z') * width..][..width].fill(f32::INFINITY);
    trainer.run_mut().set_state(name, &embedding).unwrap();
    trainer
}

/// Text with one `z`, and the step in which it is met.
fn data_with_z(home: &TempDir) -> (PathBuf, u64) {
    let data = write_text(home.path());
    for place in (40..1800).step_by(160) {
        write_text(home.path());
        let mut text = fs::read(&data).unwrap();
        text[place] = b'z';
        fs::write(&data, text).unwrap();
        let mut trainer = poisoned(&data);
        let met = (1..=COURSE.steps).find(|_| trainer.step().is_err());
        if let Some(step) = met.filter(|step| *step > 5) {
            return (data, step);
        }
    }
    panic!("no place of the text is met between steps 6 and {}", COURSE.steps)
}

#[test]
fn a_run_whose_next_step_is_not_finite_is_saved_under_a_name_of_its_own() {
    let home = TempDir::new().unwrap();
    let (data, bad) = data_with_z(&home);
    let out = open(&home.path().join("out"), Some(1)).unwrap();
    let (fault, told) = train(&mut poisoned(&data), &COURSE, &out);
    assert!(matches!(fault, Some(TrainError::NotFinite { step, .. }) if step == bad), "{fault:?}");
    let name = format!("last-finite-{}", bad - 1);
    assert_eq!(names(out.folder()), std::slice::from_ref(&name));
    assert!(told.contains(&name), "{told:?}");
    let last = told.last().unwrap();
    assert!(last.contains("no earlier checkpoint is on the disk: begin again with a lower"), "{last}");
    assert!(last.ends_with(&format!("are in {}", out.folder().join(&name).display())), "{last}");
    // Steps that no record told of yet are told before the run is saved.
    let at = |what: &str| told.iter().position(|told| told == what);
    assert!(at(&format!("log {}", bad - 1)).is_some(), "{told:?}");
    assert!(at(&format!("log {}", bad - 1)) < at("saving"), "{told:?}");

    // The saved state is that after the last finite step, to the bit, and is found only by its name.
    assert!(out.latest().unwrap().checkpoint.is_none());
    let mut expected = poisoned(&data);
    take(&mut expected, bad - 1);
    let mut resumed = llama_trainer(&data, &pinned());
    resumed.resume(&out, &Checkpoint::open(&out.last_finite().unwrap().unwrap().1).unwrap()).unwrap();
    assert_eq!(bits(&resumed), bits(&expected));
    assert!(matches!(resumed.step(), Err(TrainError::NotFinite { step, .. }) if step == bad));

    // An earlier checkpoint is the way back, since the step is not finite again with the same weights.
    let beside = open(&home.path().join("beside"), None).unwrap();
    let (_, told) = train(&mut poisoned(&data), &TrainLoop { save_steps: Some(2), ..COURSE }, &beside);
    assert!(told.last().unwrap().contains("go back with `--resume "), "{told:?}");

    // Rotation leaves it alone, and a second one of the same step takes its place.
    let mut again = poisoned(&data);
    let (_, told) = train(&mut again, &TrainLoop { save_steps: Some(2), ..COURSE }, &out);
    let checkpoints = names(out.folder());
    assert_eq!(checkpoints.len(), 2, "{checkpoints:?} {told:?}");
    assert!(checkpoints.contains(&name), "{checkpoints:?}");
}

#[test]
fn a_router_whose_scores_are_no_numbers_is_kept_apart_from_the_checkpoints_that_are_whole() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let Preset { model, .. } = Preset::from_name("tiny-moe").unwrap();
    let size = Size { vocab: model.vocab(), seq: 16, ..WIDER };
    let mut trainer = of(&model, size, &data, &pinned());
    let out = open(&home.path().join("out"), Some(1)).unwrap();
    take(&mut trainer, 2);
    save(&trainer, &out);
    take(&mut trainer, 1);
    let name = "model.layers.0.mlp.gate.weight";
    let mut router = trainer.run().state(name).unwrap();
    router[0] = f32::NAN;
    trainer.run_mut().set_state(name, &router).unwrap();
    let (fault, told) = train(&mut trainer, &COURSE, &out);
    assert!(fault.unwrap().to_string().contains("score of expert 0 is not a number"));
    assert_eq!(names(out.folder()), ["checkpoint-2"], "{told:?}");
    assert!(told.last().unwrap().contains("go back with `--resume "), "{told:?}");
}

#[test]
fn a_step_that_was_just_saved_is_not_saved_again_when_the_next_is_not_finite() {
    let home = TempDir::new().unwrap();
    let (data, bad) = data_with_z(&home);
    let out = open(&home.path().join("out"), None).unwrap();
    let (fault, _) = train(&mut poisoned(&data), &TrainLoop { save_steps: Some(bad - 1), ..COURSE }, &out);
    assert!(matches!(fault, Some(TrainError::NotFinite { .. })));
    assert_eq!(names(out.folder()), [format!("checkpoint-{}", bad - 1)]);
}

#[test]
fn a_step_that_was_applied_in_part_is_not_saved_and_the_note_names_what_is_on_the_disk() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let update = Update::InBackward;
    let whole_batch = options(GLOBAL_BATCH, GLOBAL_BATCH, Strategy::None, 1);
    let in_backward = Options { update, optimizer, ..whole_batch };
    for (save_steps, on_disk) in [(2, Some("checkpoint-2")), (100, None)] {
        let out = open(&home.path().join(format!("every-{save_steps}")), None).unwrap();
        let mut trainer = llama_trainer(&data, &in_backward);
        let course = TrainLoop { save_steps: Some(save_steps), ..COURSE };
        let mut steps = 0;
        while steps < 3 {
            steps += 1;
            trainer.step().unwrap();
            if steps == 2 && on_disk.is_some() {
                save(&trainer, &out);
            }
        }
        // The gate shuts off what would reach the loss, but the gradient there is too large to be squared.
        for (part, value) in [("gate", 0.0), ("down", 1e25)] {
            let name = format!("model.layers.0.mlp.{part}_proj.weight");
            let elements = trainer.run().state(&name).unwrap().len();
            trainer.run_mut().set_state(&name, &vec![value; elements]).unwrap();
        }
        let (fault, told) = train(&mut trainer, &course, &out);
        assert!(matches!(fault, Some(TrainError::PartlyUpdated { step: 4 })), "{fault:?}");
        let (folder, note) = (names(out.folder()), told.last().unwrap());
        assert_eq!(folder, Vec::from_iter(on_disk.map(str::to_owned)), "nothing of two steps is saved");
        match on_disk {
            Some(name) => {
                let wanted = format!(
                    "nothing was saved after {name}, the last on the disk; `--resume latest --stop-after 3`"
                );
                assert!(note.starts_with(&wanted), "{told:?}");
            }
            None => assert!(
                note.starts_with(
                    "no checkpoint is on the disk; the same command with `--stop-after 3 --output-dir NEW`"
                ),
                "{told:?}"
            ),
        }
    }
}

#[test]
fn data_that_can_no_longer_be_read_ends_the_run_saved() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let out = open(&home.path().join("out"), None).unwrap();
    let mut trained = trainer(&data, &pinned());
    let text = fs::read(&data).unwrap();
    let mut listener = |event: &Event<'_>| {
        if matches!(event, Event::Step(record) if record.step == 3) {
            OpenOptions::new().write(true).open(&data).unwrap().set_len(0).unwrap();
        }
        Ok(())
    };
    let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
    let fault = trained.train(&COURSE, None, Some(&out), listeners).unwrap_err();
    assert!(matches!(fault, TrainError::Data(_)), "{fault}");
    assert_eq!(names(out.folder()), ["checkpoint-3"]);

    fs::write(&data, text).unwrap();
    let mut resumed = trainer(&data, &pinned());
    resumed.resume(&out, &latest(&out).unwrap()).unwrap();
    take(&mut resumed, 5);
    let mut whole = trainer(&data, &pinned());
    take(&mut whole, 8);
    assert_eq!(bits(&resumed), bits(&whole));
}

#[test]
fn a_listener_that_fails_ends_the_run_saved_and_the_evaluation_is_made_up_for() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let course = TrainLoop { eval_steps: Some(3), ..COURSE };
    let evaluating = Options { evaluate: true, ..pinned() };
    let validation = |trainer: &Trainer| {
        let text = Text::open(&data, 16, 259, Order::AsWritten).unwrap();
        ValidationSet::new(Source::Text(text), trainer.run().micro_batch(), Some(6))
    };
    let run = |trainer: &mut Trainer, out: &Checkpoints, fail_at: u64| {
        let mut evaluated = Vec::new();
        let mut heard_saved = false;
        let mut fails = |event: &Event<'_>| match event {
            Event::Step(record) if record.step == fail_at => Err(TrainError::Output("no room".into())),
            _ => Ok(()),
        };
        let mut hears = |event: &Event<'_>| {
            heard_saved |= matches!(event, Event::Saved(_));
            if let Event::Evaluation(record) = event {
                evaluated.push((record.step, record.eval_loss.to_bits()));
            }
            Ok(())
        };
        let mut validation = validation(trainer);
        let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut fails, &mut hears];
        let fault = trainer.train(&course, Some(&mut validation), Some(out), listeners).err();
        assert!(heard_saved, "the others hear that the run was saved");
        (fault.map(|fault| fault.to_string()), evaluated)
    };
    let whole_out = open(&home.path().join("whole"), None).unwrap();
    let mut whole = trainer(&data, &evaluating);
    let (none, expected) = run(&mut whole, &whole_out, 0);
    assert_eq!((none, expected.len()), (None, 4));

    let out = open(&home.path().join("out"), None).unwrap();
    let (fault, before) = run(&mut trainer(&data, &evaluating), &out, 6);
    assert_eq!(fault.unwrap(), "no room");
    let from = latest(&out).unwrap();
    assert_eq!((from.state.step, from.state.progress.owes_evaluation), (6, true));
    let mut resumed = trainer(&data, &evaluating);
    resumed.resume(&out, &from).unwrap();
    let (none, after) = run(&mut resumed, &out, 0);
    assert_eq!(none, None);
    assert_eq!([before, after].concat(), expected);
    assert_eq!(bits(&resumed), bits(&whole));
}
