//! An interrupted run continues as if it had not been interrupted. A checkpoint that the run cannot resume from is refused
//! with the reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use plimsoll_graph::{DType, Graph, Init};
use plimsoll_plan::Strategy;
use plimsoll_train::checkpoint::{Best, Checkpoint, Checkpoints, EvaluationState};
use plimsoll_train::data::{Order, Source, Text};
use plimsoll_train::files::{ModelFolder, ModelFormat, TensorFile};
use plimsoll_train::trainer::{Event, Listener, TrainLoop};
use plimsoll_train::{Options, Run, TrainError, Trainer, ValidationSet};
use tempfile::TempDir;

use crate::running::{
    DEEPER, GLOBAL_BATCH, WIDER, bits, latest, open, pinned, save, sized, take, trainer, write_text,
};
use crate::support::{absolute_distance, names, options, without_key_bias};

const STEPS: usize = 40;

#[test]
fn a_resumed_run_ends_in_the_same_bits_wherever_it_was_interrupted() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let mut whole = trainer(&data, &pinned());
    let losses: Vec<u64> = (0..STEPS).map(|_| whole.step().unwrap().loss.to_bits()).collect();
    // At once, inside the first epoch, at its short last step, behind it, and one step before the end.
    for interrupted in [0, 7, 29, 30, 31, STEPS - 1] {
        let output = folder.path().join(format!("at-{interrupted}"));
        let mut first = trainer(&data, &pinned());
        take(&mut first, interrupted as u64);
        save(&first, &open(&output, None).unwrap());
        drop(first);
        // The second part has another budget, and divides the batch in the same way.
        let mut second =
            trainer(&data, &Options { memory: Some(1 << 30), recompute: Some(Strategy::Full), ..pinned() });
        let checkpoints = open(&output, None).unwrap();
        second.resume(&checkpoints, &latest(&checkpoints).unwrap()).unwrap();
        let rest: Vec<u64> = (interrupted..STEPS).map(|_| second.step().unwrap().loss.to_bits()).collect();
        assert_eq!(rest, losses[interrupted..], "{interrupted}");
        assert_eq!(bits(&second), bits(&whole), "{interrupted}");
    }
}

#[test]
fn a_run_that_goes_on_between_two_records_tells_of_the_steps_before_it_too() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let course = TrainLoop {
        steps: 10,
        pause: None,
        logging_steps: 4,
        eval_steps: None,
        stopping: None,
        save_steps: Some(3),
    };
    let records = |trainer: &mut Trainer, out: &Checkpoints| {
        let mut told = Vec::new();
        let mut listener = |event: &Event<'_>| {
            if let Event::Log(record) = event {
                told.push((record.step, record.mean_over, record.loss.to_bits(), record.tokens));
            }
            Ok(())
        };
        let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
        trainer.train(&course, None, Some(out), listeners).unwrap();
        told
    };
    let out = open(&folder.path().join("whole"), None).unwrap();
    let whole = records(&mut trainer(&data, &pinned()), &out);
    let steps: Vec<_> = whole.iter().map(|&(step, mean_over, ..)| (step, mean_over)).collect();
    assert_eq!(steps, [(4, 4), (8, 4), (10, 2)]);
    // The steps after the checkpoint are repeated, as after a kill.
    for (from, expected) in [(3, &whole[..]), (6, &whole[1..]), (9, &whole[2..])] {
        let out = Checkpoint::open(&out.path(from)).unwrap();
        let again = open(&folder.path().join(format!("from-{from}")), None).unwrap();
        let mut resumed = trainer(&data, &pinned());
        resumed.resume(&again, &out).unwrap();
        assert_eq!(records(&mut resumed, &again), expected, "from {from}");
    }
}

#[test]
fn on_another_micro_batch_a_resumed_run_differs_by_rounding_alone() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let mut whole = trainer(&data, &pinned());
    take(&mut whole, 10);
    let checkpoints = open(&folder.path().join("out"), None).unwrap();
    save(&whole, &checkpoints);
    let mut other = trainer(&data, &options(GLOBAL_BATCH, 1, Strategy::Sqrt, 2));
    let checkpoint = latest(&checkpoints).unwrap();
    other.resume(&checkpoints, &checkpoint).unwrap();
    assert_eq!((checkpoint.state.plan.micro_batch, checkpoint.state.plan.accumulation), (2, 2));
    for step in 10..15 {
        let (expected, got) = (whole.step().unwrap(), other.step().unwrap());
        assert_eq!(got.step, step + 1);
        assert!((expected.loss - got.loss).abs() < 1e-4, "{} {}", expected.loss, got.loss);
    }
    for name in crate::support::parameters(whole.run()) {
        let [a, b] = [&whole, &other].map(|trainer| trainer.run().state(&name).unwrap());
        // The gradient of a key's bias is rounding error alone, of which Adam makes steps of full size. No two plans agree
        // on it.
        let [a, b] = [a, b].map(|values| without_key_bias(&name, &values).0);
        assert!(absolute_distance(&a, &b) < 1e-3, "{name}");
    }
}

#[test]
fn a_checkpoint_is_a_models_folder() {
    let folder = TempDir::new().unwrap();
    let trained = trainer(&write_text(folder.path()), &pinned());
    let saved = save(&trained, &open(folder.path(), None).unwrap());
    assert_eq!(saved, folder.path().join("checkpoint-0"));
    let model = ModelFolder::open(&saved).unwrap();
    assert_eq!(model.names().count(), crate::support::parameters(trained.run()).len());
    assert_eq!(model.config().unwrap(), "{}\n");
    let moments = TensorFile::open(&saved.join("optimizer.safetensors")).unwrap();
    assert_eq!(moments.tensors().len(), 2 * model.names().count());
}

/// Where a run ends before its last step.
#[derive(Clone, Copy)]
enum Until {
    /// The run is not interrupted.
    Last,
    /// The run is asked to end during this step.
    Stopped(u64),
    /// The run was to pause after this step.
    Paused(u64),
}

/// Trains to step 8, or to an earlier end, with an evaluation every 4 steps and a checkpoint every 5. Returns the events,
/// except steps and records.
fn evaluated(trainer: &mut Trainer, data: &Path, out: &Checkpoints, until: Until) -> Vec<String> {
    let text = Text::open(data, 16, 259, Order::AsWritten).unwrap();
    let mut validation = ValidationSet::new(Source::Text(text), trainer.run().micro_batch(), Some(6));
    let (pause, stop_at) = match until {
        Until::Last => (None, 0),
        Until::Stopped(step) => (None, step),
        Until::Paused(step) => (Some(step), 0),
    };
    let course = TrainLoop {
        steps: 8,
        pause,
        logging_steps: 1,
        eval_steps: Some(4),
        stopping: None,
        save_steps: Some(5),
    };
    let (stop, mut told) = (trainer.stop_flag(), Vec::new());
    let mut listener = |event: &Event<'_>| {
        match event {
            Event::Step(record) if record.step == stop_at => stop.store(true, Ordering::Relaxed),
            Event::Evaluation(record) => told.push(format!("evaluation {} {}", record.step, record.best)),
            Event::Saved(path) => told.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
            _ => {}
        }
        Ok(())
    };
    let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
    let end = trainer.train(&course, Some(&mut validation), Some(out), listeners).unwrap();
    assert!(!end.stopped_early);
    told
}

/// A run that is planned to evaluate too, at its beginning or after the latest checkpoint.
fn evaluating(data: &Path, from: Option<&Checkpoints>) -> Trainer {
    let mut trainer = trainer(data, &Options { evaluate: true, ..pinned() });
    if let Some(from) = from {
        assert_eq!(trainer.resume(from, &latest(from).unwrap()).unwrap(), None);
    }
    trainer
}

const WHOLE: [&str; 5] =
    ["evaluation 4 true", "checkpoint-4", "checkpoint-5", "evaluation 8 true", "checkpoint-8"];

#[test]
fn whoever_asks_for_the_end_gets_a_checkpoint_and_the_evaluation_comes_when_the_run_goes_on() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let mut whole = evaluating(&data, None);
    let out = open(&folder.path().join("whole"), None).unwrap();
    assert_eq!(evaluated(&mut whole, &data, &out, Until::Last), WHOLE);
    // A checkpoint that was kept as the best goes when it no longer is.
    assert_eq!(names(out.folder()), ["checkpoint-5", "checkpoint-8"]);

    // The evaluation that is made up for is the first best, or takes the place of one.
    let stopped: [(u64, &[&str], &[&str]); 2] =
        [(4, &["checkpoint-4"], &WHOLE), (8, &[&WHOLE[..3], &["checkpoint-8"]].concat(), &WHOLE[3..])];
    for (step, before, after) in stopped {
        let out = open(&folder.path().join(format!("at-{step}")), None).unwrap();
        assert_eq!(evaluated(&mut evaluating(&data, None), &data, &out, Until::Stopped(step)), before);
        let mut second = evaluating(&data, Some(&out));
        assert_eq!(evaluated(&mut second, &data, &out, Until::Last), after);
        assert_eq!(bits(&second), bits(&whole));
        assert_eq!(names(out.folder()), ["checkpoint-5", "checkpoint-8"]);
        out.return_to(second.run_mut(), &Checkpoint::open(&out.path(5)).unwrap()).unwrap();
        assert_ne!(bits(&second), bits(&whole));
        assert_eq!(second.run().steps(), 5);
    }
}

#[test]
fn a_pause_adds_a_checkpoint_and_no_evaluation() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let out = open(&folder.path().join("out"), None).unwrap();
    let first = evaluated(&mut evaluating(&data, None), &data, &out, Until::Paused(6));
    assert_eq!(first, [&WHOLE[..3], &["checkpoint-6"]].concat());
    let second = evaluated(&mut evaluating(&data, Some(&out)), &data, &out, Until::Last);
    assert_eq!(second, WHOLE[3..]);
    // A pause after the last step is the end of the run.
    let out = open(&folder.path().join("other"), None).unwrap();
    assert_eq!(evaluated(&mut evaluating(&data, None), &data, &out, Until::Paused(8)), WHOLE);
}

#[test]
fn the_best_comes_along_into_another_folder_and_is_looked_for_anew_where_it_is_gone() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let one = open(&folder.path().join("one"), None).unwrap();
    evaluated(&mut evaluating(&data, None), &data, &one, Until::Paused(5));
    let from = latest(&one).unwrap();
    let best = from.state.progress.best;
    assert_eq!((from.state.step, best.map(|best| best.step)), (5, Some(4)));

    let two = open(&folder.path().join("two"), None).unwrap();
    assert_eq!(evaluating(&data, None).resume(&two, &from).unwrap(), None);
    assert_eq!(names(two.folder()), ["checkpoint-4"]);
    assert_eq!(Checkpoint::open(&two.path(4)).unwrap().state, Checkpoint::open(&one.path(4)).unwrap().state);
    // If the run is killed here, it may resume the same way again.
    assert_eq!(two.in_the_way(&from).unwrap(), [0; 0]);
    let mut again = evaluating(&data, None);
    assert_eq!(again.resume(&two, &from).unwrap(), None);
    assert_eq!(evaluated(&mut again, &data, &two, Until::Last), WHOLE[3..]);
    assert_eq!(names(two.folder()), ["checkpoint-8"]);
    assert_eq!(two.in_the_way(&from).unwrap(), [8]);
    assert_eq!(one.in_the_way(&from).unwrap(), [0; 0]);
    assert_eq!(one.in_the_way(&Checkpoint::open(&one.path(4)).unwrap()).unwrap(), [5]);

    one.forget(4, &from.state.facts);
    let three = open(&folder.path().join("three"), None).unwrap();
    for place in [&one, &three] {
        assert_eq!(evaluating(&data, None).resume(place, &from).unwrap(), best);
    }
    assert_eq!((names(one.folder()), names(three.folder())), (vec!["checkpoint-5".to_owned()], Vec::new()));
}

#[test]
fn the_oldest_go_but_never_the_newest_nor_the_best() {
    let folder = TempDir::new().unwrap();
    let mut trained = trainer(&write_text(folder.path()), &pinned());
    let output = folder.path().join("out");
    let checkpoints = open(&output, Some(2)).unwrap();
    let mut kept = Vec::new();
    for _ in 0..5 {
        let step = trained.step().unwrap().step;
        let best = Some(Best { step: step.min(2), metric: 1.5 });
        trained.save(&checkpoints, &EvaluationState { best, ..EvaluationState::default() }).unwrap();
        kept.push(names(&output).join(" ").replace("checkpoint-", ""));
    }
    assert_eq!(kept, ["1", "1 2", "1 2 3", "2 3 4", "2 4 5"]);
    let state = latest(&checkpoints).unwrap().state;
    assert_eq!((state.step, state.progress.best), (5, Some(Best { step: 2, metric: 1.5 })));
    // Another checkpoint of the same step replaces the first.
    trained.save(&checkpoints, &EvaluationState { metric: Some(0.5), ..state.progress }).unwrap();
    assert_eq!(names(&output), ["checkpoint-2", "checkpoint-4", "checkpoint-5"]);
    assert_eq!(latest(&checkpoints).unwrap().state.progress.metric, Some(0.5));
}

#[test]
fn broken_checkpoints_are_passed_over_by_name_and_leftovers_are_cleared() {
    let folder = TempDir::new().unwrap();
    let mut trained = trainer(&write_text(folder.path()), &pinned());
    let output = folder.path().join("out");
    let checkpoints = open(&output, None).unwrap();
    let saved: Vec<_> = (0..5)
        .map(|_| {
            trained.step().unwrap();
            save(&trained, &checkpoints)
        })
        .collect();
    // One number changed, a file cut off, a file gone, a state edited by hand.
    let mut file = OpenOptions::new().write(true).open(saved[4].join("optimizer.safetensors")).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[0x55]).unwrap();
    let cut = OpenOptions::new().write(true).open(saved[3].join("model.safetensors")).unwrap();
    cut.set_len(1000).unwrap();
    fs::remove_file(saved[2].join("config.json")).unwrap();
    let state = fs::read_to_string(saved[1].join("trainer_state.json")).unwrap();
    fs::write(saved[1].join("trainer_state.json"), state.replace("\"step\": 2", "\"step\": 9")).unwrap();
    let found = checkpoints.latest().unwrap();
    assert_eq!(found.checkpoint.unwrap().state.step, 1);
    let why: Vec<String> = found.broken.iter().map(ToString::to_string).collect();
    assert!(why[0].contains("checkpoint-5/optimizer.safetensors is not as it was saved"), "{}", why[0]);
    assert!(why[1].contains("checkpoint-4/model.safetensors has 1000 bytes and had"), "{}", why[1]);
    assert!(why[2].contains("checkpoint-3/config.json cannot be read (it does not exist)"), "{}", why[2]);
    assert!(why[3].contains("checkpoint-2/trainer_state.json is not as it was written"), "{}", why[3]);

    // A run that was killed leaves half a checkpoint, or a whole one that lacks its name.
    fs::create_dir(output.join(".tmp-checkpoint-7")).unwrap();
    fs::write(output.join(".tmp-checkpoint-7/model.safetensors"), "half").unwrap();
    fs::create_dir(output.join(".tmp-old-checkpoint-3")).unwrap();
    fs::create_dir(output.join(".tmp-model")).unwrap();
    fs::rename(&saved[0], output.join(".tmp-checkpoint-1")).unwrap();
    let second = open(&output, None).unwrap_err().to_string();
    assert!(second.contains("is in use by another run"), "{second}");
    drop(checkpoints);
    let checkpoints = open(&output, None).unwrap();
    assert!(names(&output).iter().all(|name| name.starts_with("checkpoint-")), "{:?}", names(&output));
    assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().state.step, 1);
}

#[test]
fn a_checkpoint_of_another_run_is_refused_by_what_differs() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    let checkpoints = open(&folder.path().join("out"), None).unwrap();
    save(&trainer(&data, &pinned()), &checkpoints);
    let checkpoint = latest(&checkpoints).unwrap();
    let refused =
        |mut other: plimsoll_train::Trainer| other.resume(&checkpoints, &checkpoint).unwrap_err().to_string();
    let fault = refused(trainer(&data, &Options { seed: 8, ..pinned() }));
    assert!(fault.contains("is a checkpoint of another run: its seed is 7, here it is 8"), "{fault}");
    let fault = refused(trainer(&data, &options(6, 2, Strategy::None, 1)));
    assert!(fault.contains("its global batch is 4, here it is 6"), "{fault}");
    let fault = refused(trainer(&data, &pinned()).with_facts([("optimizer".into(), "sgd".into())]));
    assert!(fault.contains("its optimizer is none, here it is sgd"), "{fault}");
    let fault = refused(sized(WIDER, &data, &pinned()));
    assert!(fault.contains("where the configuration has"), "{fault}");
    let fault = refused(sized(DEEPER, &data, &pinned()));
    assert!(fault.contains("holds no tensor") && fault.contains("h.1."), "{fault}");

    // The other way round, the file has more than the model.
    let deep = open(&folder.path().join("deep"), None).unwrap();
    save(&sized(DEEPER, &data, &pinned()), &deep);
    let fault = trainer(&data, &pinned()).resume(&deep, &latest(&deep).unwrap()).unwrap_err().to_string();
    assert!(fault.contains("h.1.") && fault.contains("it is of another model"), "{fault}");
}

/// A body, trained or not, and a trained head.
fn adapted(body_is_trained: bool) -> Run {
    let model = move |rows: usize| {
        let mut g = Graph::new();
        let x = g.input("x", [rows, 8], DType::F32);
        let w = if body_is_trained {
            g.param("body", [4, 8], Init::Normal(0.1))
        } else {
            g.frozen("body", [4, 8], Init::Normal(0.1))
        };
        let h = g.linear(x, w, None);
        let targets = g.input("targets", [rows], DType::I32);
        let scale = g.loss_scale();
        let head = g.param("head", [3, 4], Init::Normal(0.1));
        let loss = g.head_loss(h, head, None, targets, scale, -100);
        g.output("loss", loss);
        g.finish()
    };
    Run::new(model, &Options { memory: Some(1 << 30), ..Options::default() }).unwrap()
}

#[test]
fn what_is_not_trained_may_be_left_out_and_other_state_is_refused() {
    let folder = TempDir::new().unwrap();
    let form = ModelFormat { stem: "adapter_model".into(), frozen: false, ..ModelFormat::default() };
    let checkpoints = Checkpoints::open(folder.path(), form, None).unwrap();
    let (mut run, facts) = (adapted(false), BTreeMap::new());
    let body = run.state("body").unwrap();
    run.set_state("head", &[0.5; 12]).unwrap();
    run.set_state("v.head", &[0.25; 12]).unwrap();
    let saved = checkpoints.save(&run, 3, &facts, &EvaluationState::default()).unwrap();
    let held = TensorFile::open(&saved.join("adapter_model.safetensors")).unwrap();
    assert_eq!(held.tensors().keys().collect::<Vec<_>>(), ["head"]);
    let checkpoint = latest(&checkpoints).unwrap();
    assert_eq!(checkpoint.state.position, 3);

    let mut resumed = adapted(false);
    checkpoints.restore(&mut resumed, &checkpoint, &facts).unwrap();
    assert_eq!(resumed.state("head").unwrap(), [0.5; 12]);
    assert_eq!(resumed.state("v.head").unwrap(), [0.25; 12]);
    assert_eq!(resumed.state("body").unwrap(), body);

    // The same parameters, but more of them trained: then there are moments that the file lacks, or has too many.
    drop(checkpoints);
    let checkpoints = Checkpoints::open(&folder.path().join("all"), ModelFormat::default(), None).unwrap();
    for trained in [false, true] {
        checkpoints.save(&adapted(trained), 0, &facts, &EvaluationState::default()).unwrap();
        let error = checkpoints.restore(&mut adapted(!trained), &latest(&checkpoints).unwrap(), &facts);
        let fault = error.unwrap_err().to_string();
        let expected =
            if trained { "holds `m.body`, which this run does not have" } else { "holds no `m.body`" };
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn a_path_out_of_the_checkpoint_and_a_later_form_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trainer_state.json");
    let fault = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(fault.contains("is no checkpoint: it has no trainer_state.json"), "{fault}");
    fs::write(&path, r#"{"format":2}"#).unwrap();
    let fault = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(fault.contains("has form 2 and this version reads 1"), "{fault}");

    let texts = vec![("../outside.txt".to_owned(), "x".to_owned())];
    let form = ModelFormat { texts, ..ModelFormat::default() };
    let checkpoints = Checkpoints::open(folder.path(), form, None).unwrap();
    let saved = save(&trainer(&write_text(folder.path()), &pinned()), &checkpoints);
    let fault = Checkpoint::open(&saved).unwrap_err().to_string();
    assert!(fault.contains("names `../outside.txt`, which lies outside its folder"), "{fault}");
}

#[test]
fn an_output_folder_that_cannot_be_is_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    let data = write_text(folder.path());
    for place in [data.clone(), data.join("out")] {
        let fault = open(&place, None).unwrap_err().to_string();
        assert!(
            fault.contains("cannot be written to (") && fault.contains("give another --output-dir"),
            "{fault}"
        );
    }
}

#[test]
fn the_stop_flag_is_seen_from_outside() {
    let folder = TempDir::new().unwrap();
    let trained = trainer(&write_text(folder.path()), &pinned());
    let flag = trained.stop_flag();
    assert!(!trained.stop_requested());
    flag.store(true, Ordering::Relaxed);
    assert!(trained.stop_requested());
}
