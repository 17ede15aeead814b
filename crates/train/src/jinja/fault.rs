//! Why a template cannot be compiled, or why its rendering stopped early.

use std::fmt;

/// A fault, in the words of its raiser, with the line it happened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    words: String,
    line: Option<u32>,
    of_template: bool,
}

/// A result of the interpreter.
pub(super) type Answer<T> = Result<T, Fault>;

impl Fault {
    pub(super) fn new(words: impl Into<String>) -> Fault {
        Fault { words: words.into(), line: None, of_template: false }
    }

    /// A fault that no other conversation would mend.
    pub(super) fn of_template(words: impl Into<String>) -> Fault {
        Fault { of_template: true, ..Fault::new(words) }
    }

    /// Whether the template is at fault, whatever its input.
    pub(crate) fn is_of_template(&self) -> bool {
        self.of_template
    }

    /// The same fault with a line, if it has none yet: the innermost place is the relevant one.
    pub(super) fn at(mut self, line: u32) -> Fault {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (line {line} of the template)", self.words),
            None => f.write_str(&self.words),
        }
    }
}

/// An unknown filter or test. It is the template's fault, whatever the conversation.
pub(super) fn filter_fault(name: &str) -> Fault {
    if name == "random" {
        return Fault::of_template(
            "the filter `random` draws another item each time, so no rendering could be repeated; choose the item by its place",
        );
    }
    Fault::of_template(format!("the filter `{name}` is unknown"))
}

/// The fault of a template that uses an unknown test.
pub(super) fn test_fault(name: &str) -> Fault {
    Fault::of_template(format!("the test `{name}` is unknown"))
}

/// The fault of a template that calls an unknown function.
pub(super) fn function_fault(name: &str) -> Fault {
    Fault::of_template(format!("the function `{name}` is unknown"))
}

/// An unknown field of a date. Copied into the text it would be learned.
pub(super) fn field_fault(field: &str) -> Fault {
    Fault::of_template(format!("`strftime_now` knows no field `{field}`; write the date with other fields"))
}

/// A block that a template which inherits this one would have to fill.
pub(super) fn required_fault(name: &str) -> Fault {
    Fault::of_template(format!(
        "the block `{name}` is required, and no other template can fill it; write what belongs there"
    ))
}
