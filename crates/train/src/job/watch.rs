//! Progress of a job before its first step: downloads, tokenising, planning.

use std::path::Path;

use crate::data::Progress;

/// The work that a job has reached.
#[derive(Debug)]
pub enum Stage<'a> {
    /// An adapter was named as the model, so the model that it belongs to is taken.
    Adapter {
        /// The name that was given.
        name: &'a str,
        /// The model that the adapter belongs to.
        base: &'a str,
    },
    /// The download of a file begins.
    Downloading {
        /// The file's name.
        file: &'a str,
        /// The file's size.
        bytes: u64,
    },
    /// The run's folder can be written to.
    Folder {
        /// The folder.
        path: &'a Path,
        /// Whether the job created the folder.
        new: bool,
    },
    /// Foreign files are read from here on: the model's, its tokenizer's, data, checkpoints.
    Reading,
    /// Part of the data was tokenised.
    Tokenising(Progress<'a>),
    /// No more foreign files are read, until the next [`Reading`](Stage::Reading).
    Working,
    /// The device is being opened, and measured where its times are not known: seconds at the first start on a machine.
    Opening,
    /// A plan is being searched for, until the next [`Working`](Stage::Working).
    Planning,
    /// The search asks about a program.
    Considering {
        /// Rows of its micro-batches.
        micro_batch: usize,
        /// Whether feed-forward networks run in tiles of rows.
        tiles: bool,
    },
}

/// Listener for the progress of a job. `()` ignores it.
pub trait Watch {
    /// Takes note of a stage.
    fn hear(&mut self, stage: Stage<'_>);
}

impl Watch for () {
    fn hear(&mut self, _: Stage<'_>) {}
}

impl<F: FnMut(Stage<'_>)> Watch for F {
    fn hear(&mut self, stage: Stage<'_>) {
        self(stage);
    }
}
