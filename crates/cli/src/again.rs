//! Beginning anew: the program in place of itself, with the same arguments and none of the memory it has taken.
//!
//! What a process has held counts as its peak for as long as it lives, and the allocator keeps some of it. Work that
//! comes before training (tokenising, looking for a plan) must leave no trace in a run that keeps to a budget.

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, id};

/// Set in every process that was begun anew.
const BEGUN: &str = "PLIMSOLL_BEGUN_ANEW";

/// Begins anew with `variable` set for [`noted`] to find. Returns where that is not possible.
pub(crate) fn begin(variable: &str, note: &OsStr) {
    let mut arguments = env::args_os();
    let name = arguments.next();
    // The program that is running, also where its file was replaced since.
    let mut again = Command::new("/proc/self/exe");
    again.arg0(name.as_deref().unwrap_or(OsStr::new("plimsoll"))).args(arguments);
    // A process that begins anew keeps its number; whom it starts has another, and must not take the note for its own.
    let begun = OsStr::new(&format!("{}:", id())).to_owned();
    let mut value = begun.clone();
    value.push(note);
    let _ = again.env(BEGUN, begun).env(variable, value).exec();
}

/// Whether this process has not begun anew, so that nothing was said before.
pub(crate) fn is_first() -> bool {
    noted(BEGUN).is_none()
}

/// What this process noted before it began anew.
pub(crate) fn noted(variable: &str) -> Option<String> {
    let value = env::var(variable).ok()?;
    let (process, note) = value.split_once(':')?;
    (process == id().to_string()).then(|| note.to_owned())
}
