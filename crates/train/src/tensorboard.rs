//! Event files that TensorBoard reads, with nothing but scalars in them.
//!
//! A file is a series of records, each framed so that a reader of a growing file sees where it ends:
//!
//! ```text
//! length (8) | masked crc32c of length (4) | event (length) | masked crc32c of event (4)      little-endian
//! ```
//!
//! An event is a protocol buffer of which five fields are used, encoded here by hand:
//!
//! ```text
//! Event    1: wall_time (double)   2: step (varint)   3: file_version (string, first event only)   5: Summary
//! Summary  1: Value, repeated
//! Value    1: tag (string)   2: simple_value (float)
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::course::{Event, Listener};
use crate::error::TrainError;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a file in `folder`, which is made if need be. Its name is unique, so files of several runs, or of
    /// one that was resumed, lie side by side and are shown as one.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn create(folder: &Path) -> Result<EventFile, TrainError> {
        let now = now();
        let name = format!("events.out.tfevents.{}.plimsoll.{}.0", now as u64, std::process::id());
        let path = folder.join(name);
        let file = fs::create_dir_all(folder).and_then(|()| File::create(&path));
        let mut events = EventFile { file: file.map_err(|error| TrainError::output(&path, &error))?, path };
        events.write(&[double(1, now), text(3, "brain.Event:2")].concat())?;
        Ok(events)
    }

    /// Adds the values of a step under their tags.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let event = [double(1, now()), whole(2, step), message(5, &summary(values))].concat();
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> Result<(), TrainError> {
        let written: io::Result<()> = self.file.write_all(&framed(event));
        written.map_err(|error| TrainError::output(&self.path, &error))
    }
}

impl<E: From<TrainError>> Listener<E> for EventFile {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        match event {
            Event::Log(record) => {
                let mut values = vec![
                    ("train/loss", record.loss),
                    ("train/learning_rate", record.lr),
                    ("train/grad_norm", record.grad_norm),
                    ("train/tokens_per_second", record.tokens_per_second),
                ];
                values.extend(record.epoch.map(|epoch| ("train/epoch", epoch)));
                self.scalars(record.step, &values)?;
            }
            Event::Evaluation(record) => {
                let mut values =
                    vec![("eval/loss", record.eval_loss), ("eval/perplexity", record.eval_perplexity)];
                values.extend(record.eval_accuracy.map(|accuracy| ("eval/accuracy", accuracy)));
                self.scalars(record.step, &values)?;
            }
            Event::Step(_) | Event::Saving | Event::Saved(_) | Event::Note(_) | Event::End(_) => {}
        }
        Ok(())
    }
}

/// Seconds since 1970, the clock of TensorBoard's axis "wall".
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked(crc32c::crc32c(&length)).to_le_bytes());
    record.extend(event);
    record.extend(masked(crc32c::crc32c(event)).to_le_bytes());
    record
}

/// A checksum of bytes that hold checksums is weak, so the format turns and shifts them.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn summary(values: &[(&str, f64)]) -> Vec<u8> {
    let value = |(tag, value): &(&str, f64)| message(1, &[text(1, tag), float(2, *value as f32)].concat());
    values.iter().flat_map(value).collect()
}

// The kinds of fields a protocol buffer has: 0 a varint, 1 eight bytes, 2 bytes with their length, 5 four bytes.

fn key(field: u8, kind: u8) -> u8 {
    field << 3 | kind
}

fn whole(field: u8, value: u64) -> Vec<u8> {
    [vec![key(field, 0)], varint(value)].concat()
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [vec![key(field, 1)], value.to_le_bytes().to_vec()].concat()
}

fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![key(field, 2)], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn text(field: u8, text: &str) -> Vec<u8> {
    message(field, text.as_bytes())
}

fn float(field: u8, value: f32) -> Vec<u8> {
    [vec![key(field, 5)], value.to_le_bytes().to_vec()].concat()
}

/// Seven bits a byte, the lowest first; the eighth says that more follow.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn numbers_are_written_seven_bits_at_a_time() {
        assert_eq!(varint(1), [1]);
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }

    #[test]
    fn a_record_is_byte_for_byte_what_tensorboards_own_writer_makes() {
        // tensorboard 2.21: RecordWriter's record of Event(wall_time=1.5, step=300, summary with a=0.25).
        let event = [double(1, 1.5), whole(2, 300), message(5, &summary(&[("a", 0.25)]))].concat();
        let expected: Vec<u8> = EXPECTED
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(framed(&event), expected);
    }

    const EXPECTED: &str = "1800000000000000a37f4b2209000000000000f83f10ac022a0a0a080a0161150000803eb4fa9511";

    #[test]
    fn a_file_begins_with_its_version_and_ends_after_a_whole_record() {
        let folder = Scratch::new();
        let mut events = EventFile::create(folder.path()).unwrap();
        events.scalars(7, &[("train/loss", 2.5), ("train/learning_rate", 1e-3)]).unwrap();
        let bytes = fs::read(&events.path).unwrap();
        let (mut at, mut records) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let event = &bytes[at + 12..at + 12 + length];
            assert_eq!(framed(event), bytes[at..at + 16 + length]);
            records.push(event.to_vec());
            at += 16 + length;
        }
        assert_eq!(records.len(), 2);
        assert!(records[0].ends_with(b"brain.Event:2"));
        assert_eq!(records[1][9..11], [0x10, 7], "the step");
        assert!(records[1].windows(10).any(|bytes| bytes == b"train/loss"));
    }
}
