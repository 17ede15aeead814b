//! Text for people, on standard error: everything that is not data.

use std::io::{self, Write};

use crate::exit::{self, Failure};
use crate::heartbeat;

/// Writes text to standard error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    heartbeat::spoke();
    exit::said(io::stderr().lock().write_all(text.as_bytes()))
}
