//! A job of the library is the run of the program: the same bits, the same folder, and either can resume the other's run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll::training::job::{Finished, Note, Stage};
use plimsoll::{Config, Environment, Job, RawConfig, TrainError};

use crate::support::Home;

/// Settings that leave no choice to the plan, so that the bytes of the process outside the arena do not change the order of
/// sums.
const FIXED: &str = "seq_len = 16\nglobal_batch = 4\nmicro_batch = 2\nrecompute = \"none\"\nmemory = \"1GiB\"\nthreads = 1\n\
                     max_steps = 4\nsave_steps = 2\neval_steps = 2\neval_split = 0.1\nreport_to = [\"tensorboard\"]\n";

/// The same settings as a library's user has them, with paths that hold from anywhere.
fn settings(home: &Home, output: &str) -> RawConfig {
    let raw = RawConfig::gather(Some(&home.path("run.toml")), &[]).unwrap();
    RawConfig {
        model: Some(home.path("model").display().to_string()),
        data: Some(vec![home.path("text.txt").display().to_string()]),
        output_dir: Some(home.path(output)),
        ..raw
    }
}

/// Trains through the library; returns its notes and the stages that were reported while it waited.
fn train(home: &Home, raw: RawConfig) -> (Vec<Note>, Vec<String>) {
    let costs = Some("modelled".to_owned());
    let environment = Environment { caches: Some(home.path("cache")), costs, ..Environment::default() };
    let config = Config::check(&environment.complete(raw, &mut ()).unwrap()).unwrap();
    let mut heard = Vec::new();
    let watch = Box::new(|stage: Stage<'_>| heard.push(format!("{stage:?}")));
    let mut job = Job::open(config, &environment, watch).unwrap();
    let planned = job.plan().unwrap();
    let mut session = job.start(planned).unwrap();
    let notes = session.take_notes();
    let end = session.train::<TrainError>(&mut []).unwrap();
    assert_eq!(session.finish(&end).unwrap(), Some(Finished::Last));
    (notes, heard)
}

#[test]
fn a_job_trains_to_the_bits_of_the_program_and_goes_on_from_its_checkpoint() {
    let home = Home::with_model();
    home.write("run.toml", FIXED);
    let program = "train --settings run.toml --model model --data text.txt";
    home.done(&format!("{program} --output-dir whole"));
    home.done(&format!("{program} --output-dir parts --stop-after 2"));

    let (notes, heard) = train(&home, settings(&home, "job"));
    assert_eq!(notes, []);
    for stage in ["Folder", "Reading", "Planning", "Considering", "Working"] {
        assert!(heard.iter().any(|heard| heard.starts_with(stage)), "{stage}: {heard:?}");
    }
    let resumed = RawConfig { resume: Some("latest".into()), ..settings(&home, "parts") };
    let (notes, _) = train(&home, resumed);
    assert!(notes.contains(&Note::Resumed { step: 2, from: home.path("parts/checkpoint-2") }), "{notes:?}");

    for run in ["job", "parts"] {
        for file in ["model.safetensors", "config.json", "checkpoint-4/optimizer.safetensors"] {
            assert!(
                home.read(&format!("{run}/{file}")) == home.read(&format!("whole/{file}")),
                "{run}/{file}"
            );
        }
        assert_eq!(home.losses(run), home.losses("whole"));
        assert!(home.path(&format!("{run}/tensorboard")).is_dir());
    }
}

#[test]
fn a_job_is_refused_in_terms_of_fields() {
    let home = Home::with_model();
    home.write("run.toml", FIXED);
    let refused = |raw: RawConfig| Config::check(&raw).map(drop).unwrap_err().to_string();
    let odd = RawConfig { global_batch: Some(5), ..settings(&home, "out") };
    assert_eq!(
        refused(odd),
        "micro_batch 2 does not divide global_batch 5; the next global batch that works is 6"
    );
    home.write("taken", "");
    let config = Config::check(&settings(&home, "taken")).unwrap();
    let error = config.open(&Environment::default()).map(drop).unwrap_err();
    assert!(error.to_string().starts_with("output_dir `"), "{error}");
    assert!(error.with_flags().starts_with("--output-dir `"), "{error}");
}
