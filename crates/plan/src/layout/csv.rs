//! MiniMalloc's file format: one slot per row, lifetimes half-open.
//!
//! ```text
//! id,lower,upper,size              id,lower,upper,size,offset
//! a,0,2,4                 ──▶      a,0,2,4,0
//! b,2,6,4                          b,2,6,4,0
//! ```
//!
//! Columns may come in any order, and further columns may stand beside them: rows are written back as they were. An
//! existing column `offset` is overwritten, so that output can be input. Text in, text out; the caller handles files.
//! Absent: quoted fields. Columns of newer versions of the format that change the meaning of a layout (alignment, gaps)
//! are refused rather than ignored.

use std::fmt;

use super::slot::Slot;

/// Columns that a file must have.
const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];

/// Columns that would make a layout found here wrong.
const NOT_UNDERSTOOD: [&str; 2] = ["alignment", "gaps"];

/// Sizes and times are kept below this, so that sums fit.
const LIMIT: u64 = 1 << 62;

/// The rows of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Fields as they were written: the header, then the rows.
    lines: Vec<Vec<String>>,
    slots: Vec<Slot>,
    /// Index of the column `offset`, if the file has one.
    offset: Option<usize>,
}

/// Why a text is no such file, with the line it is about, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvError {
    /// The line of the fault.
    pub line: usize,
    /// The fault.
    pub fault: CsvFault,
}

/// The fault of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvFault {
    /// The file has not even a header.
    Empty,
    /// The header lacks a column.
    Missing {
        /// Name of the column.
        column: &'static str,
    },
    /// The header names a column twice.
    Twice {
        /// Name of the column.
        column: String,
    },
    /// The header has a column whose meaning would be lost.
    NotUnderstood {
        /// Name of the column.
        column: String,
    },
    /// A row has more or fewer fields than the header.
    Fields {
        /// Number of fields in the row.
        found: usize,
        /// Number of fields in the header.
        expected: usize,
    },
    /// A field that must be a whole number is none, or too large a one.
    NotANumber {
        /// Name of the number's column.
        column: &'static str,
        /// The text of the field.
        text: String,
    },
    /// A lifetime ends before or as it begins.
    Lifetime {
        /// First moment.
        lower: usize,
        /// One past the last moment.
        upper: usize,
    },
    /// The sizes up to this line add up to more than a layout can count.
    TooLarge,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.fault {
            CsvFault::Empty => write!(f, "there is no header; it must name {}", COLUMNS.join(", ")),
            CsvFault::Missing { column } => {
                write!(f, "the header names no column `{column}`; it must name {}", COLUMNS.join(", "))
            }
            CsvFault::Twice { column } => write!(f, "the header names the column `{column}` twice"),
            CsvFault::NotUnderstood { column } => {
                write!(f, "the column `{column}` is not understood; leave it out to lay out without it")
            }
            CsvFault::Fields { found, expected } => {
                write!(f, "{found} fields where the header names {expected} columns")
            }
            CsvFault::NotANumber { column, text } => {
                write!(f, "`{column}` is `{text}`, which is no whole number from 0 to 2^62")
            }
            CsvFault::Lifetime { lower, upper } => {
                write!(f, "`lower` is {lower} and `upper` is {upper}; `upper` must be larger")
            }
            CsvFault::TooLarge => write!(f, "up to here the sizes add up to more than 2^62"),
        }
    }
}

impl std::error::Error for CsvError {}

impl Table {
    /// Reads the text of a file. Blank lines are skipped.
    ///
    /// # Errors
    ///
    /// The error names the first line that is at fault.
    pub fn parse(text: &str) -> Result<Table, CsvError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines =
            (1..).zip(text.lines().map(str::trim_end)).filter(|(_, line)| !line.trim().is_empty());
        let (line, header) = lines.next().ok_or(CsvError { line: 1, fault: CsvFault::Empty })?;
        let header = fields(header);
        let [_, lower, upper, size] = columns(&header).map_err(|fault| CsvError { line, fault })?;
        let offset = header.iter().position(|name| name.trim() == "offset");
        let expected = header.len();
        let mut table = Table { lines: vec![header], slots: Vec::new(), offset };
        let mut total = 0;
        for (line, row) in lines {
            let row = fields(row);
            let slot =
                slot(&row, expected, [lower, upper, size]).map_err(|fault| CsvError { line, fault })?;
            total += slot.bytes;
            if total > LIMIT {
                return Err(CsvError { line, fault: CsvFault::TooLarge });
            }
            table.slots.push(slot);
            table.lines.push(row);
        }
        Ok(table)
    }

    /// One slot per row.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The text of the file with a column for `offsets`, of which there is one per row.
    pub fn with_offsets(&self, offsets: &[u64]) -> String {
        let names = std::iter::once("offset".to_owned()).chain(offsets.iter().map(u64::to_string));
        let mut text = String::new();
        for (line, value) in self.lines.iter().zip(names) {
            let mut fields = line.clone();
            match self.offset {
                Some(column) => fields[column] = value,
                None => fields.push(value),
            }
            text.push_str(&fields.join(","));
            text.push('\n');
        }
        text
    }
}

fn fields(line: &str) -> Vec<String> {
    line.split(',').map(str::to_owned).collect()
}

/// Positions of the required columns.
fn columns(header: &[String]) -> Result<[usize; COLUMNS.len()], CsvFault> {
    let names: Vec<&str> = header.iter().map(|name| name.trim()).collect();
    for (index, &name) in names.iter().enumerate() {
        let column = name.to_owned();
        if names[..index].contains(&name) {
            return Err(CsvFault::Twice { column });
        }
        if NOT_UNDERSTOOD.contains(&name) {
            return Err(CsvFault::NotUnderstood { column });
        }
    }
    let mut found = [0; COLUMNS.len()];
    for (place, column) in found.iter_mut().zip(COLUMNS) {
        *place = names.iter().position(|&name| name == column).ok_or(CsvFault::Missing { column })?;
    }
    Ok(found)
}

fn slot(row: &[String], expected: usize, [lower, upper, size]: [usize; 3]) -> Result<Slot, CsvFault> {
    if row.len() != expected {
        return Err(CsvFault::Fields { found: row.len(), expected });
    }
    let number = |column: &'static str, at: usize| {
        let text = row[at].trim();
        let number = text.parse().ok().filter(|&number: &u64| number <= LIMIT);
        number.ok_or_else(|| CsvFault::NotANumber { column, text: text.to_owned() })
    };
    let (lower, upper) = (number("lower", lower)? as usize, number("upper", upper)? as usize);
    let bytes = number("size", size)?;
    if lower >= upper {
        return Err(CsvFault::Lifetime { lower, upper });
    }
    Ok(Slot { start: lower, end: upper, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (usize, CsvFault) {
        let error = Table::parse(text).unwrap_err();
        (error.line, error.fault)
    }

    #[test]
    fn rows_come_back_as_they_were_with_an_offset_behind() {
        let table = Table::parse("size,name,id,upper,lower\r\n4, x y ,a,2,0\r\n\r\n4,,b,6, 2\r\n").unwrap();
        assert_eq!(table.slots(), [Slot { start: 0, end: 2, bytes: 4 }, Slot { start: 2, end: 6, bytes: 4 }]);
        let text = table.with_offsets(&[0, 8]);
        assert_eq!(text, "size,name,id,upper,lower,offset\n4, x y ,a,2,0,0\n4,,b,6, 2,8\n");
        let again = Table::parse(&text).unwrap().with_offsets(&[7, 9]);
        assert_eq!(again, "size,name,id,upper,lower,offset\n4, x y ,a,2,0,7\n4,,b,6, 2,9\n");
    }

    #[test]
    fn every_fault_names_its_line() {
        let number = |column, text: &str| CsvFault::NotANumber { column, text: text.to_owned() };
        assert_eq!(fault(""), (1, CsvFault::Empty));
        assert_eq!(fault("\n \n"), (1, CsvFault::Empty));
        assert_eq!(fault("id,lower,size\n"), (1, CsvFault::Missing { column: "upper" }));
        assert_eq!(fault("id,lower,upper,size,size\n"), (1, CsvFault::Twice { column: "size".to_owned() }));
        assert_eq!(
            fault("id,lower,upper,size,alignment\n"),
            (1, CsvFault::NotUnderstood { column: "alignment".to_owned() })
        );
        let header = "id,lower,upper,size\n";
        assert_eq!(
            fault(&format!("{header}a,0,1,4\nb,1,2\n")),
            (3, CsvFault::Fields { found: 3, expected: 4 })
        );
        assert_eq!(fault(&format!("{header}a,0,1,4\n\nb,1,2,-5\n")), (4, number("size", "-5")));
        assert_eq!(fault(&format!("{header}a,x,1,4\n")), (2, number("lower", "x")));
        assert_eq!(
            fault(&format!("{header}a,0,9223372036854775808,4\n")),
            (2, number("upper", "9223372036854775808"))
        );
        assert_eq!(fault(&format!("{header}a,3,3,4\n")), (2, CsvFault::Lifetime { lower: 3, upper: 3 }));
        let half = LIMIT / 2 + 1;
        assert_eq!(fault(&format!("{header}a,0,1,{half}\nb,0,1,{half}\n")), (3, CsvFault::TooLarge));
    }
}
