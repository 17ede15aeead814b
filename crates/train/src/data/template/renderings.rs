//! Renderings of parts of one conversation. Their bytes are counted, so that the search for answers is bounded.

use std::cell::{Cell, OnceCell};

use super::conversation::Conversation;
use super::marks::{Marked, mark};
use super::{ChatTemplate, RenderFault};

/// The search in a conversation is given up after this many rendered bytes.
const MOST_RENDERED: u64 = 1 << 30;

/// Renders one conversation many times, and counts the bytes.
pub(super) struct Renderings<'a> {
    template: &'a ChatTemplate,
    pub(super) conversation: &'a Conversation,
    rendered: Cell<u64>,
}

/// Some messages of a conversation, by number, and their rendering.
pub(super) struct Part {
    pub(super) messages: Vec<usize>,
    pub(super) text: String,
    /// The places of contents in the text; none if a rendering with marks has another text.
    marked: OnceCell<Option<Marked>>,
}

impl<'a> Renderings<'a> {
    pub(super) fn new(template: &'a ChatTemplate, conversation: &'a Conversation) -> Renderings<'a> {
        Renderings { template, conversation, rendered: Cell::new(0) }
    }

    pub(super) fn part(&self, messages: Vec<usize>) -> Result<Part, RenderFault> {
        let text = self.text(&messages, 0, false)?;
        Ok(Part { messages, text, marked: OnceCell::new() })
    }

    /// Messages as text, with empty turns of the user behind them.
    pub(super) fn text(&self, messages: &[usize], turns: usize, prompt: bool) -> Result<String, RenderFault> {
        let picked = self.conversation.picked(messages, turns);
        self.counted(self.template.run(self.conversation, picked, prompt)?.text)
    }

    /// The same with the places of contents; `None` if the template refuses marked contents.
    pub(super) fn marked(&self, messages: &[usize], turns: usize, prompt: bool) -> Option<Marked> {
        let picked = self.conversation.picked_with(messages, turns, mark);
        let text = self.template.run(self.conversation, picked, prompt).ok()?.text;
        Marked::read(&self.counted(text).ok()?, messages.len())
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

    fn counted(&self, text: String) -> Result<String, RenderFault> {
        self.rendered.set(self.rendered.get() + text.len() as u64);
        if self.rendered.get() > MOST_RENDERED {
            let why = "the conversation is too long to be rendered turn by turn; \
                       add {% generation %} marks to the chat template, or divide the conversation";
            return Err(RenderFault::Conversation(why.into()));
        }
        Ok(text)
    }
}

#[cfg(test)]
impl Renderings<'_> {
    /// Bytes rendered so far.
    pub(super) fn rendered(&self) -> u64 {
        self.rendered.get()
    }
}
