//! Reasons why a model could not be downloaded, and the words for each.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::TrainError;
use crate::files::FileError;

/// A reason why a model could not be downloaded.
#[derive(Debug)]
pub(super) enum Fault {
    /// The repository exists, but lacks something that a model needs: this text names it.
    Lacks(&'static str),
    /// The repository holds an adapter and no model.
    Adapter,
    /// The server refuses the list of files.
    NoModel(u16),
    /// The server refuses one file.
    NoFile(String, u16),
    /// An unexpected status, and the pause that the server wants before the next try.
    Status(u16, Option<Duration>),
    /// There is no connection to the server.
    Unreachable(String),
    /// The connection broke, or went silent.
    Broken(String),
    /// The server's answer is refused: it breaks a rule, so asking again is useless.
    Refused(String),
    /// The server sends more than this many bytes, which it had announced.
    Excess(u64),
    /// A setting of the user's is wrong.
    Setting(String),
    /// The cache cannot be written.
    Cache(FileError),
}

impl Fault {
    /// A file or folder of the cache that cannot be written.
    pub(super) fn writing(path: &Path, fault: &io::Error) -> Fault {
        Fault::Cache(FileError::writing(path, fault))
    }

    /// Whether the same request may succeed a moment later. `answered` says whether the server ever answered.
    pub(super) fn passes(&self, answered: bool) -> bool {
        match self {
            Fault::Broken(_) | Fault::Status(429 | 500..=599, _) => true,
            Fault::Unreachable(_) => answered,
            _ => false,
        }
    }

    /// The pause that the server asked for.
    pub(super) fn wished_pause(&self) -> Option<Duration> {
        if let Fault::Status(_, pause) = self { *pause } else { None }
    }

    /// The fault as the user reads it.
    pub(super) fn explain(self, id: &str, server: &str) -> TrainError {
        let again = "what came so far is kept, so try again";
        TrainError::Config(match self {
            Fault::Cache(error) => return error.into(),
            Fault::Setting(why) => why,
            Fault::Lacks(what) => format!(
                "`{id}` on {server} has no {what}; take a model that has, or save this one with transformers' \
                 `save_pretrained` and give its folder"
            ),
            Fault::Adapter => format!(
                "`{id}` on {server} is an adapter, and adapters are not downloaded here; run \
                 `hf download {id} --local-dir FOLDER` and give that folder as --model"
            ),
            Fault::NoModel(status) => format!(
                "{server} shows no model `{id}`: check the name, or state HF_TOKEN where it is not public \
                 (status {status})"
            ),
            Fault::NoFile(name, 404) => {
                format!(
                    "{server} has no file `{name}` of `{id}`, though the model needs it; take another model"
                )
            }
            Fault::NoFile(name, status) => format!(
                "{server} keeps `{name}` of `{id}` to those who may have it (status {status}): accept the model's \
                 conditions on its page and state HF_TOKEN"
            ),
            Fault::Status(status, _) => {
                format!("`{id}` could not be had from {server}: it answers with status {status}; {again}")
            }
            Fault::Unreachable(why) | Fault::Broken(why) => {
                format!("`{id}` could not be had from {server}: {why}; {again}")
            }
            Fault::Refused(why) => not_taken(id, server, &why),
            Fault::Excess(bytes) => {
                not_taken(id, server, &format!("it sends more than the {bytes} bytes that it announced"))
            }
        })
    }
}

fn not_taken(id: &str, server: &str, why: &str) -> String {
    format!("`{id}` is not taken from {server}: {why}; try later, or state another server as HF_ENDPOINT")
}

/// Text from a server, safe to show and not too long.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(100).flat_map(char::escape_debug).collect();
    if text.chars().nth(100).is_some() {
        shown.push('…');
    }
    shown
}
