//! Values as Python has them, and the operations of all of them: truth, equality, order, length.
//!
//! Lists and dictionaries never change (the sandbox of transformers forbids it), so they are shared. Namespaces do
//! change and live in the interpreter, where a value refers to them by number: cycles of them cannot leak or recurse. A
//! list knows how deep it nests, and the interpreter refuses to go deeper than its stack allows.

pub(in crate::jinja) mod dict;
pub(in crate::jinja) mod numbers;
mod scope;

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::fault::{Answer, Fault};
use super::meter::{Charge, Meter, PER_TEXT, Pen};
use dict::Dict;
pub(crate) use scope::Scope;

/// Bytes of an item of a list, with those of a small text in it.
pub(in crate::jinja) const PER_ITEM: usize = 64;
/// Lists inside lists.
pub(in crate::jinja) const MOST_DEPTH: usize = 128;

/// A value of a template.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Undefined(Missing),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    /// A text that is safe for HTML; adding another text escapes that one.
    Markup(Text),
    /// A text that holds JSON: a text for templates that print it, and the parsed value for those that look inside.
    Json(Rc<JsonText>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    /// `keys()`, `values()` or `items()` of a dictionary.
    View(View, Rc<Dict>),
    Range(Span),
    Stream(Rc<Stream>),
    Namespace(usize),
    Loop(u64),
    Macro(Rc<Macro>),
    Method(Rc<(Value, Arc<str>)>),
    Function(Function),
    Cycler(Rc<(Rc<Items>, Cell<usize>)>),
    Joiner(Rc<(Value, Cell<bool>)>),
}

/// A text, of the template and its data or made while it runs.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    Fixed(Arc<str>),
    Made(Rc<Made>),
}

#[derive(Debug)]
pub(crate) struct Made {
    text: String,
    _charge: Charge,
}

#[derive(Debug)]
pub(crate) struct JsonText {
    pub(in crate::jinja) text: Text,
    pub(in crate::jinja) inside: Value,
}

/// Items that can be taken once, as those of Python's generators.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(in crate::jinja) name: &'static str,
    pub(in crate::jinja) items: RefCell<VecDeque<Value>>,
    _charge: Charge,
}

/// The items of a list or tuple.
#[derive(Debug)]
pub(crate) struct Items {
    values: Vec<Value>,
    depth: usize,
    _charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// Python's `range`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(in crate::jinja) start: i128,
    /// As it was given, which may lie beyond the next step.
    pub(in crate::jinja) stop: i128,
    pub(in crate::jinja) step: i128,
    pub(in crate::jinja) len: usize,
}

/// Functions every template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    /// Exists as in Jinja2, but every call is refused.
    Lipsum,
    RaiseException,
    StrftimeNow,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(in crate::jinja) function: usize,
    pub(in crate::jinja) scope: Rc<Scope>,
}

/// Why a value is undefined.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    Variable(Arc<str>),
    Attribute { of: &'static str, name: Arc<str> },
    Element { of: &'static str },
    Because(&'static str),
}

impl Missing {
    pub(in crate::jinja) fn fault(&self) -> Fault {
        Fault::new(match self {
            Missing::Variable(name) => format!("`{name}` is undefined"),
            Missing::Attribute { of, name } => format!("{of} has no attribute `{name}`"),
            Missing::Element { of } => format!("{of} has no such element"),
            Missing::Because(why) => (*why).to_owned(),
        })
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Fixed(text) => text,
            Text::Made(made) => &made.text,
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text::Fixed(text.into())
    }
}

impl From<Pen> for Text {
    fn from(pen: Pen) -> Text {
        let (text, charge) = pen.finish();
        Text::Made(Rc::new(Made { text, _charge: charge }))
    }
}

impl Text {
    /// A text that already exists, charged afterwards. Only for texts that are no longer than those they were made of.
    pub(in crate::jinja) fn made(text: String, meter: &Rc<Meter>) -> Answer<Text> {
        meter.pass(text.len())?;
        let charge = meter.hold(text.len() + PER_TEXT)?;
        Ok(Text::Made(Rc::new(Made { text, _charge: charge })))
    }
}

impl Items {
    /// Items that came with the data.
    pub(crate) fn given(values: Vec<Value>) -> Rc<Items> {
        let depth = depth_of(values.iter());
        Rc::new(Items { values, depth, _charge: None })
    }

    pub(in crate::jinja) fn made(values: Vec<Value>, meter: &Rc<Meter>) -> Answer<Rc<Items>> {
        meter.work(values.len() as u64)?;
        let charge = meter.hold(PER_ITEM * (1 + values.len()))?;
        let depth = depth_of(values.iter());
        check_depth(depth)?;
        Ok(Rc::new(Items { values, depth, _charge: Some(charge) }))
    }
}

impl Stream {
    pub(in crate::jinja) fn made(name: &'static str, items: Vec<Value>, meter: &Rc<Meter>) -> Answer<Value> {
        let charge = meter.hold(PER_ITEM * (1 + items.len()))?;
        check_depth(depth_of(items.iter()))?;
        Ok(Value::Stream(Rc::new(Stream { name, items: RefCell::new(items.into()), _charge: charge })))
    }
}

impl Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.values
    }
}

pub(in crate::jinja) fn check_depth(depth: usize) -> Answer<()> {
    if depth > MOST_DEPTH {
        return Err(Fault::new(format!("lists lie more than {MOST_DEPTH} deep inside each other")));
    }
    Ok(())
}

/// One more than the deepest of the values.
pub(in crate::jinja) fn depth_of<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    1 + values.map(Value::depth).max().unwrap_or(0)
}

impl Span {
    pub(in crate::jinja) fn get(&self, at: usize) -> i128 {
        self.start + self.step * at as i128
    }

    pub(in crate::jinja) fn iter(self) -> impl Iterator<Item = Value> {
        (0..self.len).map(move |at| Value::Int(self.get(at)))
    }

    /// Whether the numbers are the same.
    fn equals(self, other: Span) -> bool {
        let same = |at: usize| self.get(at) == other.get(at);
        self.len == other.len && (self.len == 0 || same(0) && same(self.len - 1))
    }

    fn contains(&self, value: &Value) -> bool {
        let Some(number) = numbers::whole(value) else { return false };
        let from = number - self.start;
        from % self.step == 0 && (0..self.len as i128).contains(&(from / self.step))
    }
}

impl Value {
    /// A list that came with the data.
    pub(crate) fn list(values: Vec<Value>) -> Value {
        Value::List(Items::given(values))
    }

    /// A text that came with the data.
    pub(crate) fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    /// A text that holds JSON.
    pub(crate) fn json(text: &str, inside: Value) -> Value {
        Value::Json(Rc::new(JsonText { text: text.into(), inside }))
    }

    /// A dictionary's entry.
    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Dict(dict) => dict.get_text(name),
            _ => None,
        }
    }

    /// The text of a dictionary's entry.
    pub(crate) fn field_text(&self, name: &str) -> Option<&str> {
        self.field(name)?.as_text()
    }

    /// A dictionary from the data, with the value of an existing entry replaced; other values are returned unchanged.
    pub(crate) fn with_field(&self, name: &str, value: Value) -> Value {
        let Value::Dict(dict) = self else { return self.clone() };
        let other = |(key, old): &(Value, Value)| {
            let new = if key.as_text() == Some(name) { &value } else { old };
            (key.clone(), new.clone())
        };
        Dict::given(dict.iter().map(other).collect())
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    pub(in crate::jinja) fn attribute_of(of: &Value, name: &str) -> Value {
        Value::Undefined(Missing::Attribute { of: of.kind(), name: name.into() })
    }

    /// Levels of lists and dictionaries.
    pub(in crate::jinja) fn depth(&self) -> usize {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Dict(dict) | Value::View(_, dict) => 1 + dict.depth(),
            Value::Stream(stream) => depth_of(stream.items.borrow().iter()),
            Value::Json(json) => json.inside.depth(),
            Value::Method(method) => 1 + method.0.depth(),
            Value::Cycler(cycler) => 1 + cycler.0.depth,
            _ => 0,
        }
    }

    /// The characters of a text, of markup or of JSON text; `None` for other values.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Markup(text) => Some(text),
            Value::Json(json) => Some(&json.text),
            _ => None,
        }
    }

    /// Whether the value is a text that is marked as safe.
    pub(in crate::jinja) fn is_safe(&self) -> bool {
        matches!(self, Value::Markup(_))
    }

    /// `text`, which was made from this value, marked as safe if this value is.
    pub(in crate::jinja) fn alike(&self, text: Text) -> Value {
        if self.is_safe() { Value::Markup(text) } else { Value::Text(text) }
    }

    /// The value inside a JSON text; other values are returned unchanged.
    pub(in crate::jinja) fn inside(&self) -> &Value {
        match self {
            Value::Json(json) => &json.inside,
            other => other,
        }
    }

    pub(in crate::jinja) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// The name of the value's type in Python.
    pub(in crate::jinja) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) | Value::Json(_) => "str",
            Value::Markup(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(View::Keys, _) => "dict_keys",
            Value::View(View::Values, _) => "dict_values",
            Value::View(View::Items, _) => "dict_items",
            Value::Range(_) => "range",
            Value::Stream(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Method(_) => "method",
            Value::Function(_) => "function",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// Python's truth.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(bool) => *bool,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            other => match other.as_text() {
                Some(text) => !text.is_empty(),
                None => other.len().is_none_or(|len| len > 0),
            },
        }
    }

    /// Python's `len`, where there is one that needs no interpreter.
    pub(in crate::jinja) fn len(&self) -> Option<usize> {
        Some(match self {
            Value::Undefined(_) => 0,
            Value::Text(text) | Value::Markup(text) => text.chars().count(),
            Value::Json(json) => match &json.inside {
                Value::Dict(dict) => dict.len(),
                Value::List(items) => items.len(),
                _ => json.text.chars().count(),
            },
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::Dict(dict) | Value::View(_, dict) => dict.len(),
            Value::Range(span) => span.len,
            _ => return None,
        })
    }

    /// Whether both values are the same object, as far as values can tell.
    pub(in crate::jinja) fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
            (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => a == b,
            (Value::Loop(a), Value::Loop(b)) => a == b,
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            (Value::Function(a), Value::Function(b)) => a == b,
            _ => match (self.as_text(), other.as_text()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }

    /// Python's `==`.
    pub(in crate::jinja) fn equals(&self, other: &Value) -> bool {
        if let (Some(a), Some(b)) = (self.as_text(), other.as_text()) {
            return a == b;
        }
        if let Some(order) = numbers::compare(self, other) {
            return order == Some(Ordering::Equal);
        }
        let all = |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b));
        match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) => true,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => all(a, b),
            (Value::Dict(a), Value::Dict(b)) => a.equals(b),
            (Value::View(View::Keys, a), Value::View(View::Keys, b)) => {
                a.len() == b.len() && a.iter().all(|(key, _)| b.get(key).is_some())
            }
            (Value::Range(a), Value::Range(b)) => a.equals(*b),
            _ => self.is_same(other),
        }
    }

    /// Python's order, where two values have one.
    pub(in crate::jinja) fn order(&self, other: &Value) -> Answer<Option<Ordering>> {
        if let Value::Undefined(missing) = self {
            return Err(missing.fault());
        }
        if let Value::Undefined(missing) = other {
            return Err(missing.fault());
        }
        if let (Some(a), Some(b)) = (self.as_text(), other.as_text()) {
            return Ok(Some(a.cmp(b)));
        }
        if let Some(order) = numbers::compare(self, other) {
            return Ok(order);
        }
        match (self, other) {
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                match a.iter().zip(b.iter()).find(|(a, b)| !a.equals(b)) {
                    Some((a, b)) => a.order(b),
                    None => Ok(Some(a.len().cmp(&b.len()))),
                }
            }
            _ => Err(Fault::new(format!("{} and {} cannot be ordered", self.kind(), other.kind()))),
        }
    }

    /// Python's `in`, with this value on the right.
    pub(in crate::jinja) fn contains(&self, item: &Value) -> Answer<bool> {
        match self.inside() {
            Value::Undefined(_) => Ok(false),
            Value::Dict(dict) | Value::View(View::Keys, dict) => {
                dict::check_key(item)?;
                Ok(dict.get(item).is_some())
            }
            Value::View(View::Values, dict) => Ok(dict.iter().any(|(_, value)| value.equals(item))),
            Value::View(View::Items, dict) => Ok(match item {
                Value::Tuple(pair) if pair.len() == 2 => {
                    dict.get(&pair[0]).is_some_and(|value| value.equals(&pair[1]))
                }
                _ => false,
            }),
            Value::List(items) | Value::Tuple(items) => Ok(items.iter().any(|value| value.equals(item))),
            Value::Range(span) => Ok(span.contains(item)),
            Value::Stream(stream) => {
                let mut items = stream.items.borrow_mut();
                while let Some(value) = items.pop_front() {
                    if value.equals(item) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other => match (other.as_text(), item.as_text()) {
                (Some(whole), Some(part)) => Ok(whole.contains(part)),
                (Some(_), None) => Err(Fault::new(format!("a text cannot hold {}", item.kind()))),
                _ => Err(Fault::new(format!("{} cannot be searched with `in`", self.kind()))),
            },
        }
    }
}
