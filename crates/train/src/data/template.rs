//! Chat templates: a conversation as the text its model was taught to read, and which part the assistant said.
//!
//! Templates are Jinja programs that come with a model. They run here as they run in transformers: blocks take
//! their line with them, dictionaries keep their order and have Python's methods, `tojson` writes what
//! `json.dumps` writes, `raise_exception` refuses a conversation, and `strftime_now` gives the date (UTC). Nothing
//! they can call reads files or the network.
//!
//! What the assistant said is found in one of two ways, always as ranges of the one rendering of the whole:
//!
//! - templates with `{% generation %}` marks say it themselves: each mark leaves a character in the text that no
//!   text has, which is taken out again;
//! - otherwise an answer begins where the turns before it, rendered with the prompt for an answer, stop agreeing with
//!   the whole, and ends where the rendering up to and with it does. Templates that write the last answer differently
//!   (they keep its thoughts) are asked again with another turn behind it.

mod python;

use std::fmt::Write as _;
use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Value as Json, json};

use python::{Dictionary, now, strftime, to_json, value_of};

/// Stand where an answer begins and ends; the last two characters there are, which mean nothing.
const BEGINS: char = '\u{10fffe}';
const ENDS: char = '\u{10ffff}';
const NAME: &str = "chat";
/// Instructions of one rendering. Templates take a few hundred for a turn; one that goes on for ever must not take the
/// run with it.
const MOST_WORK: u64 = 1 << 25;

/// A model's chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    /// Whether the template says itself what the assistant said.
    marked: bool,
    environment: Environment<'static>,
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
        let program = with_marks(source);
        let mut environment = Environment::new();
        environment.set_fuel(Some(MOST_WORK));
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|fault| reason(&fault))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: &str| strftime(format, now()));
        environment.add_filter("tojson", to_json);
        let marked = program != source;
        environment.add_template_owned(NAME, program).map_err(|fault| reason(&fault))?;
        Ok(ChatTemplate { source: source.to_owned(), marked, environment, special })
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
        let text = self.run(messages, tools, prompt)?;
        Ok(if self.marked { text.replace([BEGINS, ENDS], "") } else { text })
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
        let whole = self.run(messages, tools, false)?;
        let is_answer = |message: &Json| message["role"] == "assistant";
        if self.marked {
            let Rendered { text, mut answers } = without_marks(&whole);
            // The template marks every answer; those of the first messages are not asked for.
            let unasked = messages[..from].iter().filter(|&message| is_answer(message)).count();
            answers.drain(..unasked.min(answers.len()));
            return Ok(Rendered { text, answers });
        }
        let mut answers: Vec<Range<usize>> = Vec::new();
        let numbered = messages.iter().enumerate().skip(from);
        for (at, _) in numbered.filter(|(_, message)| is_answer(message)) {
            let begin = self.answer_begin(messages, tools, at, &whole)?;
            let end = self.answer_end(messages, tools, at, &whole)?;
            if begin > end || answers.last().is_some_and(|last| last.end > begin) {
                return Err(not_turn_by_turn(at));
            }
            answers.push(begin..end);
        }
        Ok(Rendered { text: whole, answers })
    }

    fn answer_begin(
        &self,
        messages: &[Json],
        tools: Option<&Json>,
        at: usize,
        whole: &str,
    ) -> Result<usize, String> {
        if at == 0 {
            // There is nothing before it to render; its words are where it begins.
            let words = messages[0]["content"].as_str().unwrap_or_default().trim();
            return whole.find(words).ok_or_else(|| not_turn_by_turn(at));
        }
        let before = self.run(&messages[..at], tools, true)?;
        Ok(common_prefix(&before, whole))
    }

    fn answer_end(
        &self,
        messages: &[Json],
        tools: Option<&Json>,
        at: usize,
        whole: &str,
    ) -> Result<usize, String> {
        if at + 1 == messages.len() {
            return Ok(whole.len());
        }
        let with = self.run(&messages[..=at], tools, false)?;
        if whole.starts_with(&with) {
            return Ok(with.len());
        }
        // What a further turn adds is the difference between one of them and two.
        let mut longer = messages[..=at].to_vec();
        longer.push(json!({"role": "user", "content": ""}));
        let one = self.run(&longer, tools, false)?;
        longer.push(json!({"role": "user", "content": ""}));
        let two = self.run(&longer, tools, false)?;
        let end = one.len().saturating_sub(two.len().saturating_sub(one.len()));
        match one.get(..end) {
            Some(with) if whole.starts_with(with) => Ok(end),
            _ => Err(not_turn_by_turn(at)),
        }
    }

    fn run(&self, messages: &[Json], tools: Option<&Json>, prompt: bool) -> Result<String, String> {
        let mut context: Vec<(String, Value)> = vec![
            ("messages".into(), messages.iter().map(value_of).collect::<Vec<Value>>().into()),
            ("add_generation_prompt".into(), prompt.into()),
            ("tools".into(), tools.map_or_else(|| Value::from(()), value_of)),
            ("documents".into(), Value::from(())),
        ];
        let special = self.special.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str())));
        context.extend(special);
        let template = self.environment.get_template(NAME).map_err(|fault| reason(&fault))?;
        template.render(Value::from_object(Dictionary(context))).map_err(|fault| reason(&fault))
    }
}

fn not_turn_by_turn(at: usize) -> String {
    format!(
        "the chat template writes message {} differently when more follows, so what the assistant said cannot be \
         told from the rest; add {{% generation %}} marks to the template",
        at + 1
    )
}

/// Bytes both texts begin with, up to a whole character.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(a, _)| a.len_utf8()).sum()
}

/// Replaces the tags `generation` and `endgeneration`, which plain Jinja does not know, by blocks that print a
/// mark and treat the white space around them as the tags do.
fn with_marks(source: &str) -> String {
    let mut program = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        program.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let (tag, behind) = tag.split_at(end + 2);
        let inside = &tag[2..tag.len() - 2];
        let mark = match inside.trim_matches(['-', '+']).trim() {
            "generation" => Some(BEGINS),
            "endgeneration" => Some(ENDS),
            _ => None,
        };
        match mark {
            Some(mark) => {
                let sign = |sign: Option<char>| sign.filter(|c| "-+".contains(*c)).map(String::from);
                let (left, right) = (sign(inside.chars().next()), sign(inside.chars().next_back()));
                let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
                let _ = write!(program, "{{%{left} if true %}}{mark}{{% endif {right}%}}");
            }
            None => program.push_str(tag),
        }
        rest = behind;
    }
    program.push_str(rest);
    program
}

fn without_marks(marked: &str) -> Rendered {
    let (mut text, mut answers, mut begin) = (String::with_capacity(marked.len()), Vec::new(), 0);
    for character in marked.chars() {
        match character {
            BEGINS => begin = text.len(),
            ENDS => answers.push(begin..text.len()),
            _ => text.push(character),
        }
    }
    Rendered { text, answers }
}

/// The fault in one line, with the words of whoever raised it.
fn reason(fault: &Error) -> String {
    if fault.kind() == ErrorKind::OutOfFuel {
        return format!(
            "the template is not done after {MOST_WORK} instructions; look for a loop without an end"
        );
    }
    let words = fault.detail().map_or_else(|| fault.kind().to_string(), str::to_owned);
    match fault.line() {
        Some(line) => format!("{words} (line {line} of the template)"),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_methods_slices_and_loop_controls_work_as_templates_use_them() {
        let template = ChatTemplate::new(
            "{%- for m in messages[::-1] %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role.upper() }}\
             {% for k, v in m.items() %}[{{ k }}={{ v }}]{% endfor %}{{ m.get('x', 'none') }}{% endfor %}\
             {{ messages | tojson(indent=2) }}{{ '<&>' }}{{ messages[1:] | length }}",
            Vec::new(),
        );
        let messages =
            [json!({"role": "a", "content": "b"}), json!({"role": "user", "z": [], "content": "é<"})];
        assert_eq!(
            template.unwrap().render(&messages, None, false).unwrap(),
            "USER[role=user][z=[]][content=é<]none[\n  {\n    \"role\": \"a\",\n    \"content\": \"b\"\n  },\n  {\n    \
             \"role\": \"user\",\n    \"z\": [],\n    \"content\": \"é<\"\n  }\n]<&>1"
        );
    }

    #[test]
    fn a_refusal_and_a_mistake_come_with_their_words_and_line() {
        let template =
            ChatTemplate::new("\n{{ raise_exception('roles must take turns') }}", Vec::new()).unwrap();
        assert_eq!(
            template.render(&[], None, false).unwrap_err(),
            "roles must take turns (line 2 of the template)"
        );
        let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
        let fault = ChatTemplate::new(endless, Vec::new()).unwrap().render(&[], None, false).unwrap_err();
        assert!(
            fault.starts_with("the template is not done after 33554432 instructions; look for a loop"),
            "{fault}"
        );
        let fault = ChatTemplate::new("{% for %}", Vec::new()).unwrap_err();
        assert!(fault.ends_with("(line 1 of the template)"), "{fault}");
    }
}
