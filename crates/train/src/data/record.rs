//! One thing read from a data file: a piece of text, a sample with columns, or a line that is no sample.

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::DataError;
use super::room::{Extent, Form, Room};

/// One thing read from a file.
#[derive(Debug)]
pub(super) enum Record {
    /// Part of a document.
    Piece { text: String, opens: bool, closes: bool },
    /// A sample with named columns, and its line or row, counted from 1.
    Fields { line: u64, fields: Map<String, Json>, bytes: usize },
    /// A line that is no sample.
    Bad { line: u64, why: String },
}

impl Record {
    /// A row of a table.
    #[cfg(feature = "parquet")]
    pub(super) fn of(line: u64, fields: Map<String, Json>) -> Record {
        let bytes = fields.values().map(size).sum();
        Record::Fields { line, fields, bytes }
    }

    /// About how much memory the record takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Record::Piece { text, .. } => text.len(),
            Record::Fields { bytes, .. } => *bytes,
            Record::Bad { why, .. } => why.len(),
        }
    }

    /// The memory that the record takes until it is encoded.
    pub(super) fn extent(&self) -> Extent {
        let bytes = self.bytes() as u64;
        match self {
            Record::Fields { fields, .. } => {
                let conversation =
                    fields.contains_key("messages") || fields.get("prompt").is_some_and(Json::is_array);
                let form = if conversation { Form::Conversation } else { Form::Escaped };
                Extent { bytes, form, values: 0 }
            }
            Record::Piece { .. } | Record::Bad { .. } => Extent::of_text(bytes),
        }
    }

    /// The sample's line or row; a piece of text has no number.
    pub(super) fn line(&self) -> u64 {
        match self {
            Record::Piece { .. } => 1,
            Record::Fields { line, .. } | Record::Bad { line, .. } => *line,
        }
    }
}

/// The error for a record that needs more memory than there is.
pub(super) fn too_long(path: &Path, line: Option<u64>, extent: &Extent, room: &Room) -> DataError {
    DataError::TooLong { path: path.to_owned(), line, bytes: extent.bytes, least: room.least(extent) }
}

/// About how many bytes a value takes.
#[cfg(feature = "parquet")]
fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(size).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 8,
    }
}
