//! `plimsoll demo`: shows the effect of a budget, measured on this machine.
//!
//! A small model is trained inside the budget; a second process trains the first steps of the same run
//! without one. Their losses must be the same bits. The second run is a process of its own because the
//! budget is the high-water mark of this one.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use plimsoll::Run;
use plimsoll::training::data::BEGIN;
use plimsoll::training::generate::Sampling;
use plimsoll::training::trainer::Event;
use plimsoll::training::{Config, RawConfig};

use crate::args::DemoArgs;
use crate::commands::train::{summary, train};
use crate::exit::Failure;
use crate::progress::ShownRecords;
use crate::say::say;
use crate::starting::{Start, start};
use crate::watching::Watching;
use crate::{curve, table};

/// Sequences of a step and of a micro-batch: large enough not to fit 64 MiB when everything is kept.
const BATCH: usize = 16;
/// Steps of the comparison without a budget.
const COMPARED_STEPS: usize = 20;
const PROMPT: &str = "//! ";
const SAMPLE_TOKENS: usize = 120;

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let raw = raw(args);
    let mut config = Config::check(&raw)?;
    config.model.generate = true;
    let mut session = start(config, &Start::default(), Watching::default())?;
    let (seq_len, vocab) = (session.config().model.seq_len, session.config().model.architecture.vocab());
    say(&format!("preset tiny on {}, trained on {}\n\n", session.device_name(), data_name(&raw)))?;
    let mut plan = Vec::new();
    table::plan(&mut plan, session.summary()).map_err(|error| Failure::output(&error))?;
    say(&String::from_utf8_lossy(&plan))?;
    say("\n")?;

    // Sampled once before the first step, so that the arena's peak equals the plan's even in a run that is cut short.
    sample(session.trainer_mut().run_mut(), seq_len, vocab)?;
    let mut losses = Vec::new();
    let mut rates = Vec::new();
    let mut note = |event: &Event<'_>| {
        if let Event::Step(record) = event {
            losses.push(record.loss);
            rates.push(record.tokens_per_second);
        }
        Ok(())
    };
    let end = train(&mut session, ShownRecords::Some, &mut [&mut note])?;
    session.judge(&end)?;
    say(&format!("\nloss\n{}\n", curve::draw(&losses)))?;
    let text = sample(session.trainer_mut().run_mut(), seq_len, vocab)?;
    say(&format!("sample\n  {}\n\n", text.trim_end().replace('\n', "\n  ")))?;
    say(&summary(&end, session.summary().planned.budget.total))?;
    compare(args, &raw, &losses, &rates, end.process_peak_bytes)
}

fn raw(args: &DemoArgs) -> RawConfig {
    let repository = PathBuf::from("crates");
    let data = args.data.clone().or_else(|| repository.is_dir().then_some(repository));
    RawConfig {
        model: Some("tiny".into()),
        memory: Some(args.memory.clone()),
        global_batch: Some(BATCH),
        // The micro-batch is fixed, so that the two runs differ only in memory.
        micro_batch: Some(BATCH),
        max_steps: Some(args.max_steps),
        learning_rate: Some(3e-3),
        threads: args.threads,
        synthetic: Some(data.is_none()),
        data: data.map(|path| vec![path.display().to_string()]),
        ..RawConfig::default()
    }
}

fn data_name(raw: &RawConfig) -> String {
    raw.data.as_ref().map_or_else(|| "made-up data".to_owned(), |path| format!("`{}`", path.join(", ")))
}

/// Trains the first steps without a budget in another process, and prints the cost of the budget.
fn compare(
    args: &DemoArgs,
    raw: &RawConfig,
    losses: &[f64],
    rates: &[f64],
    peak: u64,
) -> Result<(), Failure> {
    let steps = losses.len().min(COMPARED_STEPS);
    let records = unbudgeted(args, raw)?;
    let field = |record: &Value, name: &str| record.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let without: Vec<f64> = records.iter().take(steps).map(|record| field(record, "loss")).collect();
    let same = without.len() == steps && without.iter().zip(losses).all(|(a, b)| a.to_bits() == b.to_bits());
    // The fastest step of each run counts: slower steps include other work of the machine.
    let free_rate = records.iter().map(|record| field(record, "tokens_per_second")).fold(0.0, f64::max);
    let rate = rates[..steps].iter().copied().fold(0.0, f64::max);
    let free_peak = records.last().map_or(f64::NAN, |record| field(record, "process_peak_bytes"));
    let verdict = if same { "the same loss bits" } else { "DIFFERENT loss bits" };
    say(&format!(
        "without a budget {}; in {} {verdict} over {steps} steps, {:+.0} % time\n",
        table::size(free_peak as u64),
        table::size(peak),
        100.0 * (free_rate / rate - 1.0)
    ))?;
    if same {
        Ok(())
    } else {
        Err(Failure::Other("the budget changed the result, which is a fault of plimsoll".into()))
    }
}

/// The records of the same run with everything kept. It is stopped after the steps that are compared, so
/// its learning-rate schedule is that of the whole run.
fn unbudgeted(args: &DemoArgs, raw: &RawConfig) -> Result<Vec<Value>, Failure> {
    let failed = |why: String| Failure::Other(format!("the comparison without a budget failed: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    let batch = BATCH.to_string();
    let fixed = ["train", "--json", "--model", "tiny", "--recompute", "none", "--learning-rate", "0.003"];
    command.args(fixed).args(["--global-batch", &batch, "--micro-batch", &batch]);
    command.args(["--max-steps", &args.max_steps.to_string()]);
    command.args(["--stop-after", &COMPARED_STEPS.to_string()]);
    if let Some(path) = &raw.data {
        command.arg("--data").args(path);
    }
    if let Some(threads) = args.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    let output = command.stderr(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("it ended with {}", output.status)));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(|line| serde_json::from_str(line).map_err(|error| failed(error.to_string()))).collect()
}

/// A text the model writes, one byte at a time, drawn at temperature 0.7 from a fixed seed.
fn sample(run: &mut Run, seq_len: usize, vocab: usize) -> Result<String, Failure> {
    let mut tokens = vec![0; seq_len];
    tokens[0] = BEGIN;
    for (slot, byte) in tokens[1..].iter_mut().zip(PROMPT.bytes()) {
        *slot = i32::from(byte);
    }
    let mut logits = vec![0.0; vocab];
    let mut text = PROMPT.as_bytes().to_vec();
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    for position in PROMPT.len()..(PROMPT.len() + SAMPLE_TOKENS).min(seq_len - 1) {
        run.generate(&tokens, position, &mut logits)?;
        let Ok(byte) = u8::try_from(sampling.draw(&logits, position)) else {
            // A mark, not a byte: the text ends here.
            break;
        };
        tokens[position + 1] = i32::from(byte);
        text.push(byte);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
