//! The rows of a `.parquet` file, one at a time. Without the feature `parquet` there are none, and opening a file says so.
//!
//! Each column has a reader of its own, so a fault names its column, and columns that no sample is made of are not read.

use std::fs::File;
use std::path::Path;

use super::DataError;
use super::record::Record;

pub(super) use reader::ParquetRows;

fn unreadable(path: &Path, why: &str) -> DataError {
    DataError::Unreadable { path: path.to_owned(), why: why.split_whitespace().collect::<Vec<_>>().join(" ") }
}

#[cfg(feature = "parquet")]
mod reader {
    use std::sync::Arc;

    use parquet::errors::ParquetError;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::reader::{ReaderIter, TreeBuilder};
    use parquet::record::{self, Field};
    use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type, TypePtr};
    use serde_json::{Map, Value as Json};

    use super::{DataError, File, Path, Record, unreadable};
    use crate::data::exact_json::float;
    use crate::data::sample::COLUMNS;
    use crate::panics::caught;
    use crate::reading;

    /// The rows of one file.
    pub(in crate::data) struct ParquetRows {
        file: SerializedFileReader<File>,
        columns: Vec<Column>,
        /// Row groups that were opened.
        groups: usize,
        /// Rows of the current group that have not been read.
        left: i64,
        row: u64,
        total: u64,
        bytes: u64,
    }

    /// A column of the table.
    struct Column {
        name: String,
        /// The column as a table of its own; none if no sample is made of it.
        table: Option<SchemaDescPtr>,
        /// Values of the column in the current row group.
        values: Option<ReaderIter>,
    }

    impl Column {
        fn new(field: &TypePtr, is_read: bool) -> Result<Column, ParquetError> {
            let alone = || Type::group_type_builder("column").with_fields(vec![Arc::clone(field)]).build();
            let table = is_read.then(alone).transpose()?;
            let table = table.map(|table| Arc::new(SchemaDescriptor::new(Arc::new(table))));
            Ok(Column { name: field.name().to_owned(), table, values: None })
        }

        /// The next value. Columns that are not read are null, so that a fault can still name them.
        fn next(&mut self) -> Result<Field, ParquetError> {
            let Some(values) = &mut self.values else { return Ok(Field::Null) };
            let value = values.next().transpose()?.and_then(|row| row.into_columns().pop());
            value.map(|(_, value)| value).ok_or_else(|| ParquetError::EOF("it ends too early".into()))
        }
    }

    impl ParquetRows {
        pub(in crate::data) fn open(path: &Path, input: File) -> Result<ParquetRows, DataError> {
            let bytes = input.metadata().map_err(|fault| DataError::reading(path, &fault))?.len();
            let read = || {
                let file = SerializedFileReader::new(input)?;
                let facts = file.metadata().file_metadata();
                let fields = facts.schema().get_fields();
                let is_used = |field: &TypePtr| COLUMNS.contains(&field.name());
                // One column is read in any case: the number of rows that the file states may be false.
                let first = fields.iter().position(is_used).unwrap_or(0);
                let columns = fields.iter().enumerate();
                let columns = columns.map(|(at, field)| Column::new(field, at == first || is_used(field)));
                let columns = columns.collect::<Result<_, ParquetError>>()?;
                let total = facts.num_rows().max(1) as u64;
                Ok(ParquetRows { file, columns, groups: 0, left: 0, row: 0, total, bytes })
            };
            caught(read).map_err(|why| unreadable(path, &why))?.map_err(|fault| broken(path, &fault))
        }

        /// Estimate of the bytes that have been read. The byte offset of a row is not known; its share of the rows is.
        pub(in crate::data) fn read(&self) -> u64 {
            (self.bytes as f64 * (self.row as f64 / self.total as f64)) as u64
        }

        /// The next row; `None` at the end.
        pub(in crate::data) fn next(&mut self, path: &Path) -> Result<Option<Record>, DataError> {
            reading::step();
            // The library panics on some faults of a file.
            let more = caught(|| self.advance()).map_err(|why| unreadable(path, &why))?;
            if !more.map_err(|fault| broken(path, &fault))? {
                return Ok(None);
            }
            self.row += 1;
            self.left -= 1;
            let (line, mut fields, mut bad) = (self.row, Map::new(), None);
            for column in &mut self.columns {
                let value = caught(|| column.next()).unwrap_or_else(|why| Err(ParquetError::General(why)));
                match json_of(value.map_err(|fault| in_column(path, line, &column.name, &fault))?) {
                    Ok(value) => drop(fields.insert(column.name.clone(), value)),
                    // The other columns are read all the same, so that the next row has one of each.
                    Err(NotText) => bad = Some(column.name.clone()),
                }
            }
            Ok(Some(match bad {
                Some(name) => {
                    Record::Bad { line, why: format!("`{name}` holds bytes that are no UTF-8 text") }
                }
                None => Record::of(line, fields),
            }))
        }

        /// Opens row groups up to one with rows that have not been read; false if there is none.
        fn advance(&mut self) -> Result<bool, ParquetError> {
            while self.left <= 0 {
                if self.groups == self.file.num_row_groups() {
                    return Ok(false);
                }
                let group = self.file.get_row_group(self.groups)?;
                for Column { table, values, .. } in &mut self.columns {
                    // One group is in memory at a time.
                    *values = None;
                    if let Some(table) = table {
                        *values = Some(TreeBuilder::new().as_iter(Arc::clone(table), &*group)?);
                    }
                }
                self.left = group.metadata().num_rows();
                self.groups += 1;
            }
            Ok(true)
        }
    }

    fn broken(path: &Path, fault: &ParquetError) -> DataError {
        unreadable(path, &fault.to_string())
    }

    /// The error for a value that cannot be read. Of a text that is none the library shows every byte.
    fn in_column(path: &Path, row: u64, column: &str, fault: &ParquetError) -> DataError {
        let fault = fault.to_string();
        if fault.contains("Error reading BYTE_ARRAY as String") {
            return DataError::NotText { path: path.to_owned(), row, column: column.to_owned() };
        }
        unreadable(path, &format!("row {row}: `{column}`: {fault}"))
    }

    /// Bytes that are no UTF-8.
    struct NotText;

    fn fields_of(row: record::Row) -> Result<Map<String, Json>, NotText> {
        row.into_columns().into_iter().map(|(name, field)| Ok((name, json_of(field)?))).collect()
    }

    /// A value as JSON. A value of a type that JSON lacks becomes what transformers gives to a chat template: the
    /// name of its type in Python.
    fn json_of(field: Field) -> Result<Json, NotText> {
        Ok(match field {
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
            Field::Bytes(bytes) => str::from_utf8(bytes.data()).map_err(|_| NotText)?.into(),
            Field::Group(row) => Json::Object(fields_of(row)?),
            Field::ListInternal(list) => {
                list.elements().iter().cloned().map(json_of).collect::<Result<_, _>>()?
            }
            Field::MapInternal(map) => {
                let pair = |(key, value): &(Field, Field)| {
                    Ok(Json::Array(vec![json_of(key.clone())?, json_of(value.clone())?]))
                };
                map.entries().iter().map(pair).collect::<Result<_, _>>()?
            }
            Field::Date(_) => "<date>".into(),
            Field::TimeMillis(_) | Field::TimeMicros(_) => "<time>".into(),
            Field::TimestampMillis(_) | Field::TimestampMicros(_) => "<datetime>".into(),
            Field::Decimal(_) => "<Decimal>".into(),
        })
    }
}

#[cfg(not(feature = "parquet"))]
mod reader {
    use super::{DataError, File, Path, Record, unreadable};

    /// Has no values: without the feature `parquet` no rows are read.
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

        pub(in crate::data) fn next(&mut self, _: &Path) -> Result<Option<Record>, DataError> {
            match *self {}
        }
    }
}
