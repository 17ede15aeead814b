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
//! [`write()`] and [`Saved::parse`] are here, the form of a schedule in `rows`, the lists of a text in `body`, the names of
//! differences in `items`.

mod body;
mod items;
mod rows;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use plimsoll_graph::{NameHash, name_hash};
use serde_json::{Map, Value, json};

use crate::bytes::{ArenaBytes, ProcessBytes};
use crate::device::Scratch;
use crate::offload::Residency;
use crate::plan::{ByPurpose, Draft, PlanError};
use crate::program::{Costed, Program, Purpose, StateDiffers, StateRange};
use crate::recompute::Strategy;
use crate::schedule::ReplayError;
use crate::search::Choice;
use body::Body;

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

/// The text of a plan file; `budget` is what the process was allowed. It is written row by row: a long plan has millions of
/// numbers, and a process that plans in a small budget has no room for them as a tree.
pub fn write(choice: &Choice, budget: ProcessBytes) -> String {
    let mut text = seal();
    let hash_at = text.len();
    // The hash takes this place once the plan is there.
    text.push_str(&hash(""));
    text.push_str(PLAN);
    let plan_at = text.len();
    write_plan(&mut text, choice, budget);
    let hash = hash(&text[plan_at..]);
    text.replace_range(hash_at..hash_at + hash.len(), &hash);
    text.push_str(END);
    text
}

/// Text of a file before the hash.
fn seal() -> String {
    format!("{{\"plimsoll_plan\":{VERSION},\"hash\":\"")
}

/// Text of a file between hash and plan, and behind the plan.
const PLAN: &str = "\",\"plan\":";
const END: &str = "}\n";

/// The text of the plan in a file as it was written, if nothing in the file was changed since.
fn sealed(text: &str) -> Option<&str> {
    let (found, plan) = text.strip_prefix(&seal())?.split_once(PLAN)?;
    let plan = plan.strip_suffix(END)?;
    (found == hash(plan)).then_some(plan)
}

fn write_plan(text: &mut String, choice: &Choice, budget: ProcessBytes) {
    let Choice { plan, program, micro_batch, accumulation, lower_bound_seconds } = choice;
    let before_rows = json!({
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
    });
    let before_rows = before_rows.to_string();
    text.push_str(before_rows.strip_suffix('}').unwrap_or(&before_rows));
    text.push_str(",\"states\":");
    rows::write_list(text, &plan.states, rows::write_state);
    text.push_str(",\"schedules\":");
    for (at, (role, schedule)) in plan.schedules.iter().enumerate() {
        text.push(if at == 0 { '{' } else { ',' });
        rows::write_text(text, role.name());
        text.push(':');
        rows::write_schedule(text, schedule);
    }
    text.push_str(if plan.schedules.is_empty() { "{}}" } else { "}}" });
}

/// A plan file that was read, before it is compared with a program.
#[derive(Clone, Debug)]
pub struct Saved {
    body: Body,
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
        let body = match sealed(text) {
            Some(plan) => Body::read(plan)?,
            None => Body::read(&rewritten(text)?)?,
        };
        let count = |name: &str| rows::count(&body.fields, name, name).and_then(|n| positive(n, name));
        let (micro_batch, accumulation) = (count("micro_batch")?, count("accumulation")?);
        let budget = ProcessBytes(rows::whole(&body.fields, "budget_bytes")?);
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
        self.body.fields.get("tiled").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether a micro-batch runs twice, the first time only for the gradient norm. Files without this entry come from
    /// versions in which two passes had to be requested.
    pub fn two_passes(&self) -> bool {
        self.body.fields.get("passes").and_then(Value::as_u64) == Some(2)
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
        if rows::text(&self.body.fields, "device")? != device_hash(&program) {
            let hint = "alignment or scratch of its kernels differ; run it where it was made".to_owned();
            return Err(PlanFileError::Differs { what: "device", hint });
        }
        let plan = self.draft(&program)?.judge(&program)?;
        let lower_bound_seconds = self.body.fields.get("lower_bound_seconds").and_then(Value::as_f64);
        let (micro_batch, accumulation) = (self.micro_batch, self.accumulation);
        Ok(Choice { plan, program, micro_batch, accumulation, lower_bound_seconds })
    }

    fn same_graphs(&self, program: &Program) -> Result<(), PlanFileError> {
        let hashes = graph_hashes(program);
        let saved = rows::object(&self.body.fields, "graphs")?;
        if saved.get("train") != hashes.get("train") {
            let settings = "model, sequence length, optimizer and --update must be those it was made with";
            let item = items::difference(&self.body.fields["items"], &program.train.graph);
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
        let body = &self.body.fields;
        let mut schedules = BTreeMap::new();
        let saved = self.body.schedules.as_ref().ok_or_else(|| rows::field("schedules", "an object"))?;
        for (name, schedule) in saved {
            let role = program.roles().map(|(role, _)| role).find(|role| role.name() == name);
            let role =
                role.ok_or_else(|| rows::field(&format!("schedules.{name}"), "one the program has"))?;
            schedules.insert(role, schedule.named(name)?);
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
        let saved = self.body.states.as_ref().ok_or_else(|| rows::field("states", "a list"))?;
        let saved = saved.rows().map_err(|_| wrong())?;
        if saved.len() != ranges.len() {
            return Err(wrong());
        }
        for (range, saved) in ranges.iter_mut().zip(saved) {
            if saved.name != range.name || saved.bytes != range.bytes {
                return Err(wrong());
            }
            (range.tier, range.offset) = (saved.tier, saved.offset);
        }
        Ok(ranges)
    }

    fn by_purpose(&self) -> Result<ByPurpose, PlanFileError> {
        let wrong = || rows::field("by_purpose", "a size for each purpose, then what is free");
        let sizes = rows::list(&self.body.fields, "by_purpose")?.iter().map(Value::as_u64);
        let sizes: Option<Vec<u64>> = sizes.collect();
        ByPurpose::from_sizes(&sizes.ok_or_else(wrong)?).ok_or_else(wrong)
    }
}

/// The plan in the text of a file that is no longer as it was written, such as one with other white space. Its hash is that
/// of its own text without white space.
fn rewritten(text: &str) -> Result<String, PlanFileError> {
    let file: Value =
        serde_json::from_str(text).map_err(|error| PlanFileError::NotAPlan(error.to_string()))?;
    match file.get("plimsoll_plan").map(Value::as_u64) {
        Some(Some(VERSION)) => {}
        Some(Some(found)) => return Err(PlanFileError::Version { found }),
        _ => return Err(PlanFileError::NotAPlan("it has no version `plimsoll_plan`".into())),
    }
    let plan = file.get("plan").map(Value::to_string);
    let plan = plan.ok_or_else(|| PlanFileError::NotAPlan("it has no `plan`".into()))?;
    if file.get("hash").and_then(Value::as_str) != Some(&hash(&plan)) {
        return Err(PlanFileError::Damaged);
    }
    Ok(plan)
}

fn positive(number: usize, place: &str) -> Result<usize, PlanFileError> {
    if number > 0 { Ok(number) } else { Err(rows::field(place, "at least 1")) }
}

/// Hash of the text form of each graph.
fn graph_hashes(program: &Program) -> Map<String, Value> {
    let parts = [("train", Some(&program.train)), ("evaluate", program.evaluate.as_ref())];
    let parts = parts.into_iter().chain([("generate", program.generate.as_ref())]);
    parts
        .filter_map(|(name, part)| Some((name.to_owned(), hash_of(format_args!("{}", part?.graph)).into())))
        .collect()
}

/// Hash of the facts that schedules rest on: alignment, and scratch of every node of every graph.
fn device_hash(program: &Program) -> String {
    let parts = [Some(&program.train), program.evaluate.as_ref(), program.generate.as_ref()];
    let mut hashed = NameHash::default();
    for Costed { facts, .. } in parts.into_iter().flatten() {
        let _ = writeln!(hashed, "alignment {}", facts.alignment);
        for node in &facts.nodes {
            let _ = writeln!(hashed, "{} {}", node.workspace.least, node.workspace.best);
        }
    }
    format!("{:016x}", hashed.hash())
}

/// The hash of a text that is never held as a whole.
fn hash_of(text: fmt::Arguments) -> String {
    let mut hashed = NameHash::default();
    let _ = hashed.write_fmt(text);
    format!("{:016x}", hashed.hash())
}

fn hash(text: &str) -> String {
    format!("{:016x}", name_hash(text))
}

/// Names of purposes by their position.
fn purpose(index: u64) -> Option<Purpose> {
    Purpose::ALL.get(usize::try_from(index).ok()?).copied()
}
