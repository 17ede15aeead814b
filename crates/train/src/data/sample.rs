//! Turns one sample into ids, marks those that are learned, and returns the label if there is one.
//!
//! | columns | rows are made of | learned from |
//! |---|---|---|
//! | `text` | opening, text, end | every token |
//! | `messages` (with `tools`, `chat_template_kwargs`) | the chat template's rendering | the assistant's words |
//! | `prompt`, `completion` | opening, both, end; or a rendering, where both are lists of messages | the completion |
//! | `text`, `label` | the text; opening and closing are put around it when rows are made | the label |
//!
//! Prompt and completion, and all turns of a conversation, are tokenised as one text, so that the ids are those the
//! model would see. A token is learned if any part of its text belongs to an answer, as in transformers and TRL. This
//! includes a token that reaches from the prompt into the answer; otherwise the answer's first letters would never be
//! learned. Such tokens are counted, since a prompt that ends there tokenises differently when the model is used.

use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::DataError;
use super::exact_json::{self, kind};
use super::fault::Fault;
use super::spec::Task;
use super::template::{Conversation, RenderFault, message_list, parsed_list};
use super::tokenizer::Tokenizer;

/// Set in ids that are not learned from.
pub(super) const UNLEARNED: u32 = 1 << 31;

/// Columns that samples are made of.
#[cfg(feature = "parquet")]
pub(super) const COLUMNS: [&str; 7] =
    ["text", "label", "messages", "prompt", "completion", "tools", "chat_template_kwargs"];

/// The most classes that numeric labels may name. Larger numbers are hardly classes, and a head for them would not fit
/// anywhere.
const MOST_CLASSES: usize = 1 << 16;

/// Receives the ids of a sample as they are found, each with or without [`UNLEARNED`].
pub(super) struct Ids<'a> {
    each: &'a mut (dyn FnMut(u32) + Send),
    last: Option<u32>,
    /// Learned tokens that begin in a prompt and reach into its answer.
    pub(super) seams: u64,
    /// Samples with a label that their task does not read.
    pub(super) unread_labels: u64,
}

impl<'a> Ids<'a> {
    pub(super) fn to(each: &'a mut (dyn FnMut(u32) + Send)) -> Ids<'a> {
        Ids { each, last: None, seams: 0, unread_labels: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    fn push(&mut self, id: u32) {
        self.last = Some(id);
        (self.each)(id);
    }
}

/// A class, as the data names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Label {
    Number(i32),
    Name(String),
}

/// How samples of one task become ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoder<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) task: &'a Task,
    /// Classes of the model, where it is made already.
    pub(super) classes: Option<usize>,
    /// The most bytes of text that are tokenised at once, if larger than a window.
    pub(super) unbroken: usize,
}

impl Encoder<'_> {
    /// A piece of a document that is nothing but text.
    pub(super) fn piece(
        &self,
        text: &str,
        opens: bool,
        closes: bool,
        ids: &mut Ids<'_>,
    ) -> Result<(), Fault> {
        let causal = *self.task == Task::Causal;
        if opens && causal {
            self.tokenizer.opening().iter().for_each(|&id| ids.push(id as u32));
        }
        self.tokenizer.encode_each(text, self.unbroken, |(id, _)| ids.push(id as u32))?;
        if closes && causal {
            self.end(ids);
        }
        Ok(())
    }

    /// A sample with named columns; returns its label if it has one. A fault of the sample is found before its first
    /// id.
    pub(super) fn record(
        &self,
        fields: &Map<String, Json>,
        ids: &mut Ids<'_>,
    ) -> Result<Option<Label>, Fault> {
        let has = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
        let mut label_found = None;
        match self.task {
            Task::Causal if has("messages") => {
                self.conversation(&parsed_list(&fields["messages"], "messages")?, 0, fields, ids)?;
            }
            Task::Causal if has("prompt") && has("completion") => self.completion(fields, ids)?,
            Task::Causal | Task::Masked if has("text") => {
                // Models that are made for hidden words can be made to classify; others cannot.
                ids.unread_labels = u64::from(*self.task == Task::Masked && has("label"));
                self.piece(filled(fields, "text")?, true, true, ids)?;
            }
            Task::Classify { labels } if has("text") && has("label") => {
                let text = filled(fields, "text")?;
                label_found = Some(label(&fields["label"], labels, self.classes)?);
                self.piece(text, true, true, ids)?;
            }
            task => return Err(Fault::Sample(missing(task, fields))),
        }
        Ok(label_found)
    }

    fn completion(&self, fields: &Map<String, Json>, ids: &mut Ids<'_>) -> Result<(), Fault> {
        let lists = ["prompt", "completion"].map(|name| message_list(&fields[name]));
        if let [Some(prompt), Some(answer)] = lists {
            let messages = [&prompt[..], &answer[..]].concat();
            return self.conversation(&messages, prompt.len(), fields, ids);
        }
        let (prompt, completion) = (text(fields, "prompt")?, filled(fields, "completion")?);
        self.tokenizer.opening().iter().for_each(|&id| ids.push(id as u32 | UNLEARNED));
        let whole = [prompt, completion].concat();
        self.learned_within(&whole, std::slice::from_ref(&(prompt.len()..whole.len())), ids)?;
        self.end(ids);
        Ok(())
    }

    /// The answers among the messages from `from` on are learned.
    fn conversation(
        &self,
        messages: &[Json],
        from: usize,
        fields: &Map<String, Json>,
        ids: &mut Ids<'_>,
    ) -> Result<(), Fault> {
        let tools = fields.get("tools");
        let template = self.tokenizer.template_for(tools)?.ok_or(DataError::NoTemplate)?;
        check_messages(messages)?;
        let more = fields.get("chat_template_kwargs");
        let conversation = Conversation::new(messages, tools, more)?;
        let file = || template.file().map(Path::to_owned);
        let rendered = template.answers(&conversation, from).map_err(|fault| match fault {
            RenderFault::Conversation(why) => {
                Fault::Rendering { template: file(), why: format!("cannot render the conversation: {why}") }
            }
            RenderFault::Template(why) => Fault::All(template.fault(why)),
            RenderFault::Answers { message } => Fault::Answers { template: file(), message: message + 1 },
        })?;
        if rendered.answers.iter().all(Range::is_empty) {
            return Err(if conversation.has_answer(from) {
                let why = "writes nothing of the assistant's messages, so nothing is to be learned".into();
                Fault::Rendering { template: file(), why }
            } else {
                Fault::Sample("no message is by the `assistant`, so nothing is to be learned".into())
            });
        }
        drop(conversation);
        self.learned_within(&rendered.text, &rendered.answers, ids)
    }

    /// Adds the ids of a text; those with a byte inside `ranges` (in order) are learned.
    fn learned_within(&self, text: &str, ranges: &[Range<usize>], ids: &mut Ids<'_>) -> Result<(), Fault> {
        let mut ranges = ranges.iter().filter(|range| !range.is_empty()).peekable();
        self.tokenizer.encode_each(text, self.unbroken, |(id, (from, to))| {
            while ranges.next_if(|range| range.end <= from).is_some() {}
            // Some tokens have no text of their own; they belong to their position in the text.
            let learned = ranges.peek().is_some_and(|range| range.start < to.max(from + 1));
            ids.seams += u64::from(learned && ranges.peek().is_some_and(|range| from < range.start));
            ids.push(if learned { id as u32 } else { id as u32 | UNLEARNED });
        })
    }

    /// Closes a document: the tokenizer's closing ids, then the id that ends a document.
    fn end(&self, ids: &mut Ids<'_>) {
        self.tokenizer.closing().iter().for_each(|&id| ids.push(id as u32));
        if let Some(end) = self.tokenizer.special().end
            && ids.last != Some(end as u32)
        {
            ids.push(end as u32);
        }
    }
}

fn check_messages(messages: &[Json]) -> Result<(), Fault> {
    if messages.is_empty() {
        return Err(Fault::Sample("`messages` is empty".into()));
    }
    match messages.iter().position(|message| !message["role"].is_string()) {
        Some(at) => Err(Fault::Sample(format!("message {} has no `role`", at + 1))),
        None => Ok(()),
    }
}

fn text<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<&'a str, Fault> {
    let value = fields.get(name).unwrap_or(&Json::Null);
    let text = value.as_str().filter(|text| !exact_json::is_number(text));
    text.ok_or_else(|| Fault::Sample(format!("`{name}` is {}, not a text", kind(value))))
}

fn filled<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<&'a str, Fault> {
    let text = text(fields, name)?;
    if text.is_empty() { Err(Fault::Sample(format!("`{name}` is empty"))) } else { Ok(text) }
}

fn label(value: &Json, known: &[String], classes: Option<usize>) -> Result<Label, Fault> {
    let most = if known.is_empty() { classes.unwrap_or(MOST_CLASSES) } else { known.len() };
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    let outside = |label: &dyn std::fmt::Display| {
        let whose = if most < MOST_CLASSES { "the model's classes" } else { "classes" };
        let last = most - 1;
        Fault::Sample(format!("the label {label} is not allowed: {whose} are numbered 0 to {last}"))
    };
    if let Some(long) = value.as_str().and_then(exact_json::digits) {
        return Err(outside(&long));
    }
    match (value.as_str().filter(|name| !exact_json::is_number(name)), number) {
        (Some(name), _) if known.is_empty() => Ok(Label::Name(name.to_owned())),
        (Some(name), _) => match known.iter().position(|label| label == name) {
            Some(at) => Ok(Label::Number(at as i32)),
            None => Err(Fault::Sample(format!("the label `{name}` is none of {}", quoted(known)))),
        },
        (None, Some(number)) if number >= 0 && (number as usize) < most => Ok(Label::Number(number)),
        (None, _) if value.is_i64() || value.is_u64() => Err(outside(value)),
        (None, _) => Err(Fault::Sample(format!("`label` is {}, not a whole number or a name", kind(value)))),
    }
}

fn missing(task: &Task, fields: &Map<String, Json>) -> String {
    let wanted = match task {
        Task::Causal => "`text`, `messages`, or `prompt` and `completion`",
        Task::Masked => "`text`",
        Task::Classify { .. } => "`text` and `label`",
    };
    let found: Vec<String> = fields.keys().cloned().collect();
    if found.is_empty() {
        return format!("there are no columns, and {wanted} is needed");
    }
    format!("the columns are {}, and {wanted} is needed", quoted(&found))
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
