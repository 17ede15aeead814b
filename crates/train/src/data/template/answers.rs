//! Which parts of a rendering the assistant said, for templates that do not say it themselves.
//!
//! The careful way asks for each answer: it begins where the turns before it, rendered with the prompt for an answer, stop
//! agreeing with the whole, and ends where the rendering up to and with it does. Templates that write the last answer
//! differently (they keep its thoughts) are asked again with another turn behind it. That renders every turn once
//! for each answer behind it, so long conversations take the square of their length.
//!
//! Those go through windows instead: a few turns at a time, with the system prompt before them and a turn behind them, are
//! a conversation of their own and answered carefully. A window is laid where the answer before it ended in the whole:
//!
//! ```text
//! whole     … │ answer 7 │ user │ answer 8 │ user │ answer 9 │ user │ answer 10 …
//! window        answer 7 │ user │ answer 8 │ user │ answer 9 │ user
//!                        └──── equal to the whole, or no use ┘
//! ```
//!
//! All text between the anchor and the last answer of a window must be the whole's, byte for byte, so the windows tile the
//! whole. Some answers are also asked for carefully in the whole, twice as far apart each time. Where anything disagrees, the
//! careful way answers, within a bound.

use std::cell::Cell;
use std::ops::Range;

use super::conversation::{Conversation, Role};
use super::{ChatTemplate, RenderFault, common_prefix};

/// Answers up to which the careful way is taken at once.
const FEW: usize = 8;
/// Answers of one window.
const PER_WINDOW: usize = 4;
/// Messages up to which a window reaches back to a user's turn without a gap.
const NEAR: usize = 8;
/// Bytes rendered after which the careful way is given up.
const MOST_RENDERED: u64 = 1 << 30;

/// Renders one conversation many times, and counts the bytes.
pub(super) struct Search<'a> {
    template: &'a ChatTemplate,
    conversation: &'a Conversation,
    rendered: Cell<u64>,
}

/// Some messages of a conversation, by number, and their rendering.
struct Part {
    messages: Vec<usize>,
    text: String,
}

impl<'a> Search<'a> {
    pub(super) fn new(template: &'a ChatTemplate, conversation: &'a Conversation) -> Search<'a> {
        Search { template, conversation, rendered: Cell::new(0) }
    }

    /// The text of the whole, and the answers among the messages from `from` on.
    pub(super) fn answers(&self, from: usize) -> Result<(String, Vec<Range<usize>>), RenderFault> {
        let conversation = self.conversation;
        let whole = self.part((0..conversation.len()).collect())?;
        let asked: Vec<usize> =
            (from..conversation.len()).filter(|&at| conversation.role(at) == Role::Assistant).collect();
        let found = if asked.len() > FEW { self.by_windows(&whole, &asked) } else { None };
        let answers = match found {
            Some(answers) => answers,
            None => self.one_by_one(&whole, &asked)?,
        };
        Ok((whole.text, answers))
    }

    /// The careful way for every answer.
    fn one_by_one(&self, whole: &Part, asked: &[usize]) -> Result<Vec<Range<usize>>, RenderFault> {
        let answers: Vec<Range<usize>> =
            asked.iter().map(|&at| self.careful(whole, at)).collect::<Result<_, _>>()?;
        for (at, pair) in answers.windows(2).enumerate() {
            if pair[0].end > pair[1].start {
                return Err(not_turn_by_turn(asked[at + 1]));
            }
        }
        Ok(answers)
    }

    fn part(&self, messages: Vec<usize>) -> Result<Part, RenderFault> {
        let text = self.text(&messages, 0, false)?;
        Ok(Part { messages, text })
    }

    /// Messages as text, with empty turns of the user behind them.
    fn text(&self, messages: &[usize], turns: usize, prompt: bool) -> Result<String, RenderFault> {
        let picked = self.conversation.picked(messages, turns);
        let text = self.template.run(self.conversation, picked, prompt)?.text;
        self.rendered.set(self.rendered.get() + text.len() as u64);
        if self.rendered.get() > MOST_RENDERED {
            let why = "the conversation is too long to be rendered turn by turn; \
                       add {% generation %} marks to the chat template, or divide the conversation";
            return Err(RenderFault::Conversation(why.into()));
        }
        Ok(text)
    }

    /// The range of the answer at a place of a part.
    fn careful(&self, part: &Part, at: usize) -> Result<Range<usize>, RenderFault> {
        let range = self.begin(part, at)?..self.end(part, at)?;
        if range.start > range.end { Err(not_turn_by_turn(part.messages[at])) } else { Ok(range) }
    }

    fn begin(&self, part: &Part, at: usize) -> Result<usize, RenderFault> {
        if at == 0 {
            // There is nothing before it to render; its words are where it begins.
            let words = self.conversation.words(part.messages[0]);
            return part.text.find(words.trim()).ok_or_else(|| not_turn_by_turn(part.messages[0]));
        }
        Ok(common_prefix(&self.text(&part.messages[..at], 0, true)?, &part.text))
    }

    fn end(&self, part: &Part, at: usize) -> Result<usize, RenderFault> {
        if at + 1 == part.messages.len() {
            return Ok(part.text.len());
        }
        let messages = &part.messages[..=at];
        let with = self.text(messages, 0, false)?;
        if part.text.starts_with(&with) {
            return Ok(with.len());
        }
        // A further turn adds the difference between one of them and two.
        let (one, two) = (self.text(messages, 1, false)?, self.text(messages, 2, false)?);
        let end = one.len().saturating_sub(two.len().saturating_sub(one.len()));
        match one.get(..end) {
            Some(with) if part.text.starts_with(with) => Ok(end),
            _ => Err(not_turn_by_turn(part.messages[at])),
        }
    }

    /// The answers by windows, or nothing where one of them does not fit.
    fn by_windows(&self, whole: &Part, asked: &[usize]) -> Option<Vec<Range<usize>>> {
        let mut answers = vec![self.careful(whole, asked[0]).ok()?];
        let mut next_check = 1;
        while answers.len() < asked.len() {
            let known = answers.len();
            let new = &asked[known..asked.len().min(known + PER_WINDOW)];
            let anchor = (asked[known - 1], answers[known - 1].end);
            answers.extend(self.window(whole, anchor, new)?);
            while next_check < answers.len() {
                let at = next_check;
                if self.careful(whole, asked[at]).ok()? != answers[at] {
                    return None;
                }
                next_check = 2 * at;
            }
        }
        let last = asked.len() - 1;
        let ordered = answers.windows(2).all(|pair| pair[0].end <= pair[1].start);
        (ordered && self.careful(whole, asked[last]).ok()? == answers[last]).then_some(answers)
    }

    /// The next answers behind one whose end in the whole is known.
    fn window(
        &self,
        whole: &Part,
        (anchor, anchored): (usize, usize),
        new: &[usize],
    ) -> Option<Vec<Range<usize>>> {
        let window = self.part(self.around(anchor, *new.last()?)).ok()?;
        let place = |message: usize| window.messages.iter().position(|&known| known == message);
        let from = self.end(&window, place(anchor)?).ok()?;
        let mut answers = Vec::with_capacity(new.len());
        for &message in new {
            let range = self.careful(&window, place(message)?).ok()?;
            let begin = range.start.checked_sub(from)?;
            answers.push(anchored + begin..anchored + range.end.checked_sub(from)?);
        }
        let (end, reached) = (answers.last()?.end, window.text.get(from..)?);
        let same = whole.text.get(anchored..end)? == reached.get(..end - anchored)?;
        same.then_some(answers)
    }

    /// The messages of a window: what opens the conversation, the turn of the user that `anchor` answers, all from there
    /// to the last answer, and behind it up to the next turn of the user.
    fn around(&self, anchor: usize, last: usize) -> Vec<usize> {
        let conversation = self.conversation;
        let is_user = |&at: &usize| conversation.role(at) == Role::User;
        let opening = (0..anchor).take_while(|&at| conversation.role(at) == Role::System).count();
        let mut messages: Vec<usize> = (0..opening).collect();
        match (opening..anchor).rfind(is_user) {
            Some(user) if anchor - user <= NEAR => messages.extend(user..anchor),
            user => messages.extend(user),
        }
        messages.extend(anchor..=last);
        match (last + 1..conversation.len()).find(is_user) {
            Some(user) if user - last <= NEAR => messages.extend(last + 1..=user),
            Some(user) => messages.extend([last + 1, user]),
            None if conversation.len() - last <= NEAR => messages.extend(last + 1..conversation.len()),
            None => messages.push(last + 1),
        }
        messages
    }
}

fn not_turn_by_turn(at: usize) -> RenderFault {
    RenderFault::Conversation(format!(
        "the chat template writes message {} differently when more follows, so what the assistant said cannot be \
         told from the rest; add {{% generation %}} marks to the template",
        at + 1
    ))
}

#[cfg(test)]
impl Search<'_> {
    /// Bytes rendered so far.
    pub(super) fn rendered(&self) -> u64 {
        self.rendered.get()
    }

    /// The answers as [`Search::answers`] finds them, without windows.
    pub(super) fn carefully(&self, from: usize) -> Result<(String, Vec<Range<usize>>), RenderFault> {
        let conversation = self.conversation;
        let whole = self.part((0..conversation.len()).collect())?;
        let asked: Vec<usize> =
            (from..conversation.len()).filter(|&at| conversation.role(at) == Role::Assistant).collect();
        let answers = self.one_by_one(&whole, &asked)?;
        Ok((whole.text, answers))
    }
}
