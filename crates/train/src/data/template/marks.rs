//! Where the content of each message stands in a rendering: contents are rendered with marks around them, and the marks
//! are removed again.
//!
//! ```text
//! content            What's 2 + 2?
//! marked content     ⟨3What's 2 + 2?3⟩           3 is the message's number
//! marked rendering   …<|user|>⟨3What's 2 + 2?3⟩<|end|><|assistant|>…
//! rendering          …<|user|>What's 2 + 2?<|end|><|assistant|>…        and the places of both marks
//! ```
//!
//! Marks are code points that Unicode reserves for a program's own use and that no text may contain. They stand inside
//! the white space around a content, so a template that trims contents trims the same. A template that inspects the
//! beginning of a content, or counts its letters, may render a marked one differently; callers compare the texts. Empty
//! contents have no marks, because templates test whether there is a content.

use super::conversation::Content;

/// The code points of marks: one before a content, one behind it, and sixteen digits.
const BEFORE: char = '\u{fde0}';
const BEHIND: char = '\u{fde1}';
const DIGITS: u32 = 0xfdd0;

/// A rendering without its marks, and where they stood.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) text: String,
    /// Where the content of each message begins, by its place among those rendered.
    pub(super) starts: Vec<Option<usize>>,
    /// Where the content of each message ends.
    pub(super) ends: Vec<Option<usize>>,
}

/// The content of message `place`, with that message's marks around it.
pub(super) fn mark(content: &Content<'_>, place: usize) -> String {
    let Content { text, first, last } = content;
    let core = text.trim();
    if core.is_empty() {
        return (*text).to_owned();
    }
    let (from, to) = (text.len() - text.trim_start().len(), text.trim_end().len());
    let mut marked = String::with_capacity(text.len() + 24);
    marked.push_str(&text[..from]);
    if *first {
        push(&mut marked, BEFORE, place);
    }
    marked.push_str(&text[from..to]);
    if *last {
        push(&mut marked, BEHIND, place);
    }
    marked.push_str(&text[to..]);
    marked
}

fn push(text: &mut String, kind: char, place: usize) {
    text.push(kind);
    let digits = format!("{place:x}");
    text.extend(digits.chars().filter_map(|digit| char::from_u32(DIGITS + digit.to_digit(16)?)));
}

impl Marked {
    /// Removes the marks from a rendering of this many messages; `None` if the template wrote a mark twice.
    pub(super) fn read(rendered: &str, messages: usize) -> Option<Marked> {
        let (starts, ends) = (vec![None; messages], vec![None; messages]);
        let mut marked = Marked { text: String::with_capacity(rendered.len()), starts, ends };
        let mut rest = rendered;
        while let Some(at) = rest.find([BEFORE, BEHIND]) {
            marked.text.push_str(&rest[..at]);
            let mut after = rest[at..].chars();
            let kind = after.next()?;
            let mut place = 0;
            while let Some(digit) = after.as_str().chars().next().and_then(digit) {
                after.next();
                place = usize::checked_add(usize::checked_mul(place, 16)?, digit)?;
            }
            let places = if kind == BEFORE { &mut marked.starts } else { &mut marked.ends };
            if places.get_mut(place)?.replace(marked.text.len()).is_some() {
                return None;
            }
            rest = after.as_str();
        }
        marked.text.push_str(rest);
        Some(marked)
    }
}

fn digit(of: char) -> Option<usize> {
    u32::from(of).checked_sub(DIGITS).filter(|&digit| digit < 16).map(|digit| digit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Content<'_> {
        Content { text, first: true, last: true }
    }

    #[test]
    fn marks_stand_inside_white_space_and_come_out_again() {
        let marked = format!("<{}|{}>", mark(&content(" a é\n"), 0), mark(&content("b"), 300));
        let read = Marked::read(&marked, 301).unwrap();
        assert_eq!(read.text, "< a é\n|b>");
        assert_eq!((read.starts[0], read.ends[0]), (Some(2), Some(6)));
        assert_eq!((read.starts[300], read.ends[300]), (Some(8), Some(9)));
        assert_eq!(mark(&content(" \n"), 4), " \n");
    }

    #[test]
    fn a_content_that_is_written_twice_has_no_place() {
        let once = mark(&content("a"), 1);
        assert!(Marked::read(&once, 2).is_some());
        assert!(Marked::read(&once.repeat(2), 2).is_none());
        assert!(Marked::read(&once, 1).is_none());
    }
}
