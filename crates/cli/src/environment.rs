//! Environment variables: where caches and libraries of a GPU are, how to reach the hub, and the patience of tests.

use std::env;
use std::time::Duration;

use plimsoll::training::job::Environment;

use crate::heartbeat::LONGEST;

/// Seconds of the longest silence, set by tests that cannot wait for a minute.
const LONGEST_SILENCE: &str = "PLIMSOLL_LONGEST_SILENCE";

/// A variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The user's caches, the hub and libraries.
pub(crate) fn environment() -> Environment {
    Environment::from_variables(variable)
}

/// The longest silence of a run.
pub(crate) fn longest_silence() -> Duration {
    let seconds = variable(LONGEST_SILENCE).and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(LONGEST)
}
