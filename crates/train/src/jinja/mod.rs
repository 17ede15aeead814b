//! Jinja as Jinja2 runs it for chat templates: an interpreter with Python's values, and a bound on everything.
//!
//! ```text
//! source ──▶ lexer ──▶ parser ──▶ Program ──▶ interpreter ──▶ text, marked ranges
//! ```
//!
//! The meaning is that of Jinja2 3.1 as transformers configures it: a sandbox without mutation, `trim_blocks` and
//! `lstrip_blocks`, loop controls, the tag `generation`, `tojson` without escapes for HTML, `raise_exception`,
//! `strftime_now`. Values print, compare, slice and divide as in Python, because templates were written for that.
//!
//! A template is foreign code. Its source is bounded in bytes and nesting before it runs. While it runs, a [`Meter`]
//! counts every instruction, every live byte of texts and lists, and every level of nesting; a template that exceeds a
//! limit ends with an error. No function it can call reads files, the network or the environment.
//!
//! Absent: inheritance, imports and other files (transformers gives templates no loader), blocks called by name, HTML
//! escaping by `autoescape`, `random`, integers beyond 128 bits, and the local time zone (`strftime_now` speaks UTC).
//! Decision 0102 has the whole list.
#![allow(
    clippy::needless_pass_by_value,
    reason = "the arguments of a call are handed over to whoever answers it"
)]
#![allow(clippy::single_match_else, reason = "both arms are answers of equal weight")]
#![allow(clippy::format_collect, clippy::format_push_string, reason = "a few characters at a time")]
#![allow(clippy::unused_self, reason = "filters and tests have one signature")]

mod attributes;
mod braces;
mod calls;
mod characters;
mod checks;
mod clock;
mod entities;
mod evaluate;
mod expressions;
mod fault;
mod filters;
mod interpreter;
mod json;
mod lexer;
mod meter;
mod methods;
mod operators;
mod parser;
mod percent;
mod pretty;
mod safe;
mod show;
mod slices;
mod syntax;
mod unknown;
mod value;

use std::ops::Range;

pub(crate) use clock::{day, now};
pub(crate) use fault::Fault;
pub(crate) use meter::Limits;
use meter::Meter;
pub(crate) use value::Value;

use interpreter::Run;
use syntax::Program;

/// The most bytes of a template: far above published ones, and low because a tree takes many times its source (estimated, not measured).
const MOST_SOURCE: usize = 1 << 18;

/// A dictionary that came with the data.
pub(crate) fn dictionary(fields: Vec<(&str, Value)>) -> Value {
    value::dict::Dict::given(fields.into_iter().map(|(name, value)| (Value::text(name), value)).collect())
}

/// A template, ready to render. All renderings are of the same second: texts of one conversation are compared with each
/// other, and a clock that ticks between them would make them differ.
#[derive(Debug)]
pub(crate) struct Template {
    program: Program,
    now: u64,
}

/// A rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rendering {
    pub(crate) text: String,
    /// Byte ranges of `text` inside `{% generation %}`, in order.
    pub(crate) marked: Vec<Range<usize>>,
    /// Work that it took, as the meter counts it.
    pub(crate) work: u64,
}

impl Template {
    /// Compiles a template.
    pub(crate) fn new(source: &str) -> Result<Template, Fault> {
        Template::check_size(source.len() as u64)?;
        let program = parser::parse(source)?;
        unknown::check(&program)?;
        Ok(Template { program, now: now() })
    }

    /// The same template at another time, in seconds since 1970.
    pub(crate) fn at(self, now: u64) -> Template {
        Template { now, ..self }
    }

    /// Refuses a template that is too large to be one.
    pub(crate) fn check_size(bytes: u64) -> Result<(), Fault> {
        if bytes > MOST_SOURCE as u64 {
            return Err(Fault::new(format!("it has {bytes} bytes, and {MOST_SOURCE} are the most")));
        }
        Ok(())
    }

    /// Whether the template itself marks the assistant's words.
    pub(crate) fn marks(&self) -> bool {
        self.program.marks
    }

    /// Renders with the given variables.
    pub(crate) fn render(&self, variables: &[(&str, Value)], limits: Limits) -> Result<Rendering, Fault> {
        Run::new(&self.program, variables, Meter::new(limits), self.now).render()
    }
}
