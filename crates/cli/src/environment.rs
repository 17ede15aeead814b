//! Environment variables: where caches and libraries of a GPU are, and how to reach the hub.

use std::env;

use plimsoll::training::job::Environment;

/// A variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The user's caches, the hub and libraries.
pub(crate) fn environment() -> Environment {
    Environment::from_variables(variable)
}
