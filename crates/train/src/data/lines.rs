//! A `.jsonl` file line by line. A long line is measured before it is read. So a line for which there is no room is
//! refused with the budget it needs, and otherwise memory for the whole line is allocated once.
//!
//! Blank lines are skipped, and so is a byte order mark at the front.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::DataError;
use super::exact_json::{self, kind};
use super::record::{Record, too_long};
use super::room::{Extent, Form, Room};
use crate::reading;

/// The lines of one file.
pub(super) struct Lines {
    input: BufReader<File>,
    line: u64,
    read: u64,
}

impl Lines {
    pub(super) fn new(input: File) -> Lines {
        Lines { input: BufReader::with_capacity(1 << 16, input), line: 0, read: 0 }
    }

    /// Bytes of the file that have been read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// The next line that is not blank; `None` at the end.
    pub(super) fn next(&mut self, path: &Path, room: &Room) -> Result<Option<Record>, DataError> {
        loop {
            let mut bytes = Vec::new();
            let unreadable = |fault: io::Error| DataError::reading(path, &fault);
            // One more for the line break.
            let short = room.batch as u64 + 1;
            let count = self.input.by_ref().take(short).read_until(b'\n', &mut bytes).map_err(unreadable)?;
            if count == 0 {
                return Ok(None);
            }
            self.line += 1;
            if count as u64 == short && bytes.last() != Some(&b'\n') {
                let line = Outline::of(&bytes).with(&mut self.input).map_err(unreadable)?;
                let extent = line.extent();
                if !room.holds(&extent) {
                    return Err(too_long(path, Some(self.line), &extent, room));
                }
                let more = line.bytes as usize - bytes.len();
                self.input.seek_relative(-(more as i64)).map_err(unreadable)?;
                bytes.reserve_exact(more);
                self.input.by_ref().take(more as u64).read_to_end(&mut bytes).map_err(unreadable)?;
            }
            self.read += bytes.len() as u64;
            if self.line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(match parse(&bytes) {
                    Ok(fields) => Record::Fields { line: self.line, fields, bytes: bytes.len() },
                    Err(why) => Record::Bad { line: self.line, why },
                }));
            }
        }
    }
}

/// Facts about a line that are found without holding it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outline {
    bytes: u64,
    /// Commas, colons and brackets outside of texts.
    values: u64,
    escapes: bool,
    /// Whether a column of the line is a conversation.
    conversation: bool,
    depth: u32,
    place: Place,
    /// The last text, if it is short enough to be the name of a column.
    name: Vec<u8>,
}

/// Where in the line its reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    /// After the colon of a column in which a list of messages would make the line a conversation.
    BeforePrompt,
    InText,
    BehindEscape,
}

/// The columns that hold conversations: the first always, the second where it is a list.
const MESSAGES: &[u8] = b"messages";
const PROMPT: &[u8] = b"prompt";

impl Outline {
    fn of(bytes: &[u8]) -> Outline {
        let mut outline = Outline::default();
        outline.add(bytes);
        outline
    }

    fn extent(&self) -> Extent {
        let form = match (self.conversation, self.escapes) {
            (true, _) => Form::Conversation,
            (false, true) => Form::Escaped,
            (false, false) => Form::Fields,
        };
        Extent { bytes: self.bytes, form, values: self.values }
    }

    /// The rest of the line too.
    fn with(mut self, input: &mut BufReader<File>) -> io::Result<Outline> {
        loop {
            reading::step();
            let part = input.fill_buf()?;
            let end = part.iter().position(|&byte| byte == b'\n');
            let count = end.map_or(part.len(), |end| end + 1);
            self.add(&part[..count]);
            input.consume(count);
            if end.is_some() || count == 0 {
                return Ok(self);
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for &byte in bytes {
            match self.place {
                Place::InText | Place::BehindEscape => self.add_text(byte),
                Place::Outside | Place::BeforePrompt => self.add_structure(byte),
            }
        }
    }

    fn add_text(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (Place::InText, b'"') => {
                self.place = Place::Outside;
                return;
            }
            (Place::InText, b'\\') => Place::BehindEscape,
            _ => Place::InText,
        };
        self.escapes |= byte == b'\\';
        if self.name.len() <= MESSAGES.len() {
            self.name.push(byte);
        }
    }

    fn add_structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.place = Place::InText;
                self.name.clear();
            }
            b':' => {
                let column = self.depth == 1;
                self.conversation |= column && self.name == MESSAGES;
                self.place = if column && self.name == PROMPT { Place::BeforePrompt } else { Place::Outside };
            }
            b'[' | b'{' => {
                self.conversation |= self.place == Place::BeforePrompt;
                self.place = Place::Outside;
                self.depth = self.depth.saturating_add(1);
            }
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            b',' => self.place = Place::Outside,
            _ => return,
        }
        self.values += u64::from(!matches!(byte, b'"' | b']' | b'}'));
    }
}

fn parse(line: &[u8]) -> Result<Map<String, Json>, String> {
    let text = std::str::from_utf8(line)
        .map_err(|fault| format!("byte {} of the line is not UTF-8 text", fault.valid_up_to() + 1))?;
    match exact_json::parse(text.trim_end()) {
        Ok(Json::Object(fields)) => Ok(fields),
        Ok(other) => Err(format!("it is {}, not an object with columns", kind(&other))),
        Err(fault) => {
            let words = fault.to_string();
            let words = words.split(" at line ").next().unwrap_or_default();
            Err(format!("it is not JSON ({words}, at column {})", fault.column()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_counts_values_outside_of_texts_and_knows_conversations() {
        let seen = |line: &str| {
            let Outline { bytes, values, conversation, .. } = Outline::of(line.as_bytes());
            assert_eq!(bytes, line.len() as u64);
            (values, conversation)
        };
        assert_eq!(seen(r#"{"text": "a, [b]: {\"c\", \\"}"#), (2, false));
        assert_eq!(seen(r#"{"text": "\\", "x": [0,0,{}]}"#), (8, false));
        assert_eq!(seen(r#"{"text": "a", "messages": [{"role": "user"}]}"#), (7, true));
        assert!(!seen(r#"{"meta": {"messages": []}, "text": "messages"}"#).1);
        assert!(!seen(r#"{"prompt": "a", "completion": ["b"]}"#).1);
        assert!(seen(r#"{"prompt" : [{"role": "user"}], "completion": []}"#).1);
    }
}
