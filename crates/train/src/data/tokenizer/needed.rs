//! The memory that it takes to read a `tokenizer.json`, from a look at the file: the number that the program names when its
//! budget is too small.
//!
//! The library holds a vocabulary several times while it reads one, so the number of words counts for more than the bytes of
//! the file. A vocabulary with scores also becomes a tree, with a node for each new byte of a word. The factors are larger than
//! any that was measured (`memory.rs`). A file that takes even more memory is no vocabulary as models have them, and no budget
//! is named for it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use crate::files::{LARGE, open_file, read_open};
use crate::memory;
use crate::reading;

/// Bytes for each byte of the file.
const PER_BYTE: u64 = 2;
/// Bytes for each text in the file: a word of the vocabulary, a merge or half of one. Measured as 225 to 333.
const PER_TEXT: u64 = 384;
/// Further bytes for each byte of a text in a vocabulary with scores. Measured as 80 to 284: words share their beginnings.
const PER_NODE: u64 = 300;
/// Bytes for any tokenizer: patterns, and memory that the allocator keeps.
const FOR_ANY: u64 = 4 << 20;

/// The kind of vocabulary that has scores, as files name it.
const SCORED: &[u8] = b"Unigram";
/// The name of a pattern in a file. The memory of a pattern cannot be foretold, so no budget is named for a file with
/// more patterns than tokenizers have.
const PATTERN: &[u8] = b"Regex";
const MOST_PATTERNS: u64 = 16;

/// All of a tokenizer's file, and the bytes of a process that can read it. They are noted before the first large piece of
/// memory is taken.
pub(super) fn read(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    reading::begin(path);
    let mut file = open_file(path)?;
    let bytes = file.metadata()?.len();
    let texts = if bytes <= LARGE { Texts::of(&file)? } else { Texts::default() };
    file.rewind()?;
    let held = memory::process().map_or(0, |process| process.resident);
    let needed = texts.bytes_to_read(bytes).map_or(0, |more| held.saturating_add(more));
    reading::begin_needing(path, needed);
    Ok((read_open(file, LARGE)?, needed))
}

/// The texts in a file of JSON.
#[derive(Debug, Default)]
struct Texts {
    count: u64,
    /// Bytes of all of them.
    bytes: u64,
    /// Whether one of them says that the vocabulary has scores.
    scored: bool,
    /// Names of patterns among them.
    patterns: u64,
    place: Place,
    /// The beginning of the last text.
    last: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Outside,
    InText,
    BehindEscape,
}

impl Texts {
    fn of(mut file: &File) -> io::Result<Texts> {
        let (mut piece, mut texts) = (vec![0; 32 << 10], Texts::default());
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(texts),
                read => {
                    reading::step();
                    piece[..read].iter().for_each(|&byte| texts.add(byte));
                }
            }
        }
    }

    fn add(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (Place::Outside, b'"') => {
                self.count += 1;
                self.last.clear();
                Place::InText
            }
            (Place::Outside, _) => Place::Outside,
            (Place::InText, b'"') => {
                self.scored |= self.last == SCORED;
                self.patterns += u64::from(self.last == PATTERN);
                Place::Outside
            }
            (place, _) => {
                self.bytes += 1;
                if self.last.len() <= SCORED.len() {
                    self.last.push(byte);
                }
                let escapes = matches!(place, Place::InText) && byte == b'\\';
                if escapes { Place::BehindEscape } else { Place::InText }
            }
        };
    }

    /// Bytes that it takes to read a file of `bytes` with these texts, if that can be told.
    fn bytes_to_read(&self, bytes: u64) -> Option<u64> {
        let nodes = if self.scored { PER_NODE * self.bytes } else { 0 };
        let more = FOR_ANY + PER_BYTE * bytes + PER_TEXT * self.count + nodes;
        (self.patterns <= MOST_PATTERNS).then_some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_vocabulary_are_counted_with_their_bytes_and_its_kind() {
        let seen = |json: &str| {
            let mut texts = Texts::default();
            json.bytes().for_each(|byte| texts.add(byte));
            (texts.count, texts.bytes, texts.scored)
        };
        assert_eq!(seen(r#"{"type": "BPE", "vocab": {"a\"b": 0, "\\": 1}}"#), (5, 4 + 3 + 5 + 4 + 2, false));
        assert_eq!(seen(r#"{"type":"Unigram","vocab":[["a",-1.5]]}"#), (4, 4 + 7 + 5 + 1, true));
        assert!(!seen(r#"["Unigrams", "\"Unigram"]"#).2);
        let with = |patterns: usize| {
            let mut texts = Texts::default();
            "{\"Regex\":\"a\"}".repeat(patterns).bytes().for_each(|byte| texts.add(byte));
            texts.bytes_to_read(1000)
        };
        assert!(with(16).is_some() && with(17).is_none());
    }
}
