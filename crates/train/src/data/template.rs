//! Chat templates: turn a conversation into the text its model was trained on, and mark the assistant's words in it.
//!
//! Templates are Jinja programs that come with a model. They run as they run in transformers (see [`crate::jinja`]), with the
//! variables transformers gives them: `messages`, `tools`, `documents`, `add_generation_prompt` and the special tokens.
//! Every rendering is bounded in work and memory by the size of its conversation.
//!
//! Templates with `{% generation %}` marks state the assistant's words themselves; for others the ranges are found by
//! rendering parts of the conversation (see `answers`). Either way they are ranges of the one rendering of the whole.

mod answers;
mod boundaries;
mod conversation;
mod marks;
mod numbers;
mod renderings;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value as Json, json};

use super::DataError;
use crate::jinja::{Limits, Rendering, Template, Value};

use answers::Search;
pub(super) use conversation::{Conversation, message_list, parsed_list};

/// Limit on the instructions of one rendering, and a further amount for each byte of its conversation. Templates take a
/// few hundred for a turn; one that never ends must not hang the run.
const MOST_WORK: u64 = 1 << 25;
const WORK_PER_BYTE: u64 = 64;
/// Limit on the bytes of text alive during one rendering, and a further amount for each byte of its conversation.
/// Renderings are a little longer than their input, and templates that gather their text in a variable hold it a few
/// times.
const MOST_MEMORY: usize = 4 << 20;
const MEMORY_PER_BYTE: usize = 16;

/// A model's chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    template: Template,
    /// `bos_token` and its like.
    special: Vec<(String, String)>,
    file: Option<PathBuf>,
    closes: OnceLock<bool>,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// Byte ranges of the assistant's words in `text`, in order.
    pub answers: Vec<Range<usize>>,
    /// How the answers were found.
    pub by: FoundBy,
}

/// How the assistant's words are found in a rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The template marks the answers.
    Marks,
    /// In parts of a long conversation, in linear time.
    Windows,
    /// One by one, in quadratic time, because there are few answers, or because parts render differently from the whole.
    OneByOne,
}

/// Why a conversation was not rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RenderFault {
    /// The template refuses this conversation; others may be whole.
    Conversation(String),
    /// The template cannot render any conversation of this kind: it uses something that does not exist.
    Template(String),
    /// The template writes the answer of a message in such a way that it cannot be told from the rest.
    Answers {
        /// The message, counted from 0.
        message: usize,
    },
}

impl From<crate::jinja::Fault> for RenderFault {
    fn from(fault: crate::jinja::Fault) -> RenderFault {
        let of = if fault.is_of_template() { RenderFault::Template } else { RenderFault::Conversation };
        of(fault.to_string())
    }
}

impl fmt::Display for RenderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenderFault::Conversation(why) | RenderFault::Template(why) => f.write_str(why),
            RenderFault::Answers { message } => write!(
                f,
                "the chat template writes message {} differently once others follow, so its answer cannot be told from the rest",
                message + 1
            ),
        }
    }
}

impl ChatTemplate {
    /// Compiles a template; `special` are the names of tokens it may use, such as `bos_token`.
    ///
    /// # Errors
    ///
    /// The error names the line and its fault.
    pub fn new(source: &str, special: Vec<(String, String)>) -> Result<ChatTemplate, String> {
        let template = Template::new(source).map_err(|fault| fault.to_string())?;
        Ok(ChatTemplate { source: source.to_owned(), template, special, file: None, closes: OnceLock::new() })
    }

    /// The same template at another time than the one it was compiled at, in seconds since 1970: all its renderings tell
    /// one date.
    #[must_use]
    pub fn at(self, seconds: u64) -> ChatTemplate {
        ChatTemplate { template: self.template.at(seconds), ..self }
    }

    /// Compiles the template of a file.
    pub(super) fn of_file(
        source: &str,
        special: Vec<(String, String)>,
        file: &Path,
    ) -> Result<ChatTemplate, DataError> {
        let wrong = |why| DataError::Template { path: Some(file.to_owned()), why };
        let template = ChatTemplate::new(source, special).map_err(wrong)?;
        Ok(ChatTemplate { file: Some(file.to_owned()), ..template })
    }

    /// A fault of the template itself, with the file it came from.
    pub(super) fn fault(&self, why: String) -> DataError {
        DataError::Template { path: self.file.clone(), why }
    }

    /// The file that the template came from, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
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
        let rendered = self.run(&conversation, conversation.all(), prompt);
        rendered.map(|rendered| rendered.text).map_err(|fault| fault.to_string())
    }

    /// The text of a whole conversation, and the ranges of the assistant's words in the messages from `from` on.
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
        let conversation = Conversation::new(messages, tools, None)?;
        self.answers(&conversation, from).map_err(|fault| fault.to_string())
    }

    /// As [`render_answers`](Self::render_answers), for a conversation that has been read.
    pub(super) fn answers(&self, conversation: &Conversation, from: usize) -> Result<Rendered, RenderFault> {
        if self.template.marks() {
            let Rendering { text, marked: mut answers, .. } =
                self.run(conversation, conversation.all(), false)?;
            if from > 0 {
                // The template marks every answer, but answers in earlier messages are not wanted.
                let begin = Search::new(self, conversation).begin_of(from)?;
                answers.retain_mut(|answer| {
                    answer.start = answer.start.max(begin);
                    answer.start < answer.end
                });
            }
            return Ok(Rendered { text, answers, by: FoundBy::Marks });
        }
        Search::new(self, conversation).answers(from)
    }

    /// Whether the template may write something after the last turn that it does not write after other turns.
    fn may_close(&self) -> bool {
        let turn = |role: &str| json!({"role": role, "content": "x"});
        let turns = [turn("user"), turn("assistant"), turn("user")];
        *self.closes.get_or_init(|| {
            match (self.render(&turns[..2], None, false), self.render(&turns, None, false)) {
                (Ok(shorter), Ok(longer)) => !longer.starts_with(&shorter),
                _ => true,
            }
        })
    }

    fn run(
        &self,
        conversation: &Conversation,
        messages: Value,
        prompt: bool,
    ) -> Result<Rendering, RenderFault> {
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
        Ok(self.template.render(&variables, limits)?)
    }
}

/// Bytes both texts begin with, up to a whole character.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|&at| a.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
