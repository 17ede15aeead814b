//! Libraries that scripts have fetched into the folder of caches, and a printed note where they are missing.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write;
use std::path::PathBuf;

/// The folder of that name among the caches, whether it exists or not.
pub(crate) fn cached(name: &str) -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(caches.join("plimsoll").join(name))
}

/// Tells that something was not run, past the capture of a test's output.
pub(crate) fn not_run(what: &str, why: &str) {
    let said = format!("\n*** NOT RUN: {what}: {why} ***\n");
    std::io::stderr().write_all(said.as_bytes()).unwrap();
}
