//! Chat templates: a conversation as the text its model was taught to read, and which part the assistant said.
//!
//! Templates are Jinja programs that come with a model. They run as they run in transformers (see [`crate::jinja`]), with the
//! variables transformers gives them: `messages`, `tools`, `documents`, `add_generation_prompt` and the special tokens.
//! Every rendering is bounded in work and memory by the size of its conversation.
//!
//! Templates with `{% generation %}` marks say themselves which parts the assistant said; for others the ranges are found
//! by rendering parts of the conversation (see `answers`). Either way they are ranges of the one rendering of the whole.

mod answers;
mod conversation;

use std::ops::Range;

use serde_json::Value as Json;

use crate::jinja::{Limits, Rendering, Template, Value};

use answers::Search;
use conversation::Role;
pub(super) use conversation::{Conversation, message_list, parsed_list};

/// Instructions of one rendering, and more for each byte of its conversation. Templates take a few hundred for a turn; one
/// that goes on for ever must not take the run with it.
const MOST_WORK: u64 = 1 << 25;
const WORK_PER_BYTE: u64 = 64;
/// Bytes of text that are alive during one rendering, and more for each byte of its conversation: renderings are a little
/// longer than what they render, and templates that gather their text in a variable hold it a few times.
const MOST_MEMORY: usize = 4 << 20;
const MEMORY_PER_BYTE: usize = 16;

/// A model's chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    template: Template,
    /// `bos_token` and its like.
    special: Vec<(String, String)>,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// All of it.
    pub text: String,
    /// Byte ranges of `text` that the assistant said, in order.
    pub answers: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Compiles a template; `special` are the names of tokens it may use, such as `bos_token`.
    ///
    /// # Errors
    ///
    /// With the line and what is wrong there.
    pub fn new(source: &str, special: Vec<(String, String)>) -> Result<ChatTemplate, String> {
        let template = Template::new(source).map_err(|fault| fault.to_string())?;
        Ok(ChatTemplate { source: source.to_owned(), template, special })
    }

    /// Refuses a template that is too large to be one, before it is read.
    pub(super) fn check_size(bytes: u64) -> Result<(), String> {
        Template::check_size(bytes).map_err(|fault| fault.to_string())
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation, ready for an answer when `prompt` is set.
    ///
    /// # Errors
    ///
    /// When the template refuses the conversation, with its words.
    pub fn render(&self, messages: &[Json], tools: Option<&Json>, prompt: bool) -> Result<String, String> {
        let conversation = Conversation::new(messages, tools, None)?;
        Ok(self.run(&conversation, conversation.all(), prompt)?.text)
    }

    /// The text of a whole conversation, and which parts of it the assistant said in the messages from `from` on.
    ///
    /// # Errors
    ///
    /// When the template refuses the conversation, or its answers cannot be told from the rest.
    pub fn render_answers(
        &self,
        messages: &[Json],
        tools: Option<&Json>,
        from: usize,
    ) -> Result<Rendered, String> {
        self.answers(&Conversation::new(messages, tools, None)?, from)
    }

    /// The same for a conversation that was read before.
    pub(super) fn answers(&self, conversation: &Conversation, from: usize) -> Result<Rendered, String> {
        if self.template.marks() {
            let Rendering { text, marked: mut answers } =
                self.run(conversation, conversation.all(), false)?;
            // The template marks every answer; those of the first messages are not asked for.
            let unasked = (0..from).filter(|&at| conversation.role(at) == Role::Assistant).count();
            answers.drain(..unasked.min(answers.len()));
            return Ok(Rendered { text, answers });
        }
        let (text, answers) = Search::new(self, conversation).answers(from)?;
        Ok(Rendered { text, answers })
    }

    fn run(&self, conversation: &Conversation, messages: Value, prompt: bool) -> Result<Rendering, String> {
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", messages),
            ("tools", conversation.tools()),
            ("documents", Value::None),
            ("add_generation_prompt", Value::Bool(prompt)),
        ];
        variables.extend(conversation.more());
        variables.extend(self.special.iter().map(|(name, token)| (name.as_str(), Value::text(token))));
        let limits = Limits {
            memory: MOST_MEMORY + MEMORY_PER_BYTE * conversation.bytes(),
            work: MOST_WORK + WORK_PER_BYTE * conversation.bytes() as u64,
        };
        self.template.render(&variables, limits).map_err(|fault| fault.to_string())
    }
}

/// Bytes both texts begin with, up to a whole character.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|&at| a.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
