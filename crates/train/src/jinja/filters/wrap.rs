//! `wordwrap`: lines of a text broken at a width, at the places where Python's `textwrap` breaks them.
//!
//! A line is cut into chunks that stay whole: runs of white space, words, parts of hyphenated words and dashes between
//! words. Chunks fill lines from left to right; white space at either end of a new line is dropped.

use super::super::calls::Given;
use super::super::characters::is_space;
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::Pen;
use super::super::methods::lines;
use super::super::show::escaped;
use super::super::value::Value;
use super::super::value::numbers;

/// How lines are broken.
#[derive(Clone, Copy)]
struct Manner {
    /// Characters of a line.
    width: usize,
    break_words: bool,
    break_hyphens: bool,
}

impl Run<'_> {
    pub(super) fn wordwrap(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
        let [width, break_words, between, break_hyphens] = given.bind("wordwrap", names)?;
        let is_set = |value: Option<Value>| value.is_none_or(|value| value.is_true());
        let width = width.map_or(Some(79), |width| numbers::whole(&width));
        let width = width.and_then(|width| usize::try_from(width).ok()).filter(|width| *width > 0);
        let width = width.ok_or_else(|| Fault::new("`wordwrap` needs a width above 0"))?;
        let manner = Manner { width, break_words: is_set(break_words), break_hyphens: is_set(break_hyphens) };
        let between = match between {
            None | Some(Value::None) => Value::text("\n"),
            Some(between) => self.soft(between)?,
        };
        let end = self.str(&between)?;
        let Some(text) = value.as_text() else {
            return Err(Fault::new(format!("`wordwrap` needs a text, not {}", value.kind())));
        };
        // A character takes four bytes here while its line is wrapped.
        let _charge = self.meter.hold(text.len().saturating_mul(8))?;
        let mut pen = Pen::new(&self.meter);
        for (at, line) in lines(text, false).into_iter().enumerate() {
            if at > 0 {
                pen.push(&end)?;
            }
            for (at, part) in wrapped(line, manner).into_iter().enumerate() {
                if at > 0 {
                    pen.push(&end)?;
                }
                // A safe end makes the whole safe; the lines are plain by then.
                if between.is_safe() {
                    pen.push(&escaped(&part, &self.meter)?)?;
                } else {
                    pen.push(&part)?;
                }
            }
        }
        Ok(between.alike(pen.into()))
    }
}

/// Wraps one line into several.
fn wrapped(line: &str, manner: Manner) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    let mut chunks = Chunks { now: &[], left: &characters, before: None, manner };
    let mut made = Vec::new();
    while !chunks.now().is_empty() {
        if !made.is_empty() && is_blank(chunks.now()) {
            chunks.take();
        }
        let current = one_line(&mut chunks);
        if !current.is_empty() {
            made.push(current.concat().into_iter().collect());
        }
    }
    made
}

/// The chunks that fit on the next line.
fn one_line<'a>(chunks: &mut Chunks<'a>) -> Vec<&'a [char]> {
    let Manner { width, break_words, break_hyphens } = chunks.manner;
    let mut current: Vec<&[char]> = Vec::new();
    let mut len = 0;
    while !chunks.now().is_empty() && len + chunks.now().len() <= width {
        len += chunks.now().len();
        current.push(chunks.take());
    }
    if chunks.now().len() > width {
        if break_words {
            let (first, later) = chunks.now.split_at(cut(chunks.now, width - len, break_hyphens));
            current.push(first);
            chunks.now = later;
        } else if current.is_empty() {
            current.push(chunks.take());
        }
    }
    current.pop_if(|last| is_blank(last));
    current
}

/// A line that is cut into chunks one after the other.
struct Chunks<'a> {
    /// The next chunk, or what is left of it. Empty before it is cut off, and at the end of the line.
    now: &'a [char],
    left: &'a [char],
    /// The character before `left`.
    before: Option<char>,
    manner: Manner,
}

impl<'a> Chunks<'a> {
    /// The next chunk, which stays the next.
    fn now(&mut self) -> &'a [char] {
        if self.now.is_empty() && !self.left.is_empty() {
            let hyphens = self.manner.break_hyphens;
            let len = if hyphens { chunk(self.before, self.left) } else { simple_chunk(self.left) };
            (self.now, self.left) = self.left.split_at(len);
            self.before = self.now.last().copied();
        }
        self.now
    }

    fn take(&mut self) -> &'a [char] {
        let now = self.now();
        self.now = &[];
        now
    }
}

/// How many characters of a word too long for a line go on this line: up to a hyphen if there is one.
fn cut(word: &[char], room: usize, break_hyphens: bool) -> usize {
    let hyphen = word[..room.min(word.len())].iter().rposition(|&c| c == '-');
    match hyphen {
        Some(at) if break_hyphens && word.len() > room && word[..at].iter().any(|&c| c != '-') => at + 1,
        _ => room,
    }
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|&c| is_space(c))
}

/// White space that lines are broken at.
fn is_break(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn run(of: &[char], belongs: impl Fn(char) -> bool) -> usize {
    of.iter().take_while(|&&c| belongs(c)).count()
}

/// The length of the next chunk, where hyphens break nothing.
fn simple_chunk(left: &[char]) -> usize {
    let blank = run(left, is_break);
    if blank > 0 { blank } else { run(left, |c| !is_break(c)) }
}

/// The length of the next chunk, behind the character `before`.
fn chunk(before: Option<char>, left: &[char]) -> usize {
    let blank = run(left, is_break);
    if blank > 0 {
        return blank;
    }
    let dashes = run(left, |c| c == '-');
    if dashes > 1 && before.is_some_and(is_within) && left.get(dashes).is_some_and(|&c| is_word(c)) {
        return dashes;
    }
    (1..=left.len()).find(|&len| ends_here(before, left, len)).unwrap_or(left.len())
}

/// Whether a word may end behind its first `len` characters.
fn ends_here(before: Option<char>, left: &[char], len: usize) -> bool {
    let last = left[len - 1];
    let at = |place: usize| left.get(place).copied();
    // Up to three characters back, the one before the chunk among them.
    let back = |steps: usize| match len.checked_sub(steps + 1) {
        Some(place) => at(place),
        None if steps == len => before,
        None => None,
    };
    let is_letter_at = |c: Option<char>| c.is_some_and(is_letter);
    if at(len).is_none_or(is_break) {
        return true;
    }
    // `+?` takes at least one character before the hyphen.
    if last == '-' && len > 1 {
        let behind = is_letter_at(back(1)) && is_letter_at(back(2))
            || is_letter_at(back(1)) && back(2) == Some('-') && is_letter_at(back(3));
        let follows = is_letter_at(at(len))
            && (is_letter_at(at(len + 1)) || at(len + 1) == Some('-') && is_letter_at(at(len + 2)));
        if behind && follows {
            return true;
        }
    }
    let dashes = run(&left[len..], |c| c == '-');
    is_within(last) && dashes > 1 && at(len + dashes).is_some_and(is_word)
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn is_letter(c: char) -> bool {
    c == '_' || c.is_alphanumeric() && !c.is_numeric()
}

/// A character of a word, or one that stands at its edges.
fn is_within(c: char) -> bool {
    is_word(c) || "!\"'&.,?".contains(c)
}
