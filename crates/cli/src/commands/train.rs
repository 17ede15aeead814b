//! `plimsoll train`: the plan, a progress bar, records.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use plimsoll::TrainError;
use plimsoll::planning::ProcessBytes;
use plimsoll::training::job::{BetterStep, DiskNeed, Finished, Session};
use plimsoll::training::trainer::{EndRecord, RankRecord, write_line};
use plimsoll::training::trainer::{Event, Listener};
use plimsoll::training::{Config, RawConfig};

use crate::args::TrainArgs;
use crate::exit::{self, Failure};
use crate::launch::Launch;
use crate::live_page::{self, LivePage};
use crate::progress::{Progress, ShownRecords, Steps};
use crate::say::say;
use crate::signals::Preparing;
use crate::starting::{Start, start};
use crate::watching::Watching;
use crate::{guard, heartbeat, reexec, table};

/// Trains as the only process, or as the first of several.
pub(crate) fn run(args: &TrainArgs, launch: Option<Launch>) -> Result<(), Failure> {
    let Some(launch) = launch else { return run_first(args, None) };
    launch.check()?;
    run_first(args, Some(launch)).map_err(|failure| launch.reported(failure))
}

fn run_first(args: &TrainArgs, launch: Option<Launch>) -> Result<(), Failure> {
    let mut raw = args.settings.raw()?;
    guard::raise_for(&raw)?;
    let config = config_of(&mut raw, launch.as_ref())?;
    if args.print_config {
        let text = config.effective().to_toml()?;
        return io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error));
    }
    if args.stop_after == Some(0) {
        return Err(TrainError::Config("--stop-after must be at least 1".into()).into());
    }
    reexec::clear_left_plans();
    let watching = Watching::default();
    let made = watching.made();
    let made_too = Arc::clone(&made);
    let signals = Preparing::begin(move || undo(&made_too))?;
    let how = Start { plan: args.plan.as_deref(), pause: args.stop_after, launch };
    let mut session = start(config, &how, watching).inspect_err(|_| undo(&made))?;
    announce(&session, args.json)?;
    // From here on a signal ends the run like any other, also before its first step.
    signals.train(session.trainer().stop_flag());
    session.open_records()?;
    let result = train_telling(&mut session, args.json);
    // Also after a failed run, whose records are worth seeing.
    let output = session.config().output.as_ref().filter(|output| output.html);
    let page = output.map(live_page::finish).transpose();
    let end = result?;
    if !args.json {
        say(&summary(&end, session.summary().planned.budget.total))?;
    }
    if let (Ok(Some(page)), false) = (&page, args.json) {
        say(&format!("the report is in {page}\n"))?;
    }
    if let Some(finished) = session.finish(&end)? {
        say(&written(&session, &finished))?;
    }
    // The trained model is written even if the page failed.
    page?;
    Ok(session.judge(&end)?)
}

/// The checked settings of one process, perhaps among several.
pub(crate) fn config_of(raw: &mut RawConfig, launch: Option<&Launch>) -> Result<Config, TrainError> {
    let Some(launch) = launch else { return Config::check(raw) };
    launch.settle(raw)?;
    Config::check_process(raw, launch.place())
}

/// Removes the traces of a run that has not begun: its folder, if it is new and empty, and the file of a plan that
/// was made before the process started anew.
fn undo(made: &Arc<OnceLock<PathBuf>>) {
    // Anything left is empty or temporary, and the error cannot be reported any more.
    let _ = made.get().map(fs::remove_dir);
    let _ = reexec::plan_made_before().map(fs::remove_file);
}

/// The run ahead: the peak by purpose, its time, and the room on the disk.
fn announce(session: &Session, json: bool) -> Result<(), Failure> {
    if !json {
        say(&format!("{} on {}\n", session.config().name, session.device_name()))?;
    }
    let mut table = Vec::new();
    table::plan(&mut table, session.summary()).map_err(|error| Failure::output(&error))?;
    say(&String::from_utf8_lossy(&table))?;
    say(&session.disk_need().map_or_else(
        || "what is trained is not kept; give --output-dir to keep it\n".into(),
        |need| room(&need),
    ))
}

/// The room on the disk that a run takes.
fn room(&DiskNeed { checkpoints, each, all, free }: &DiskNeed) -> String {
    let free = free.map_or_else(String::new, |free| format!(", of {} that are free", table::size(free)));
    format!(
        "the run takes {} on the disk, {checkpoints} × {} of checkpoints and the model{free}\n",
        table::size(all),
        table::size(each)
    )
}

/// Which weights are in the folder of a run that is over.
fn written(session: &Session, finished: &Finished) -> String {
    let folder = session.config().output.as_ref().map(|output| output.folder.display().to_string());
    let folder = folder.unwrap_or_default();
    let of = match finished {
        Finished::Stopped => return format!("stopped; go on with --resume latest --output-dir {folder}\n"),
        Finished::Last => String::new(),
        Finished::Best(step) => format!(", as it was after step {step}"),
        Finished::NotTheBest { last, best } => {
            let best = match best {
                BetterStep::Kept(path) => format!("; the best is in {}", path.display()),
                BetterStep::Gone => String::new(),
                BetterStep::Lost { step, fault } => {
                    format!("; the best, after step {step}, is lost: {fault}")
                }
            };
            format!(", as it was after step {last}{best}")
        }
    };
    format!("what was trained is in {folder}{of}\n")
}

/// Takes all steps and reports them: as lines if scripts want `json`, and on the page.
fn train_telling(session: &mut Session, json: bool) -> Result<EndRecord, Failure> {
    let shown = ShownRecords::of(session.config());
    let output = session.config().output.clone();
    let mut page = output.as_ref().filter(|output| output.html).map(LivePage::begin);
    let mut lines = json.then_some(Lines);
    let mut listeners: Vec<&mut dyn Listener<Failure>> = Vec::new();
    listeners.extend(lines.as_mut().map(|lines| lines as &mut dyn Listener<Failure>));
    listeners.extend(page.as_mut().map(|page| page as &mut dyn Listener<Failure>));
    train(session, shown, &mut listeners)
}

/// Takes all steps with a progress bar. Each record that is `shown` gets a line.
pub(crate) fn train(
    session: &mut Session,
    shown: ShownRecords,
    listeners: &mut [&mut dyn Listener<Failure>],
) -> Result<EndRecord, Failure> {
    let steps = Steps { before: session.trainer().run().steps(), end: session.train_loop().end(), shown };
    let budget = session.summary().planned.budget.total;
    let mut progress = Progress::new(steps, budget, session.ceiling());
    let mut all: Vec<&mut dyn Listener<Failure>> = vec![&mut progress];
    all.extend(listeners.iter_mut().map(|listener| &mut **listener as &mut dyn Listener<Failure>));
    let result = session.train(&mut all);
    heartbeat::at_work();
    result.inspect_err(|_| progress.abandon())
}

/// Records as lines on standard output.
struct Lines;

impl Listener<Failure> for Lines {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        line(event)
    }

    fn dispensable(&self) -> Option<&'static str> {
        exit::goes_on_unheard().then_some("what --json asks for")
    }
}

/// The result of a run.
pub(crate) fn summary(end: &EndRecord, budget: ProcessBytes) -> String {
    let best = end.best.map_or_else(String::new, |best| {
        let early = if end.stopped_early { "; stopped early, as it no longer got better" } else { "" };
        format!("best validation loss {:.4} after step {}{early}\n", best.eval_loss, best.step)
    });
    let ranks = several(&end.ranks, end.slowest_rank).unwrap_or_default();
    let host =
        end.host_peak_bytes.map_or_else(String::new, |bytes| format!("   host {}", table::size(bytes)));
    format!(
        "{best}arena planned {} used {}   {} {} of {}{host}   {:.0} tokens/s\n{ranks}",
        table::size(end.planned_peak_bytes),
        table::size(end.measured_peak_bytes),
        if host.is_empty() { "process" } else { "card" },
        table::size(end.process_peak_bytes),
        table::size(budget.0),
        end.tokens_per_second
    )
}

/// Memory and compute time of several ranks, in a line.
fn several(ranks: &[RankRecord], slowest: Option<usize>) -> Option<String> {
    let range = |of: fn(&RankRecord) -> f64, written: fn(f64) -> String| {
        let [least, most] = [f64::min, f64::max]
            .map(|pick| ranks.iter().map(of).reduce(pick).map_or_else(String::new, written));
        if least == most { format!("{most} each") } else { format!("{least} to {most}") }
    };
    let bytes = |bytes: f64| table::size(bytes as u64);
    let (arenas, processes) =
        (range(|rank| rank.peak_bytes as f64, bytes), range(|rank| rank.process_bytes as f64, bytes));
    let busy = range(|rank| rank.busy_seconds, table::duration);
    let slowest = slowest?;
    Some(format!(
        "{} ranks: arena {arenas}   process {processes}   busy {busy}, rank {slowest} the longest\n",
        ranks.len()
    ))
}

/// Writes the record of an event to standard output.
fn line(event: &Event<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = match event {
        Event::Step(_) | Event::Saving | Event::Saved(_) | Event::Note(_) => Ok(()),
        Event::Log(record) => write_line(&mut out, record),
        Event::Experts(record) => write_line(&mut out, record),
        Event::Evaluation(record) => write_line(&mut out, record),
        Event::End(record) => write_line(&mut out, record),
    };
    written.and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}
