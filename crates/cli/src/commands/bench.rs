//! `plimsoll bench step`: where the time of a step goes. `plimsoll bench ops`: how long each op of a model takes here, and
//! with `--offload disk` how fast the disk is, kept for later plans.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use plimsoll::training::{Config, Measured, measure_ops};
use plimsoll::{TrainError, devices};

use crate::args::{BenchArgs, BenchWhat, OpsArgs, StepArgs};
use crate::environment::environment;
use crate::exit::Failure;
use crate::say::say;
use crate::starting::{Start, start};
use crate::watching::Watching;
use crate::{guard, table, watching};

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        BenchWhat::Ops(ops) => measure(ops),
        BenchWhat::Step(step) => profile(step),
    }
}

/// A few steps, and where their time goes.
fn profile(args: &StepArgs) -> Result<(), Failure> {
    let raw = args.settings.raw()?;
    guard::raise_for(&raw)?;
    let config = Config::check(&raw)?;
    if args.steps == 0 {
        return Err(TrainError::Config("--steps must be at least 1".into()).into());
    }
    let mut session = start(config, &Start::default(), Watching::default())?;
    let profile = session.profile(args.steps)?;
    let config = session.config();
    let tokens = (config.options.global_batch * config.model.seq_len) as f64;
    let mut text = format!(
        "{} on {}\na step takes {:.3} ms, {:.0} tokens/s; predicted {:.3} ms\n",
        session.config().name,
        session.device_name(),
        1e3 * profile.step_seconds,
        tokens / profile.step_seconds,
        1e3 * profile.predicted_seconds
    );
    let all: f64 = profile.lines.iter().map(|line| line.seconds).sum();
    let _ = writeln!(text, "actions, each timed: {:.3} ms", 1e3 * all);
    for line in profile.lines.iter().take(args.lines) {
        let share = 100.0 * line.seconds / all;
        let rate = rate(line.matmul_flops, line.bytes, line.seconds);
        let (milliseconds, calls) = (1e3 * line.seconds, line.calls);
        let _ = writeln!(text, "{milliseconds:10.3} ms {share:5.1} % {calls:6} × {rate}  {}", line.op);
    }
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// The rate of an op: of its products, or of the bytes it moves.
fn rate(matmul_flops: f64, bytes: f64, seconds: f64) -> String {
    if matmul_flops > 0.0 {
        format!("{:8.1} GFLOP/s", matmul_flops / seconds / 1e9)
    } else {
        format!("{:8.1} GB/s   ", bytes / seconds / 1e9)
    }
}

fn measure(ops: &OpsArgs) -> Result<(), Failure> {
    let mut config = Config::check(&ops.settings.raw()?)?;
    let environment = environment();
    config.settle_device()?;
    config.options.gpu = environment.files_of(config.options.device)?;
    config.options.check_update()?;
    watching::settle(&mut config)?;
    let threads = devices::threads(config.options.threads);
    let device = config.options.plain_device()?;
    let file = environment.times_file(&*device).ok_or_else(|| {
        TrainError::Config("there is no folder to keep the times in; set HOME or XDG_CACHE_HOME".into())
    })?;
    let machine = || file.machine.clone();
    let mut new = Measured::nothing(machine());
    for round in 1..=ROUNDS {
        for rows in micro_batches(&config) {
            say(&format!("measuring micro-batches of {rows}, round {round} of {ROUNDS}\n"))?;
            match measure_ops(&config, rows) {
                Ok(timings) => new = new.fastest(Measured::new(machine(), &timings)),
                // A micro-batch that does not fit cannot be planned either.
                Err(error) if !new.is_empty() => say(&format!("skipped: {}\n", error.with_flags()))?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    let before = file.read().unwrap_or_else(|_| Measured::nothing(machine()));
    let all = before.updated(new.clone());
    if !file.write(&all) {
        return Err(Failure::Other(format!("cannot write `{}`", file.path.display())));
    }
    let mut out = io::stdout().lock();
    out.write_all(slowest(&new).as_bytes()).map_err(|error| Failure::output(&error))?;
    say(&format!("{} ops of {} are kept in `{}`\n", all.len(), file.machine, file.path.display()))?;
    if let Some(offload) = &config.options.offload {
        let link = environment.measure_disk(offload, threads)?;
        say(&format!("the disk, at {}, is kept too\n", table::rates(&link)))?;
    }
    Ok(())
}

/// Everything is measured this many times, at different moments, so that a disturbed moment spoils no op.
const ROUNDS: usize = 2;

/// The divisors of the global batch: a plan may choose any of them, unless one is fixed.
fn micro_batches(config: &Config) -> Vec<usize> {
    let all = config.options.global_batch;
    match config.options.fixed_micro_batch() {
        Some(rows) => vec![rows],
        None => (1..=all).filter(|rows| all.is_multiple_of(*rows)).collect(),
    }
}

/// The ops that take longest, with the rates they reach.
fn slowest(measured: &Measured) -> String {
    let timings = measured.ops();
    let mut ops: Vec<_> = timings.iter().filter_map(|(name, t)| Some((t.seconds?, t, name))).collect();
    ops.sort_by(|a, b| b.0.total_cmp(&a.0));
    let line = |&(seconds, timing, name): &(f64, &plimsoll::Timing, &str)| {
        let rate = rate(timing.matmul_flops, timing.bytes, seconds);
        format!("{:10.3} ms {rate}  {name}\n", 1e3 * seconds)
    };
    ops.iter().take(SHOWN).map(line).collect()
}

/// Lines of the table.
const SHOWN: usize = 20;
