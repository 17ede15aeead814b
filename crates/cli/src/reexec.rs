//! Re-exec: the program replaces itself by `exec`, with the same arguments and none of the memory it has taken.
//!
//! The kernel counts the most that a process has ever held, and the allocator keeps some freed memory. Work before
//! training must leave no trace in a run with a budget, so the process starts anew in exactly three cases:
//!
//! - [`after_tokenising`]: data was tokenised. The next process finds the ids in the cache, and plans as every later one.
//! - [`after_measuring`]: the machine was measured. The next process finds the times in the cache.
//! - [`with_plan`]: searching for a plan took more memory than the budget has, or than the run may still hold. The next
//!   process reads the plan from a file.
//!
//! A process that starts anew keeps its process id and learns from environment variables what was done. If it cannot
//! start anew it continues as it is.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, id};
use std::time::Duration;
use std::{env, fs};

use plimsoll::Planned;
use plimsoll::training::files::{clear_temporaries, temporary_file};

use crate::exit::Failure;
use crate::heartbeat;

/// Set in every process that was started anew: the seconds since the last line that it printed before.
const BEGUN: &str = "PLIMSOLL_BEGUN_ANEW";
/// Set in a process that was started anew after tokenising.
const TOKENISED: &str = "PLIMSOLL_TOKENISED";
/// Set in a process that was started anew after measuring.
const MEASURED: &str = "PLIMSOLL_MEASURED";
/// Set in a process that was started anew with a plan: the path of its file.
const PLANNED: &str = "PLIMSOLL_PLANNED";

/// Beginning and end of the name of a plan that is handed on.
const PLAN_FILE: (&str, &str) = ("plimsoll-plan-", ".json");
/// A plan is read within seconds after it was written; one of this age was left by a process that was killed.
const LEFT: Duration = Duration::from_hours(1);

/// Starts anew after tokenising, once. Nothing may have been written before that would disturb a second start. If that
/// is impossible, the run continues: it keeps its budget, and may be planned differently the next time.
pub(crate) fn after_tokenising() {
    if noted(TOKENISED).is_none() {
        start_anew(TOKENISED, OsStr::new("1"));
    }
}

/// Starts anew after the machine was measured, once, so that the first plan on a machine equals that of every later
/// call.
pub(crate) fn after_measuring() {
    if noted(MEASURED).is_none() {
        start_anew(MEASURED, OsStr::new("1"));
    }
}

/// Removes plans of processes that were killed before they read them.
pub(crate) fn clear_left_plans() {
    if is_first() {
        clear_temporaries(&env::temp_dir(), PLAN_FILE, LEFT);
    }
}

/// Starts anew with `planned` if searching for it took memory that the budget does not have, or that the run would
/// still hold.
pub(crate) fn with_plan(planned: &Planned) -> Result<(), Failure> {
    if plan_made_before().is_some() || !planned.budget.wants_fresh_process()? {
        return Ok(());
    }
    // If no file can be written or no process started, the run continues and reports its memory at the end.
    if let Ok((mut file, path)) = temporary_file(&env::temp_dir(), PLAN_FILE, 0o600) {
        if file.write_all(planned.to_file().as_bytes()).is_ok() {
            start_anew(PLANNED, path.as_os_str());
        }
        let _ = fs::remove_file(&path);
    }
    Ok(())
}

/// The file with the plan that this process made before it started anew.
pub(crate) fn plan_made_before() -> Option<PathBuf> {
    noted(PLANNED).map(PathBuf::from)
}

/// Whether this process has not started anew yet, so that nothing was printed before.
pub(crate) fn is_first() -> bool {
    noted(BEGUN).is_none()
}

/// Time since the last line that this process printed before it started anew.
pub(crate) fn silence_before() -> Duration {
    let seconds = noted(BEGUN).and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Starts anew with `variable` set for [`noted`] to find. Returns only if that is not possible.
fn start_anew(variable: &str, note: &OsStr) {
    let mut arguments = env::args_os();
    let name = arguments.next();
    // The program that is running, also where its file was replaced since.
    let mut again = Command::new("/proc/self/exe");
    again.arg0(name.as_deref().unwrap_or(OsStr::new("plimsoll"))).args(arguments);
    // A process that starts anew keeps its process id; a child process has another one, and must not take the note for
    // its own.
    let own = |note: &OsStr| {
        let mut value = OsString::from(format!("{}:", id()));
        value.push(note);
        value
    };
    let silent = OsString::from(heartbeat::silent_for().as_secs().to_string());
    let _ = again.env(BEGUN, own(&silent)).env(variable, own(note)).exec();
}

/// The note that this process left before it started anew.
fn noted(variable: &str) -> Option<String> {
    let value = env::var(variable).ok()?;
    let (process, note) = value.split_once(':')?;
    (process == id().to_string()).then(|| note.to_owned())
}
