//! How the program ends: 0 when all is well, 2 for the user's mistakes, 3 for runs whose numbers are no longer finite, 1 for
//! other failures.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::TrainError;

/// The exit code of a run whose numbers are no longer finite: a search of settings goes on after it.
pub(crate) const DIVERGED: u8 = 3;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Train(TrainError),
    /// Something outside the program failed.
    Other(String),
    /// The reader of the output has closed it; nothing more can be reported.
    Unread,
    /// Another process of the run reports the failure.
    Elsewhere,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Train(error) => f.write_str(&error.with_flags()),
            Failure::Other(why) => f.write_str(why),
            Failure::Unread => f.write_str("nobody reads it any more"),
            Failure::Elsewhere => f.write_str("another process reports it"),
        }
    }
}

impl<E: Into<TrainError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Train(error.into())
    }
}

/// Whether the command continues when its output cannot be written.
static UNHEARD: AtomicBool = AtomicBool::new(false);

/// From here on a closed standard output no longer ends the run; further output is dropped.
pub(crate) fn go_on_unheard() {
    UNHEARD.store(true, Ordering::Relaxed);
}

/// Whether output that cannot be written is dropped.
pub(crate) fn goes_on_unheard() -> bool {
    UNHEARD.load(Ordering::Relaxed)
}

/// The result of writing to the terminal.
pub(crate) fn said(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(_) if goes_on_unheard() => Ok(()),
        written => written.map_err(|error| Failure::output(&error)),
    }
}

impl Failure {
    /// A failure to write output.
    pub(crate) fn output(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::Other(format!("cannot write the output: {error}")),
        }
    }
}

/// One line of plain text that is safe to print on a terminal. The words of errors also come from files: from a chat
/// template that refuses a conversation, from the names of tensors and columns. An escape sequence among them could
/// hide or forge output.
pub(crate) fn printable(text: &str) -> String {
    let unsafe_to_show = |c: char| {
        // Control characters, and those that change the direction of the text.
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(unsafe_to_show) {
        return text.to_owned();
    }
    let shown = |c: char| if unsafe_to_show(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Reports a failure on standard error and chooses the exit code.
pub(crate) fn code(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    let (code, hints) = match &failure {
        Failure::Unread => return ExitCode::SUCCESS,
        Failure::Elsewhere => return ExitCode::FAILURE,
        Failure::Train(error) => (code_of(error), error.hints()),
        Failure::Other(_) => (1, Vec::new()),
    };
    // Where standard error cannot be written to, only the exit code reports the failure.
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "error: {}", printable(&failure.to_string()));
    for hint in hints {
        let _ = writeln!(err, "hint: {}", printable(&hint));
    }
    ExitCode::from(code)
}

fn code_of(error: &TrainError) -> u8 {
    match error {
        error if error.has_diverged() => DIVERGED,
        error if error.is_users() => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_file_cannot_steer_the_terminal_or_forge_a_line() {
        let shown = printable("no \u{1b}[31m red\nhint: do it\r\u{9b}2J \u{202e}x é 東京\t");
        assert_eq!(shown, "no \\u{1b}[31m red\\nhint: do it\\r\\u{9b}2J \\u{202e}x é 東京\\t");
        assert_eq!(printable("plain é"), "plain é");
    }
}
