//! Finds the assistant's words in a rendering, for templates that do not mark them.
//!
//! The careful way determines the borders of each answer (see `boundaries`). It renders every turn once or more for
//! each later answer, so its time is quadratic in the length of a conversation.
//!
//! Long conversations go through windows instead: a few turns at a time, with the system prompt before them and a turn
//! after them, form a conversation of their own, whose answers are found carefully. A window is placed where the answer
//! before it ended in the whole:
//!
//! ```text
//! whole     … │ answer 7 │ user │ answer 8 │ user │ answer 9 │ user │ answer 10 …
//! window        answer 7 │ user │ answer 8 │ user │ answer 9 │ user
//!                        └──── equal to the whole, or no use ┘
//! ```
//!
//! All text between the anchor and the last answer of a window must equal the whole's, so the windows tile the whole.
//! Only numbers may differ, since some templates count the turns (see `numbers`). Some answers are also determined
//! carefully in the whole, at doubling distances. If anything disagrees, the careful way is used, within a bound.
//!
//! If a border was not plain, the answers are checked once more in the whole: none may contain words of another role,
//! and each must contain the end of its own content.

use std::cell::Cell;
use std::ops::Range;

use super::boundaries::Border;
use super::conversation::{Conversation, Role};
use super::numbers::places_but_for_numbers;
use super::renderings::{Part, Renderings};
use super::{ChatTemplate, FoundBy, RenderFault, Rendered};

/// Up to this many answers the careful way is used at once.
const FEW: usize = 8;
/// Answers of one window.
const PER_WINDOW: usize = 4;
/// Up to this many messages, a window reaches back to a user's turn without a gap.
const NEAR: usize = 8;

/// Looks for the answers of one conversation.
pub(super) struct Search<'a> {
    renderings: Renderings<'a>,
    /// Whether a border was found that is not plain.
    doubtful: Cell<bool>,
}

impl<'a> Search<'a> {
    pub(super) fn new(template: &'a ChatTemplate, conversation: &'a Conversation) -> Search<'a> {
        Search { renderings: Renderings::new(template, conversation), doubtful: Cell::new(false) }
    }

    /// The text of the whole, and the answers among the messages from `from` on.
    pub(super) fn answers(&self, from: usize) -> Result<Rendered, RenderFault> {
        let found = self.found(from);
        self.renderings.check()?;
        found
    }

    fn found(&self, from: usize) -> Result<Rendered, RenderFault> {
        let (whole, asked) = (self.whole()?, self.asked(from));
        let found = if asked.len() > FEW { self.by_windows(&whole, &asked) } else { None };
        let (answers, by) = match found {
            Some(answers) => (answers, FoundBy::Windows),
            None => (self.one_by_one(&whole, &asked)?, FoundBy::OneByOne),
        };
        if self.doubtful.get() {
            self.judge(&whole, &asked, &answers)?;
        }
        Ok(Rendered { text: whole.text, answers, by })
    }

    /// The byte at which the messages from `from` on begin in the text of the whole conversation.
    pub(super) fn begin_of(&self, from: usize) -> Result<usize, RenderFault> {
        Ok(self.renderings.begin(&self.whole()?, from)?.at)
    }

    fn whole(&self) -> Result<Part, RenderFault> {
        self.renderings.part((0..self.renderings.conversation.len()).collect())
    }

    /// The assistant's messages from `from` on.
    fn asked(&self, from: usize) -> Vec<usize> {
        let conversation = self.renderings.conversation;
        (from..conversation.len()).filter(|&at| conversation.role(at) == Role::Assistant).collect()
    }

    /// Finds the answers one by one, each in the careful way.
    fn one_by_one(&self, whole: &Part, asked: &[usize]) -> Result<Vec<Range<usize>>, RenderFault> {
        let answers: Vec<Range<usize>> =
            asked.iter().map(|&at| self.careful(whole, at)).collect::<Result<_, _>>()?;
        for (at, pair) in answers.windows(2).enumerate() {
            if pair[0].end > pair[1].start {
                return Err(RenderFault::Answers { message: asked[at + 1] });
            }
        }
        Ok(answers)
    }

    /// The bytes of an answer in the text of a part; `place` counts the part's messages.
    fn careful(&self, part: &Part, place: usize) -> Result<Range<usize>, RenderFault> {
        let (begin, end) = self.renderings.borders(part, place)?;
        self.doubt(begin);
        self.doubt(end);
        if begin.at > end.at {
            return Err(RenderFault::Answers { message: part.messages[place] });
        }
        Ok(begin.at..end.at)
    }

    fn doubt(&self, border: Border) {
        self.doubtful.set(self.doubtful.get() || !border.plain);
    }

    /// Refuses answers that contain words of another role, or lack their own.
    fn judge(&self, whole: &Part, asked: &[usize], answers: &[Range<usize>]) -> Result<(), RenderFault> {
        let conversation = self.renderings.conversation;
        let fault = |message| Err(RenderFault::Answers { message });
        let Some(places) = self.renderings.places(whole) else { return fault(asked[0]) };
        for (answer, &message) in answers.iter().zip(asked) {
            if places.ends[message].is_some_and(|end| end < answer.start || end > answer.end) {
                return fault(message);
            }
        }
        let others = (0..conversation.len()).filter(|&at| conversation.role(at) != Role::Assistant);
        let mut others: Vec<(usize, usize)> =
            others.filter_map(|at| places.starts[at].zip(places.ends[at])).collect();
        others.sort_unstable();
        let mut next = answers.iter().zip(asked).peekable();
        for (start, end) in others {
            while next.next_if(|(answer, _)| answer.end <= start).is_some() {}
            if let Some(&(answer, &of)) = next.peek()
                && answer.start < end
            {
                return fault(of);
            }
        }
        Ok(())
    }

    /// The answers by windows; nothing if one of them does not fit.
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

    /// The next answers after one whose end in the whole is known.
    fn window(
        &self,
        whole: &Part,
        (anchor, anchored): (usize, usize),
        new: &[usize],
    ) -> Option<Vec<Range<usize>>> {
        let window = self.renderings.part(self.around(anchor, *new.last()?)).ok()?;
        let place = |message: usize| window.messages.iter().position(|&known| known == message);
        let from = self.renderings.end(&window, place(anchor)?).ok()?;
        self.doubt(from);
        let mut borders = Vec::with_capacity(2 * new.len());
        for &message in new {
            let range = self.careful(&window, place(message)?).ok()?;
            borders.extend([range.start.checked_sub(from.at)?, range.end.checked_sub(from.at)?]);
        }
        let (there, here) = (window.text.get(from.at..)?, whole.text.get(anchored..)?);
        let places = places_but_for_numbers(there, here, &borders)?;
        Some(places.chunks(2).map(|answer| anchored + answer[0]..anchored + answer[1]).collect())
    }

    /// The messages of a window: the opening of the conversation, the user's turn that `anchor` answers, all messages
    /// from there to the last answer, and those after it up to the next turn of the user.
    fn around(&self, anchor: usize, last: usize) -> Vec<usize> {
        let conversation = self.renderings.conversation;
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

#[cfg(test)]
impl<'a> Search<'a> {
    /// The search, given up after this much work.
    pub(super) fn limited(
        template: &'a ChatTemplate,
        conversation: &'a Conversation,
        most: u64,
    ) -> Search<'a> {
        let renderings = Renderings::limited(template, conversation, most);
        Search { renderings, doubtful: Cell::new(false) }
    }

    /// Bytes rendered so far.
    pub(super) fn rendered(&self) -> u64 {
        self.renderings.rendered()
    }

    /// The answers as [`Search::answers`] finds them, without windows.
    pub(super) fn carefully(&self, from: usize) -> Result<Rendered, RenderFault> {
        let (whole, asked) = (self.whole()?, self.asked(from));
        let answers = self.one_by_one(&whole, &asked)?;
        if self.doubtful.get() {
            self.judge(&whole, &asked, &answers)?;
        }
        Ok(Rendered { text: whole.text, answers, by: FoundBy::OneByOne })
    }
}
