//! Records of an event file and the few protocol-buffer fields in them, written and read by hand.
//!
//! A file is a series of records, each framed so that a reader of a growing file sees where it ends:
//!
//! ```text
//! length (8) | masked crc32c of length (4) | event (length) | masked crc32c of event (4)      little-endian
//! ```
//!
//! Absent: fields that no event of ours has. A reader skips them.

use std::io::{self, Read};

/// The longest event that is read: ours have some hundred bytes.
const LONGEST: u64 = 64 << 10;
/// Bytes of a record before its event, and after it.
const HEAD: usize = 12;
const TAIL: usize = 4;

/// An event with its length and checksums.
pub(super) fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + HEAD + TAIL);
    record.extend(length);
    record.extend(masked(crc32c::crc32c(&length)).to_le_bytes());
    record.extend(event);
    record.extend(masked(crc32c::crc32c(event)).to_le_bytes());
    record
}

/// A checksum of bytes that contain checksums is weak, so the format rotates and shifts them.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The next record of a file, if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An event.
    Event(Vec<u8>),
    /// The file ends here, or within a record.
    End,
    /// Something that is no record: a damaged file, or one of another format.
    Foreign,
}

/// Reads the next record.
///
/// # Errors
///
/// When the file cannot be read.
pub(super) fn next(file: &mut impl Read) -> io::Result<Next> {
    let Some(head) = bytes(file, HEAD)? else { return Ok(Next::End) };
    let length = fixed(&head).map_or(0, u64::from_le_bytes);
    if head[8..] != masked(crc32c::crc32c(&head[..8])).to_le_bytes() || length > LONGEST {
        return Ok(Next::Foreign);
    }
    let Some(mut event) = bytes(file, length as usize + TAIL)? else { return Ok(Next::End) };
    let crc = event.split_off(length as usize);
    let whole = crc == masked(crc32c::crc32c(&event)).to_le_bytes();
    Ok(if whole { Next::Event(event) } else { Next::Foreign })
}

/// The length of the record of an event.
pub(super) fn framed_length(event: &[u8]) -> u64 {
    (event.len() + HEAD + TAIL) as u64
}

/// Exactly `count` bytes, or nothing if the file ends before.
fn bytes(file: &mut impl Read, count: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; count];
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

// The kinds of fields a protocol buffer has: 0 a varint, 1 eight bytes, 2 bytes with their length, 5 four bytes.

fn key(field: u8, kind: u8) -> u8 {
    field << 3 | kind
}

pub(super) fn whole(field: u8, value: u64) -> Vec<u8> {
    [vec![key(field, 0)], varint(value)].concat()
}

pub(super) fn double(field: u8, value: f64) -> Vec<u8> {
    [vec![key(field, 1)], value.to_le_bytes().to_vec()].concat()
}

pub(super) fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![key(field, 2)], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

pub(super) fn text(field: u8, text: &str) -> Vec<u8> {
    message(field, text.as_bytes())
}

pub(super) fn float(field: u8, value: f32) -> Vec<u8> {
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

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Field<'a> {
    /// A varint.
    Whole(u64),
    /// Eight bytes.
    Double(f64),
    /// Bytes with their length: text, or a message.
    Bytes(&'a [u8]),
    /// Four bytes.
    Float(f32),
}

/// The fields of a message with their numbers, up to the first that is none.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let key = take_varint(&mut rest)?;
        let field = match key & 7 {
            0 => Field::Whole(take_varint(&mut rest)?),
            1 => Field::Double(f64::from_le_bytes(fixed(take(&mut rest, 8)?)?)),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                Field::Bytes(take(&mut rest, length)?)
            }
            5 => Field::Float(f32::from_le_bytes(fixed(take(&mut rest, 4)?)?)),
            _ => return None,
        };
        Some((key >> 3, field))
    })
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// The first bytes of a slice.
fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_seven_bits_at_a_time_and_read_back() {
        assert_eq!(varint(1), [1]);
        assert_eq!(varint(300), [0xac, 0x02]);
        for value in [0, 1, 127, 128, 300, u64::MAX] {
            let bytes = varint(value);
            assert_eq!(take_varint(&mut bytes.as_slice()), Some(value));
        }
        assert_eq!(varint(u64::MAX).len(), 10);
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let message = [whole(2, 300), double(1, 1.5), text(3, "brain"), float(4, 0.25)].concat();
        let read: Vec<_> = fields(&message).collect();
        let expected = [
            (2, Field::Whole(300)),
            (1, Field::Double(1.5)),
            (3, Field::Bytes(b"brain")),
            (4, Field::Float(0.25)),
        ];
        assert_eq!(read, expected);
        assert_eq!(fields(&message[..message.len() - 1]).count(), 3, "a field that is cut off is none");
        assert_eq!(fields(&[0xff; 20]).count(), 0);
    }

    #[test]
    fn a_record_that_is_cut_off_is_an_end_and_a_damaged_one_is_told() {
        let record = framed(b"event");
        assert_eq!(next(&mut record.as_slice()).unwrap(), Next::Event(b"event".to_vec()));
        for end in 0..record.len() {
            assert_eq!(next(&mut &record[..end]).unwrap(), Next::End, "{end}");
        }
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            assert_eq!(next(&mut damaged.as_slice()).unwrap(), Next::Foreign, "{at}");
        }
    }
}
