//! Where one answer begins and ends in a rendering.
//!
//! Most templates write a conversation turn by turn: the turns before an answer, rendered with the generation prompt,
//! are a prefix of the whole, and so are the turns up to and including it. Then both borders are plain.
//!
//! Others write something after the last turn only, or write the last turn in another way than earlier ones:
//!
//! ```text
//! up to an answer, alone    …<|assistant|>Four.<|end|><|endoftext|>        a closing
//! the whole                 …<|assistant|>Four.<|end|><|user|>And 3 + 3?…
//!                                        ▲ content ends
//! ```
//!
//! For those, only the texts from the nearest content on are compared, whose place is known by marks (see `marks`);
//! earlier differences do not matter. An answer ends where the closing of the turns up to it begins, if the turns with
//! another after them close in the same way. If the last turn itself is written in another way, one and then two empty
//! turns of the user are put after the answer; the difference is the length of such a turn.
//!
//! A border never lies inside a tag such as `<|user|>`, although `<|user|>` and `<|end|>` begin alike. Nor does an
//! answer end with text that opens a turn: some templates write a further generation prompt at the very end, and it
//! begins like the next turn. A conversation also opens with a turn, so such an opening is recognised by the first
//! bytes of the conversation.
//!
//! If all ways fail, there is no border: the answer is then searched for literally, or the conversation is refused.

use super::RenderFault;
use super::common_prefix;
use super::conversation::Role;
use super::marks::Marked;
use super::renderings::{Part, Renderings};

/// Bytes of the longest tag.
const LONGEST_TAG: usize = 64;
/// Bytes of the longest prompt for an answer, and of the longest opening of a turn.
const LONGEST_PROMPT: usize = 256;

/// A border, and whether it is plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Border {
    pub(super) at: usize,
    pub(super) plain: bool,
}

impl Renderings<'_> {
    /// Where the answer at a place of a part begins and ends.
    pub(super) fn borders(&self, part: &Part, place: usize) -> Result<(Border, Border), RenderFault> {
        let before = self.before(part, place)?;
        let begin = self.begin_behind(&before, part, place)?;
        if place + 1 < part.messages.len() {
            return Ok((begin, self.end(part, place)?));
        }
        let prompt = self.closing_prompt(part, &before);
        Ok((begin, Border { at: part.text.len() - prompt, plain: prompt == 0 }))
    }

    /// Where the message at a place begins.
    pub(super) fn begin(&self, part: &Part, place: usize) -> Result<Border, RenderFault> {
        self.begin_behind(&self.before(part, place)?, part, place)
    }

    /// Where an answer that is not the last message ends.
    pub(super) fn end(&self, part: &Part, place: usize) -> Result<Border, RenderFault> {
        let with = self.text(&part.messages[..=place], 0, false)?;
        if part.text.starts_with(&with) {
            return Ok(Border { at: with.len(), plain: true });
        }
        let found = self.end_by_closing(part, place).or_else(|| self.end_by_turns(part, place));
        let at = found.ok_or(RenderFault::Answers { message: part.messages[place] })?;
        Ok(Border { at, plain: false })
    }

    /// The turns before a place, with the prompt for an answer.
    fn before(&self, part: &Part, place: usize) -> Result<String, RenderFault> {
        if place == 0 { Ok(String::new()) } else { self.text(&part.messages[..place], 0, true) }
    }

    fn begin_behind(&self, before: &str, part: &Part, place: usize) -> Result<Border, RenderFault> {
        if place > 0 && part.text.starts_with(before) {
            return Ok(Border { at: before.len(), plain: true });
        }
        let found = self.begin_by_places(part, place);
        let at = found.ok_or(RenderFault::Answers { message: part.messages[place] })?;
        Ok(Border { at, plain: false })
    }

    fn begin_by_places(&self, part: &Part, place: usize) -> Option<usize> {
        let whole = self.places(part)?;
        if place == 0 {
            return whole.starts[0];
        }
        let before = self.marked(&part.messages[..place], 0, true)?;
        let (there, here) = self.anchors(part, whole, &before, place)?;
        let shared =
            outside_tags(&before.text, there + common_prefix(&before.text[there..], &whole.text[here..]));
        let begin = here + shared.saturating_sub(there);
        // A content that happens to begin like the end of a prompt still belongs to the answer.
        Some(whole.starts[place].map_or(begin, |start| begin.min(start.max(here))))
    }

    /// The end of an answer, by the closing text of the turns up to it.
    fn end_by_closing(&self, part: &Part, place: usize) -> Option<usize> {
        let whole = self.places(part)?;
        let with = self.marked(&part.messages[..=place], 0, false)?;
        let (there, here) = self.anchors(part, whole, &with, place + 1)?;
        let shared = there + common_prefix(&with.text[there..], &whole.text[here..]);
        if shared == with.text.len() {
            return Some(here + shared - there);
        }
        let end = before_opening(&with.text, there, outside_tags(&with.text, shared));
        let closing = with.text.get(end..).filter(|closing| !closing.trim().is_empty())?;
        let one = self.text(&part.messages[..=place], 1, false).ok()?;
        one.ends_with(closing).then(|| here + end.saturating_sub(there))
    }

    /// The end of an answer by the difference that a further turn makes.
    fn end_by_turns(&self, part: &Part, place: usize) -> Option<usize> {
        let whole = self.places(part)?;
        let messages = &part.messages[..=place];
        let (one, two) = (self.marked(messages, 1, false)?, self.marked(messages, 2, false)?);
        let (there, here) = self.anchors(part, whole, &one, place + 1)?;
        let mut closed = common_prefix(&one.text, &two.text);
        if closed < one.text.len() {
            closed = before_opening(&one.text, there, outside_tags(&one.text, closed));
        }
        let end = closed.checked_sub(two.text.len().checked_sub(one.text.len())?)?;
        let behind = one.text.get(there..end).filter(|_| outside_tags(&one.text, end) == end)?;
        whole.text[here..].starts_with(behind).then(|| here + behind.len())
    }

    /// The end of the last content before a place, in another rendering and in the whole. `None` if text of another
    /// role would lie after it.
    fn anchors(&self, part: &Part, whole: &Marked, other: &Marked, place: usize) -> Option<(usize, usize)> {
        for at in (0..place).rev() {
            if let (Some(there), Some(here)) = (other.ends[at], whole.ends[at]) {
                return Some((there, here));
            }
            let message = part.messages[at];
            let is_answer = self.conversation.role(message) == Role::Assistant;
            if !is_answer && (self.conversation.is_opaque(message) || whole.ends[at].is_some()) {
                return None;
            }
        }
        Some((0, 0))
    }

    /// Bytes at the end of a part that are the prompt for a further answer, as some templates always write it.
    fn closing_prompt(&self, part: &Part, before: &str) -> usize {
        if !self.may_close() {
            return 0;
        }
        let Ok(one) = self.text(&part.messages, 1, false) else { return 0 };
        let shared = common_prefix(&part.text, &one);
        let closed = before_opening(&part.text, 0, outside_tags(&part.text, shared));
        let closing = &part.text[closed..];
        let prompts = before.rfind(closing).is_some_and(|at| before.len() - at <= LONGEST_PROMPT);
        let is_prompt = prompts && !closing.trim().is_empty() && !self.holds_end(closing);
        if is_prompt { closing.len() } else { 0 }
    }
}

/// The place itself, or an earlier one from `least` on, if the text between them is how a turn opens. A text may begin
/// with a tag of its tokenizer, which is not part of a turn.
fn before_opening(text: &str, least: usize, at: usize) -> usize {
    let tag = text.find('>').filter(|&end| text.starts_with('<') && end < LONGEST_TAG);
    let behind_tag = tag.map(|end| &text[end + 1..]).filter(|rest| rest.starts_with(['<', '[']));
    let opens = |part: &str| text.starts_with(part) || behind_tag.is_some_and(|rest| rest.starts_with(part));
    // An opening is at most half of the text before `at`, since it does not overlap itself.
    let from = least.max(at.saturating_sub(LONGEST_PROMPT)).max(at.div_ceil(2));
    let mut places = (from..at).filter(|&place| text.is_char_boundary(place));
    places.find(|&place| opens(&text[place..at])).unwrap_or(at)
}

/// The place itself, or the beginning of the tag that contains it.
fn outside_tags(text: &str, at: usize) -> usize {
    let from = text[..at].rfind(['<', '[']).filter(|&from| at - from <= LONGEST_TAG);
    let Some(from) = from.filter(|&from| from < at) else { return at };
    let close = if text[from..].starts_with('<') { '>' } else { ']' };
    let inside = |part: &str| !part.contains(|c: char| c == close || c.is_whitespace());
    let ends = text[at..].find(close).filter(|&end| end <= LONGEST_TAG);
    match ends {
        Some(end) if inside(&text[from..at]) && inside(&text[at..at + end]) => from,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_leaves_the_tag_it_falls_into() {
        assert_eq!(outside_tags("ab<|user|>", 4), 2);
        assert_eq!(outside_tags("ab<|user|>", 2), 2);
        assert_eq!(outside_tags("ab<|user|>", 10), 10);
        assert_eq!(outside_tags("ab[/INST] c", 4), 2);
        assert_eq!(outside_tags("1 < 2 and 3 > 2", 4), 4);
        assert_eq!(outside_tags("a<b", 2), 2);
    }

    #[test]
    fn a_border_leaves_the_opening_of_a_turn() {
        let text = "<s><|h|>user\nq<|end|>\n<|h|>assistant\na<|end|>\n<|h|>";
        assert_eq!(before_opening(text, 0, text.len()), text.len() - 5);
        assert_eq!(before_opening(&text[3..], 0, text.len() - 3), text.len() - 8);
        assert_eq!(before_opening(text, 0, text.len() - 5), text.len() - 5);
        assert_eq!(before_opening(text, text.len(), text.len()), text.len());
        assert_eq!(before_opening("<|s|>\na<|end|>\n", 0, 14), 14);
        assert_eq!(before_opening("abc", 0, 3), 3);
    }
}
