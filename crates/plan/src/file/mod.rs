//! Plans as files: made once, inspected, run later.
//!
//! ```json
//! {"plimsoll_plan": 4, "hash": "…", "plan": {"graphs": {"train": "…"}, "device": "…", "schedules": {…}, …}}
//! ```
//!
//! A plan is valid for the graphs and the device it was made for. So the file holds a hash of each graph's text form
//! and of the device's facts that a schedule rests on (alignment and scratch, not timings). To run the plan, the
//! program is built anew and compared; the error names the difference. Then the plan is judged like one just made: a
//! file is trusted no more than the planner is. The hash of the whole file detects damage, not malice; malice meets the
//! judge.
//!
//! [`write()`] and [`Saved::parse`] are here, the form of a schedule in `rows`, the names of differences in `items`.

mod items;
mod rows;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use plimsoll_graph::name_hash;
use serde_json::{Map, Value, json};

use crate::bytes::{ArenaBytes, ProcessBytes};
use crate::device::Scratch;
use crate::offload::Residency;
use crate::plan::{ByPurpose, Draft, PlanError};
use crate::program::{Costed, Program, Purpose, StateDiffers, StateRange};
use crate::recompute::Strategy;
use crate::schedule::ReplayError;
use crate::search::Choice;

/// The form this version writes and reads.
const VERSION: u64 = 4;

/// Why a file is not a plan that may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanFileError {
    /// The file is not JSON, or holds something other than a plan.
    NotAPlan(String),
    /// The file was written by another version.
    Version {
        /// The version that the file states.
        found: u64,
    },
    /// The file's contents changed after it was written.
    Damaged,
    /// A field is missing or makes no sense.
    Field {
        /// Where, such as `schedules.first.buffers`.
        place: String,
        /// The kind of entry that belongs there.
        expected: &'static str,
    },
    /// The plan was made for something else.
    Differs {
        /// The part that differs.
        what: &'static str,
        /// The item that differs, if it is known, and the setting behind it.
        hint: String,
    },
    /// The judge refused a schedule.
    Refused {
        /// The name of the schedule.
        schedule: &'static str,
        /// Why.
        error: ReplayError,
    },
}

impl fmt::Display for PlanFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanFileError::NotAPlan(why) => write!(f, "not a plan file: {why}"),
            PlanFileError::Version { found } => {
                write!(f, "a plan of version {found}, and this build reads version {VERSION}; plan again")
            }
            PlanFileError::Damaged => f.write_str("the file was changed after it was written; plan again"),
            PlanFileError::Field { place, expected } => write!(f, "`{place}` must be {expected}"),
            PlanFileError::Differs { what, hint } => {
                write!(f, "the plan was made for another {what}: {hint}, or plan again")
            }
            PlanFileError::Refused { schedule, error } => {
                write!(f, "schedule `{schedule}` must not run: {error}")
            }
        }
    }
}

impl std::error::Error for PlanFileError {}

impl From<PlanError> for PlanFileError {
    fn from(error: PlanError) -> PlanFileError {
        match error {
            PlanError::StateDiffers { name } => PlanFileError::NotAPlan(StateDiffers { name }.to_string()),
            PlanError::Unsound { place, expected } => PlanFileError::Field { place, expected },
            PlanError::Refused { schedule, error } => PlanFileError::Refused { schedule, error },
        }
    }
}

/// The text of a plan file; `budget` is what the process was allowed.
pub fn write(choice: &Choice, budget: ProcessBytes) -> String {
    let Choice { plan, program, micro_batch, accumulation, lower_bound_seconds } = choice;
    let schedules: Map<String, Value> = plan
        .schedules
        .iter()
        .map(|(role, schedule)| (role.name().to_owned(), rows::schedule(schedule)))
        .collect();
    let state = |range: &StateRange| {
        json!([range.name, range.offset, range.bytes, range.tier.map(rows::tier_number)])
    };
    let states: Vec<Value> = plan.states.iter().map(state).collect();
    let body = json!({
        "graphs": graph_hashes(program),
        "items": items::items(&program.train.graph),
        "device": device_hash(program),
        "budget_bytes": budget.0,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "tiled": program.train.graph.tile_rows().is_some(),
        "passes": program.passes(),
        "recompute": plan.strategy.to_string(),
        "scratch": if plan.scratch == Scratch::Best { "best" } else { "least" },
        "arena_bytes": plan.arena_bytes.0,
        "liveness_bound_bytes": plan.liveness_bound,
        "lower_bound_seconds": lower_bound_seconds,
        "micro_batch_seconds": plan.micro_batch_seconds,
        "update_seconds": plan.update_seconds,
        "by_purpose": plan.by_purpose.iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(),
        "states": states,
        "schedules": schedules,
    });
    format!("{}\n", json!({ "plimsoll_plan": VERSION, "hash": hash(&body.to_string()), "plan": body }))
}

/// A plan file that was read, before it is compared with a program.
#[derive(Clone, Debug)]
pub struct Saved {
    body: Value,
    micro_batch: usize,
    accumulation: usize,
    budget: ProcessBytes,
}

impl Saved {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// When it is not a plan of this version, or was damaged.
    pub fn parse(text: &str) -> Result<Saved, PlanFileError> {
        let mut file: Value =
            serde_json::from_str(text).map_err(|error| PlanFileError::NotAPlan(error.to_string()))?;
        match file.get("plimsoll_plan").map(Value::as_u64) {
            Some(Some(VERSION)) => {}
            Some(Some(found)) => return Err(PlanFileError::Version { found }),
            _ => return Err(PlanFileError::NotAPlan("it has no version `plimsoll_plan`".into())),
        }
        // The plan is large, so it is moved rather than copied.
        let body = file.get_mut("plan").map(Value::take);
        let body = body.ok_or_else(|| PlanFileError::NotAPlan("it has no `plan`".into()))?;
        if file.get("hash").and_then(Value::as_str) != Some(&hash(&body.to_string())) {
            return Err(PlanFileError::Damaged);
        }
        let count = |name: &str| rows::count(&body, name, name).and_then(|n| positive(n, name));
        let (micro_batch, accumulation) = (count("micro_batch")?, count("accumulation")?);
        let budget = ProcessBytes(rows::whole(&body, "budget_bytes")?);
        Ok(Saved { body, micro_batch, accumulation, budget })
    }

    /// Rows of one micro-batch.
    pub fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Micro-batches of one step.
    pub fn accumulation(&self) -> usize {
        self.accumulation
    }

    /// Whether the plan is for a program with feed-forward networks in tiles.
    pub fn tiled(&self) -> bool {
        self.body.get("tiled").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether a micro-batch runs twice, the first time only for the gradient norm. Files without this entry come from
    /// versions in which two passes had to be requested.
    pub fn two_passes(&self) -> bool {
        self.body.get("passes").and_then(Value::as_u64) == Some(2)
    }

    /// Bytes the process was allowed when the plan was made.
    pub fn budget(&self) -> ProcessBytes {
        self.budget
    }

    /// The plan for `program`, which was built for the file's micro-batch, in tiles or not, on the machine that is to run it.
    ///
    /// # Errors
    ///
    /// When graphs or device are not those the plan was made for, or a schedule fails the judge.
    pub fn for_program(&self, program: Program) -> Result<Choice, PlanFileError> {
        self.same_graphs(&program)?;
        if rows::text(&self.body, "device")? != device_hash(&program) {
            let hint = "alignment or scratch of its kernels differ; run it where it was made".to_owned();
            return Err(PlanFileError::Differs { what: "device", hint });
        }
        let plan = self.draft(&program)?.judge(&program)?;
        let lower_bound_seconds = self.body.get("lower_bound_seconds").and_then(Value::as_f64);
        let (micro_batch, accumulation) = (self.micro_batch, self.accumulation);
        Ok(Choice { plan, program, micro_batch, accumulation, lower_bound_seconds })
    }

    fn same_graphs(&self, program: &Program) -> Result<(), PlanFileError> {
        let hashes = graph_hashes(program);
        let saved = rows::object(&self.body, "graphs")?;
        if saved.get("train") != hashes.get("train") {
            let settings = "model, sequence length, optimizer and --update must be those it was made with";
            let item = items::difference(&self.body["items"], &program.train.graph);
            let hint = item.map_or_else(|| settings.to_owned(), |item| format!("{item}; {settings}"));
            return Err(PlanFileError::Differs { what: "training graph", hint });
        }
        if *saved != hashes {
            let hint =
                "a run evaluates if its plan does, so --eval-steps goes to `plan` and `train` or to neither";
            return Err(PlanFileError::Differs { what: "set of graphs", hint: hint.to_owned() });
        }
        Ok(())
    }

    fn draft(&self, program: &Program) -> Result<Draft, PlanFileError> {
        let body = &self.body;
        let mut schedules = BTreeMap::new();
        for (name, schedule) in rows::object(body, "schedules")? {
            let role = program.roles().map(|(role, _)| role).find(|role| role.name() == name);
            let role =
                role.ok_or_else(|| rows::field(&format!("schedules.{name}"), "one the program has"))?;
            schedules.insert(role, rows::parse_schedule(name, schedule)?);
        }
        let strategy = rows::text(body, "recompute")?.parse::<Strategy>();
        Ok(Draft {
            strategy: strategy.map_err(|_| rows::field("recompute", "the name of a strategy"))?,
            scratch: match rows::text(body, "scratch")? {
                "best" => Scratch::Best,
                "least" => Scratch::Least,
                _ => return Err(rows::field("scratch", "`best` or `least`")),
            },
            arena_bytes: ArenaBytes(rows::whole(body, "arena_bytes")?),
            liveness_bound: rows::whole(body, "liveness_bound_bytes")?,
            states: self.states(program)?,
            schedules,
            by_purpose: self.by_purpose()?,
            micro_batch_seconds: rows::number(body, "micro_batch_seconds")?,
            update_seconds: rows::number(body, "update_seconds")?,
        })
    }

    /// The ranges of the program, where the file puts them.
    fn states(&self, program: &Program) -> Result<Vec<StateRange>, PlanFileError> {
        let wrong = || rows::field("states", "the program's state, in its order");
        let mut ranges = Residency::new(program, 0).map_err(|_| wrong())?.states;
        let saved = rows::list(&self.body, "states")?;
        if saved.len() != ranges.len() {
            return Err(wrong());
        }
        for (range, saved) in ranges.iter_mut().zip(saved) {
            let offset = saved.get(1).and_then(Value::as_u64).ok_or_else(wrong)?;
            if saved.get(0).and_then(Value::as_str) != Some(&range.name)
                || saved[2].as_u64() != Some(range.bytes)
            {
                return Err(wrong());
            }
            range.tier = match &saved[3] {
                Value::Null => None,
                number => Some(number.as_u64().and_then(rows::tier).ok_or_else(wrong)?),
            };
            range.offset = offset;
        }
        Ok(ranges)
    }

    fn by_purpose(&self) -> Result<ByPurpose, PlanFileError> {
        let wrong = || rows::field("by_purpose", "a size for each purpose, then what is free");
        let sizes = rows::list(&self.body, "by_purpose")?.iter().map(Value::as_u64);
        let sizes: Option<Vec<u64>> = sizes.collect();
        ByPurpose::from_sizes(&sizes.ok_or_else(wrong)?).ok_or_else(wrong)
    }
}

fn positive(number: usize, place: &str) -> Result<usize, PlanFileError> {
    if number > 0 { Ok(number) } else { Err(rows::field(place, "at least 1")) }
}

/// Hash of the text form of each graph.
fn graph_hashes(program: &Program) -> Map<String, Value> {
    let parts = [("train", Some(&program.train)), ("evaluate", program.evaluate.as_ref())];
    let parts = parts.into_iter().chain([("generate", program.generate.as_ref())]);
    parts.filter_map(|(name, part)| Some((name.to_owned(), hash(&part?.graph.to_string()).into()))).collect()
}

/// Hash of the facts that schedules rest on: alignment, and scratch of every node of every graph.
fn device_hash(program: &Program) -> String {
    let parts = [Some(&program.train), program.evaluate.as_ref(), program.generate.as_ref()];
    let mut text = String::new();
    for Costed { facts, .. } in parts.into_iter().flatten() {
        let _ = writeln!(text, "alignment {}", facts.alignment);
        for node in &facts.nodes {
            let _ = writeln!(text, "{} {}", node.workspace.least, node.workspace.best);
        }
    }
    hash(&text)
}

fn hash(text: &str) -> String {
    format!("{:016x}", name_hash(text))
}

/// Names of purposes by their position.
fn purpose(index: u64) -> Option<Purpose> {
    Purpose::ALL.get(usize::try_from(index).ok()?).copied()
}
