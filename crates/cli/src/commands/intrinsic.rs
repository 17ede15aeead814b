//! `plimsoll intrinsic`: the smallest random subspace of the weights that trains nearly as well as all of them.
//!
//! ```text
//! OUT/start/  OUT/full/  OUT/d-10/  OUT/d-100/ …      one run each, by `plimsoll train`, with its records and its adapter
//! OUT/intrinsic.html                                  the curve, written again after every run
//! ```
//!
//! Every run is a process of its own, which resumes from its newest checkpoint; a run whose last evaluation is on record is
//! not repeated, nor is one that diverged. So the same command goes on after an interruption. The search itself is the
//! library's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll::training::checkpoint::Checkpoints;
use plimsoll::training::files::write_whole;
use plimsoll::training::job::{IntrinsicCurve, IntrinsicStep};
use plimsoll::training::trainer::EvaluationRecord;
use plimsoll::training::{Config, Origin, RawConfig};
use plimsoll::{StateKind, TrainError};
use serde_json::Value;

use crate::args::IntrinsicArgs;
use crate::exit::{self, Failure};
use crate::say::say;
use crate::{guard, intrinsic_page};

/// The file that marks the folder of a run which diverged.
const DIVERGED: &str = "diverged";
/// A learning rate that moves no weight by as much as its last bit.
const NO_RATE: f64 = 1e-30;
/// Learning rate of runs in a subspace.
const SUBSPACE_RATE: f64 = 1e-3;

pub(crate) fn run(args: &IntrinsicArgs) -> Result<(), Failure> {
    let search = Search::new(args)?;
    let mut curve = IntrinsicCurve {
        start: search.loss(&Kind::Start)?,
        full: search.loss(&Kind::Full)?,
        losses: BTreeMap::new(),
    };
    say(&format!("base model: loss {:.4}; full training: {:.4}\n", curve.start, curve.full))?;
    check_gain(&curve)?;
    loop {
        match curve.next_step(args.target, search.parameters) {
            IntrinsicStep::Try(dimension) => {
                let loss = search.loss(&Kind::Subspace(dimension))?;
                curve.losses.insert(dimension, loss);
                let gain = intrinsic_page::percent(curve.gain(loss));
                say(&format!("{dimension} dimensions: loss {loss:.4}, {gain} of the gain\n"))?;
                intrinsic_page::write(&search.folder, &curve, search.parameters, args.target)?;
            }
            end => return search.answer(&curve, end, args.target),
        }
    }
}

/// Refuses a full training that leaves nothing to reach.
fn check_gain(curve: &IntrinsicCurve) -> Result<(), Failure> {
    let why = if !curve.start.is_finite() {
        "the loss of the base model is not a finite number, so there is no gain to measure; give another --model, or look at \
         --eval-data"
    } else if !curve.full.is_finite() {
        "full training diverged, so there is no gain to reach a part of; give a lower --learning-rate and another --output-dir"
    } else if curve.start <= curve.full {
        "full training gained nothing, so there is no part of its gain to reach; give more --max-steps or another \
         --learning-rate, and another --output-dir"
    } else {
        return Ok(());
    };
    Err(TrainError::Config(why.into()).into())
}

/// The parameters that a run of the search trains.
enum Kind {
    /// The model as it is.
    Start,
    /// Every weight is free.
    Full,
    /// A subspace of this dimension.
    Subspace(usize),
}

impl Kind {
    fn name(&self) -> String {
        match self {
            Kind::Start => "start".to_owned(),
            Kind::Full => "full".to_owned(),
            Kind::Subspace(dimension) => format!("d-{dimension}"),
        }
    }
}

/// The runs of one search.
struct Search {
    raw: RawConfig,
    folder: PathBuf,
    steps: u64,
    /// Weights that full training moves.
    parameters: usize,
    subspace_rate: f64,
}

impl Search {
    fn new(args: &IntrinsicArgs) -> Result<Search, Failure> {
        let raw = args.settings.raw()?;
        let mistake = |why: &str| Failure::from(TrainError::Config(why.into()));
        if !(args.target > 0.0 && args.target <= 1.0) {
            return Err(mistake(&format!("--target must be above 0 and at most 1, got {}", args.target)));
        }
        if raw.intrinsic_dimension.is_some() {
            return Err(mistake("--intrinsic-dimension is what the search finds; leave it out"));
        }
        let Some(steps) = raw.max_steps else {
            return Err(mistake(
                "--max-steps is missing: every run of the search takes the same number of steps",
            ));
        };
        let Some(folder) = raw.output_dir.clone() else {
            return Err(mistake("--output-dir is missing: the runs of the search are kept there"));
        };
        if raw.eval_data.is_none() && raw.eval_split.is_none() {
            return Err(mistake(
                "the gain is measured on rows that are not trained on; give --eval-data or --eval-split",
            ));
        }
        guard::raise_for(&raw)?;
        let subspace_rate = args.subspace_learning_rate.unwrap_or(SUBSPACE_RATE);
        let mut search = Search { raw, folder, steps, parameters: 0, subspace_rate };
        let config = Config::check(&search.settings(&Kind::Full))?;
        if matches!(config.origin, Origin::Scratch) {
            return Err(mistake(&format!(
                "`{}` has no trained weights, and subspaces move weights that were trained before; give a folder or a hub id \
                 as --model",
                config.name
            )));
        }
        Config::check(&search.settings(&Kind::Subspace(1)))?;
        let forward = config.model.architecture.training(1, 1)?;
        let trained =
            forward.states().iter().filter(|state| state.kind == StateKind::Parameter { trainable: true });
        search.parameters = trained.map(|state| state.ty.shape.elements()).sum();
        guard::lower();
        search.keep_settings()?;
        Ok(search)
    }

    /// The settings of a run.
    fn settings(&self, kind: &Kind) -> RawConfig {
        let raw = RawConfig {
            output_dir: Some(self.folder.join(kind.name())),
            eval_steps: Some(self.steps),
            ..self.raw.clone()
        };
        match kind {
            Kind::Full => raw,
            Kind::Subspace(dimension) => RawConfig {
                intrinsic_dimension: Some(*dimension),
                learning_rate: Some(self.subspace_rate),
                ..raw
            },
            Kind::Start => RawConfig {
                intrinsic_dimension: Some(1),
                intrinsic_per_layer: None,
                learning_rate: Some(NO_RATE),
                warmup_steps: None,
                warmup_ratio: None,
                max_steps: Some(1),
                eval_steps: Some(1),
                ..raw
            },
        }
    }

    /// Writes the settings that all runs share, or refuses a folder whose runs have others.
    fn keep_settings(&self) -> Result<(), Failure> {
        let shared =
            RawConfig { output_dir: None, memory: None, threads: None, ..self.settings(&Kind::Subspace(1)) };
        let (path, text) = (self.folder.join("settings.toml"), shared.to_toml()?);
        let full =
            self.raw.learning_rate.map_or_else(String::new, |rate| format!("# full training: {rate}\n"));
        let text = full + &text;
        match fs::read_to_string(&path) {
            Ok(before) if before == text => Ok(()),
            Ok(_) => Err(TrainError::Config(format!(
                "`{}` holds a search with other settings; give them again, or another --output-dir",
                self.folder.display()
            ))
            .into()),
            Err(_) => {
                let made = fs::create_dir_all(&self.folder);
                made.map_err(|error| TrainError::output(&self.folder, &error))?;
                Ok(write_whole(&path, text.as_bytes()).map_err(|error| TrainError::output(&path, &error))?)
            }
        }
    }

    /// The validation loss at the end of a run, which is trained unless it was before; NaN of a run that diverged.
    fn loss(&self, kind: &Kind) -> Result<f64, Failure> {
        let settings = self.settings(kind);
        let (name, steps) = (kind.name(), settings.max_steps.unwrap_or(self.steps));
        let run = self.folder.join(&name);
        if let Some(loss) = known_loss(&run, steps)? {
            return Ok(loss);
        }
        let path = self.folder.join(format!("{name}.toml"));
        write(&path, &settings.to_toml()?)?;
        say(&format!("training {name}\n"))?;
        if train(&path)? == Ended::Diverged {
            write(&run.join(DIVERGED), "the loss or a gradient was not a finite number\n")?;
            say(&format!("{name} diverged; the search goes on without it\n"))?;
        }
        known_loss(&run, steps)?.ok_or_else(|| {
            Failure::Other(format!("{name} was stopped; give the same command again to go on from there"))
        })
    }

    /// Prints the curve and the answer.
    fn answer(&self, curve: &IntrinsicCurve, end: IntrinsicStep, target: f64) -> Result<(), Failure> {
        let page = intrinsic_page::write(&self.folder, curve, self.parameters, target)?;
        let text = intrinsic_page::text(curve, self.parameters, target, end);
        say(&format!("{text}the curve is in {}\n", page.display()))
    }
}

/// How a run ended.
#[derive(PartialEq)]
enum Ended {
    /// The run ended after its last step, or when it was asked to stop.
    Well,
    /// The numbers of the run were no longer finite.
    Diverged,
}

/// Trains by a file of settings, in a process of its own, from where an earlier one ended.
fn train(settings: &Path) -> Result<Ended, Failure> {
    let failed = |why: String| Failure::Other(format!("the run of `{}` failed: {why}", settings.display()));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["train", "--resume", "latest", "--json", "--settings"]).arg(settings);
    let status = command.stdout(Stdio::null()).status().map_err(|error| failed(error.to_string()))?;
    match status.code() {
        Some(0) => Ok(Ended::Well),
        Some(code) if code == i32::from(exit::DIVERGED) => Ok(Ended::Diverged),
        _ => Err(failed(status.to_string())),
    }
}

/// Writes a file of the search.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(write_whole(path, text.as_bytes()).map_err(|error| TrainError::output(path, &error))?)
}

/// The loss at the end of a run that need not be trained (again): NaN if it diverged, which it would do again.
fn known_loss(run: &Path, steps: u64) -> Result<Option<f64>, Failure> {
    if let Some(loss) = last_loss(&run.join("metrics.jsonl"), steps) {
        return Ok(Some(loss));
    }
    if !run.is_dir() {
        return Ok(None);
    }
    // A search that was killed may have left only the folder that the run itself wrote.
    let diverged = run.join(DIVERGED).exists() || Checkpoints::last_finite_in(run)?.is_some();
    Ok(diverged.then_some(f64::NAN))
}

/// The loss of the evaluation after `steps` steps, if it is on record; NaN where it was not finite.
fn last_loss(metrics: &Path, steps: u64) -> Option<f64> {
    let text = fs::read_to_string(metrics).ok()?;
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let evaluations = records.filter(|record| record["event"] == "evaluation");
    let mut evaluations =
        evaluations.filter_map(|record| serde_json::from_value::<EvaluationRecord>(record).ok());
    evaluations.find(|record| record.step == steps).map(|record| record.eval_loss)
}
