//! Renderings of parts of one conversation. Their work is counted, so that the search for answers is bounded. Each is
//! reported as progress: a long search is refused by this bound, with advice, and not by a watch over the reading.

use std::cell::{Cell, OnceCell};

use super::conversation::Conversation;
use super::marks::{Marked, mark};
use super::{ChatTemplate, RenderFault};
use crate::jinja::Value;
use crate::reading;

/// The search in a conversation is given up after this much work of its template: some twenty seconds.
const MOST_WORK: u64 = 1 << 29;

/// Renders one conversation many times, and counts the bytes.
pub(super) struct Renderings<'a> {
    template: &'a ChatTemplate,
    pub(super) conversation: &'a Conversation,
    rendered: Cell<u64>,
    worked: Cell<u64>,
    most: u64,
}

/// Some messages of a conversation, by number, and their rendering.
pub(super) struct Part {
    pub(super) messages: Vec<usize>,
    pub(super) text: String,
    /// Where the contents of messages lie in the text. None if the template refuses marked contents, or if marks change
    /// the rendered text.
    marked: OnceCell<Option<Marked>>,
}

impl<'a> Renderings<'a> {
    pub(super) fn new(template: &'a ChatTemplate, conversation: &'a Conversation) -> Renderings<'a> {
        let (rendered, worked) = (Cell::new(0), Cell::new(0));
        Renderings { template, conversation, rendered, worked, most: MOST_WORK }
    }

    pub(super) fn part(&self, messages: Vec<usize>) -> Result<Part, RenderFault> {
        let text = self.text(&messages, 0, false)?;
        Ok(Part { messages, text, marked: OnceCell::new() })
    }

    /// Messages as text, with empty turns of the user behind them.
    pub(super) fn text(&self, messages: &[usize], turns: usize, prompt: bool) -> Result<String, RenderFault> {
        let picked = self.conversation.picked(messages, turns);
        self.run(picked, prompt)
    }

    /// The same with the places of contents; `None` if the template refuses marked contents.
    pub(super) fn marked(&self, messages: &[usize], turns: usize, prompt: bool) -> Option<Marked> {
        let picked = self.conversation.picked_with(messages, turns, mark);
        Marked::read(&self.run(picked, prompt).ok()?, messages.len())
    }

    /// The places of contents in the text of a part.
    pub(super) fn places<'p>(&self, part: &'p Part) -> Option<&'p Marked> {
        let same = || self.marked(&part.messages, 0, false).filter(|marked| marked.text == part.text);
        part.marked.get_or_init(same).as_ref()
    }

    /// Whether a text holds the token that ends a document.
    pub(super) fn holds_end(&self, text: &str) -> bool {
        let end = self.template.special.iter().find(|(name, _)| name == "eos_token");
        end.is_some_and(|(_, token)| !token.is_empty() && text.contains(token.as_str()))
    }

    /// Whether the template may write something after the last turn that it does not write after others.
    pub(super) fn may_close(&self) -> bool {
        self.template.may_close()
    }

    /// Refuses to go on after too much work. A border that was not found, or found too easily, may be the consequence.
    pub(super) fn check(&self) -> Result<(), RenderFault> {
        if self.worked.get() > self.most {
            let why = "the conversation is too long to be rendered turn by turn; \
                       add {% generation %} marks to the chat template, or divide the conversation";
            return Err(RenderFault::Conversation(why.into()));
        }
        Ok(())
    }

    fn run(&self, messages: Value, prompt: bool) -> Result<String, RenderFault> {
        self.check()?;
        let rendering = self.template.run(self.conversation, messages, prompt)?;
        reading::step();
        self.rendered.set(self.rendered.get() + rendering.text.len() as u64);
        self.worked.set(self.worked.get() + rendering.work);
        Ok(rendering.text)
    }
}

#[cfg(test)]
impl<'a> Renderings<'a> {
    /// Renderings that are given up after this much work.
    pub(super) fn limited(
        template: &'a ChatTemplate,
        conversation: &'a Conversation,
        most: u64,
    ) -> Renderings<'a> {
        Renderings { most, ..Renderings::new(template, conversation) }
    }

    /// Bytes rendered so far.
    pub(super) fn rendered(&self) -> u64 {
        self.rendered.get()
    }
}
