//! The rows of a `.parquet` file, one at a time. Without the feature `parquet` there are none, and opening a file says so.

use std::fs::File;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::DataError;

pub(super) use reader::ParquetRows;

/// A row: its number, counted from 1, and its columns.
type Row = (u64, Map<String, Json>);

fn unreadable(path: &Path, why: &str) -> DataError {
    DataError::Unreadable { path: path.to_owned(), why: why.split_whitespace().collect::<Vec<_>>().join(" ") }
}

#[cfg(feature = "parquet")]
mod reader {
    use parquet::errors::ParquetError;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::reader::RowIter;
    use parquet::record::{self, Field};

    use super::{DataError, File, Json, Map, Path, Row, unreadable};
    use crate::data::exact_json::float;
    use crate::panics::caught;
    use crate::reading;

    /// The rows of one file.
    pub(in crate::data) struct ParquetRows {
        rows: RowIter<'static>,
        row: u64,
        total: u64,
        bytes: u64,
    }

    impl ParquetRows {
        pub(in crate::data) fn open(path: &Path, input: File) -> Result<ParquetRows, DataError> {
            let bytes = input.metadata().map_err(|fault| DataError::reading(path, &fault))?.len();
            let broken = |fault| broken(path, &fault);
            let file = caught(|| SerializedFileReader::new(input));
            let file = file.map_err(|why| unreadable(path, &why))?.map_err(broken)?;
            let total = file.metadata().file_metadata().num_rows().max(1) as u64;
            Ok(ParquetRows { rows: RowIter::from_file_into(Box::new(file)), row: 0, total, bytes })
        }

        /// Estimate of the bytes that have been read. The byte offset of a row is not known; its share of the rows is.
        pub(in crate::data) fn read(&self) -> u64 {
            (self.bytes as f64 * (self.row as f64 / self.total as f64)) as u64
        }

        /// The next row; `None` at the end.
        pub(in crate::data) fn next(&mut self, path: &Path) -> Result<Option<Row>, DataError> {
            reading::step();
            // The library panics on some faults of a file.
            let next = caught(|| self.rows.next()).map_err(|why| unreadable(path, &why))?;
            let Some(next) = next else { return Ok(None) };
            self.row += 1;
            Ok(Some((self.row, fields_of(next.map_err(|fault| broken(path, &fault))?))))
        }
    }

    fn broken(path: &Path, fault: &ParquetError) -> DataError {
        unreadable(path, &fault.to_string())
    }

    fn fields_of(row: record::Row) -> Map<String, Json> {
        row.into_columns().into_iter().map(|(name, field)| (name, json_of(field))).collect()
    }

    /// Values that are no JSON are as transformers gives them to a chat template: by the name of their type in Python.
    fn json_of(field: Field) -> Json {
        match field {
            Field::Null => Json::Null,
            Field::Bool(value) => value.into(),
            Field::Byte(value) => value.into(),
            Field::Short(value) => value.into(),
            Field::Int(value) => value.into(),
            Field::Long(value) => value.into(),
            Field::UByte(value) => value.into(),
            Field::UShort(value) => value.into(),
            Field::UInt(value) => value.into(),
            Field::ULong(value) => value.into(),
            Field::Float16(value) => float(value.to_f64()),
            Field::Float(value) => float(value.into()),
            Field::Double(value) => float(value),
            Field::Str(text) => text.into(),
            Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into(),
            Field::Group(row) => Json::Object(fields_of(row)),
            Field::ListInternal(list) => list.elements().iter().cloned().map(json_of).collect(),
            Field::MapInternal(map) => {
                let pairs =
                    map.entries().iter().map(|(key, value)| [json_of(key.clone()), json_of(value.clone())]);
                pairs.map(|pair| Json::Array(pair.into())).collect()
            }
            Field::Date(_) => "<date>".into(),
            Field::TimeMillis(_) | Field::TimeMicros(_) => "<time>".into(),
            Field::TimestampMillis(_) | Field::TimestampMicros(_) => "<datetime>".into(),
            Field::Decimal(_) => "<Decimal>".into(),
        }
    }
}

#[cfg(not(feature = "parquet"))]
mod reader {
    use super::{DataError, File, Path, Row, unreadable};

    /// Never there.
    pub(in crate::data) enum ParquetRows {}

    impl ParquetRows {
        pub(in crate::data) fn open(path: &Path, _: File) -> Result<ParquetRows, DataError> {
            let why =
                "this build reads no .parquet: build plimsoll with the feature `parquet`, or give .jsonl";
            Err(unreadable(path, why))
        }

        pub(in crate::data) fn read(&self) -> u64 {
            match *self {}
        }

        pub(in crate::data) fn next(&mut self, _: &Path) -> Result<Option<Row>, DataError> {
            match *self {}
        }
    }
}
