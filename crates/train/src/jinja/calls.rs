//! Calls: arguments, macros, the functions every template has, and the items of any value.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::clock;
use super::fault::{Answer, Fault, field_fault, function_fault};
use super::interpreter::Run;
use super::meter::Pen;
use super::value::Scope;
use super::value::dict::{Dict, check_key};
use super::value::numbers;
use super::value::{Function, Items, Macro, Missing, Span, Text, Value};

/// The most numbers of a `range`, as in Jinja2's sandbox.
const MOST_RANGE: usize = 100_000;

/// The arguments of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Given {
    /// The values of parameters in their order, by place or by name.
    pub(super) fn bind<const N: usize>(self, of: &str, names: [&str; N]) -> Answer<[Option<Value>; N]> {
        if self.positional.len() > N {
            return Err(Fault::new(format!("`{of}` takes at most {N} arguments")));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| *known == &*name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                _ => return Err(Fault::new(format!("`{of}` has no use for an argument `{name}`"))),
            }
        }
        Ok(bound)
    }

    /// Nothing.
    pub(super) fn none(self, of: &str) -> Answer<()> {
        self.bind(of, []).map(|[]| ())
    }
}

impl<'a> Run<'a> {
    pub(super) fn call(&mut self, value: &Value, given: Given) -> Answer<Value> {
        match value {
            Value::Macro(made) => {
                let made = Rc::clone(made);
                self.deeper(|run| run.call_macro(&made, given))
            }
            Value::Function(function) => self.call_function(*function, given),
            Value::Method(method) => match &method.0 {
                Value::Loop(id) => self.loop_method(*id, &method.1, given.positional),
                receiver => self.method(receiver, &method.1, given),
            },
            Value::Loop(id) => {
                let [items] = given.bind("loop", ["iterable"])?;
                let items = items.ok_or_else(|| Fault::new("`loop` needs items"))?;
                self.deeper(|run| run.recurse(*id, items))
            }
            Value::Joiner(joiner) => {
                given.none("joiner")?;
                let first = !joiner.1.replace(true);
                Ok(if first { Value::text("") } else { joiner.0.clone() })
            }
            Value::Undefined(Missing::Variable(name)) => Err(function_fault(name)),
            Value::Undefined(missing) => Err(missing.fault()),
            other => Err(Fault::new(format!("{} cannot be called", other.kind()))),
        }
    }

    fn call_macro(&mut self, made: &Macro, given: Given) -> Answer<Value> {
        let program = self.program;
        let code = &program.functions[made.function];
        let scope = Scope::inside(&made.scope);
        let Given { positional, mut named } = given;
        let mut rest = positional.into_iter();
        for (name, default) in &code.parameters {
            let text = &program.names[*name as usize];
            let value = match rest.next() {
                Some(value) => value,
                None => match named.iter().position(|(known, _)| known == text) {
                    Some(at) => named.remove(at).1,
                    None => match default {
                        Some(default) => self.evaluate(default, &scope)?,
                        None => Value::Undefined(Missing::Variable(Arc::clone(text))),
                    },
                },
            };
            scope.assign(*name, value);
        }
        self.more_arguments(code, rest.collect(), named, &scope)?;
        Ok(Value::Text(self.captured(&code.body, &scope)?))
    }

    /// `caller`, `kwargs` and `varargs`, for macros that use them.
    fn more_arguments(
        &mut self,
        code: &super::syntax::Callable,
        rest: Vec<Value>,
        mut named: Vec<(Arc<str>, Value)>,
        scope: &Scope,
    ) -> Answer<()> {
        let names = &self.program.names;
        let place = |name: &str| names.iter().position(|known| &**known == name).map(|at| at as u32);
        if code.uses_caller {
            let caller = named.iter().position(|(name, _)| &**name == "caller");
            let none = || Value::Undefined(Missing::Because("the macro was called without a `call` block"));
            let caller = caller.map_or_else(none, |at| named.remove(at).1);
            if let Some(name) = place("caller") {
                scope.assign(name, caller.clone());
            }
        }
        if code.uses_kwargs {
            let pairs =
                named.drain(..).map(|(name, value)| (Value::Text(Text::Fixed(name)), value)).collect();
            let kwargs = self.dict(pairs)?;
            if let Some(name) = place("kwargs") {
                scope.assign(name, kwargs.clone());
            }
        }
        if let Some((name, _)) = named.first() {
            return Err(Fault::new(format!("the macro `{}` has no parameter `{name}`", code.title())));
        }
        if code.uses_varargs {
            let varargs = self.tuple(rest)?;
            if let Some(name) = place("varargs") {
                scope.assign(name, varargs.clone());
            }
        } else if !rest.is_empty() {
            let most = code.parameters.len();
            return Err(Fault::new(format!("the macro `{}` takes at most {most} arguments", code.title())));
        }
        Ok(())
    }

    fn call_function(&mut self, function: Function, given: Given) -> Answer<Value> {
        match function {
            Function::Range => range(given),
            Function::Dict => {
                let pairs = self.pairs(given)?;
                self.dict(pairs)
            }
            Function::Namespace => {
                let mut entries = Dict::default();
                for (key, value) in self.pairs(given)? {
                    check_key(&key)?;
                    self.meter.keep(size_of::<(Value, Value)>())?;
                    entries.set(key, value);
                }
                self.new_namespace(entries)
            }
            Function::Cycler => {
                if given.positional.is_empty() {
                    return Err(Fault::new("`cycler` has nothing to choose from"));
                }
                let items = Items::made(given.positional, &self.meter)?;
                Ok(Value::Cycler(Rc::new((items, Cell::new(0)))))
            }
            Function::Joiner => {
                let [separator] = given.bind("joiner", ["sep"])?;
                let separator = self.soft(separator.unwrap_or_else(|| Value::text(", ")))?;
                Ok(Value::Joiner(Rc::new((separator, Cell::new(false)))))
            }
            Function::Lipsum => Err(Fault::of_template(
                "`lipsum` writes another text each time, so no rendering could be repeated; write the text out",
            )),
            Function::RaiseException => {
                let [message] = given.bind("raise_exception", ["message"])?;
                let words = self.str(&message.unwrap_or(Value::None))?;
                Err(Fault::new(&*words))
            }
            Function::StrftimeNow => {
                let [format] = given.bind("strftime_now", ["format"])?;
                let format = format.as_ref().and_then(Value::as_text);
                let format = format.ok_or_else(|| Fault::new("`strftime_now` needs a text"))?;
                self.meter.pass(format.len())?;
                let date = clock::strftime(format, self.now).map_err(|field| field_fault(&field))?;
                self.text(date)
            }
        }
    }

    /// The pairs that `dict` and `namespace` are made of.
    fn pairs(&mut self, given: Given) -> Answer<Vec<(Value, Value)>> {
        let Given { positional, named } = given;
        let mut pairs = Vec::new();
        if positional.len() > 1 {
            return Err(Fault::new("a dictionary is made of one mapping and of names"));
        }
        match positional.first() {
            None => {}
            Some(Value::Dict(dict)) => pairs.extend(dict.iter().cloned()),
            Some(Value::Namespace(at)) => pairs.extend(self.namespace(*at).iter().cloned()),
            Some(other) => {
                for pair in self.items(other)? {
                    let mut pair = self.items(&pair)?.into_iter();
                    match (pair.next(), pair.next(), pair.next()) {
                        (Some(key), Some(value), None) => pairs.push((key, value)),
                        _ => return Err(Fault::new("a dictionary is made of pairs")),
                    }
                }
            }
        }
        pairs.extend(named.into_iter().map(|(name, value)| (Value::Text(Text::Fixed(name)), value)));
        Ok(pairs)
    }

    /// The items of an iterable value. Items of a stream are taken out of it.
    pub(super) fn items(&mut self, value: &Value) -> Answer<Vec<Value>> {
        self.meter.work(value.len().unwrap_or(1) as u64)?;
        Ok(match value {
            Value::Undefined(_) => Vec::new(),
            Value::List(items) | Value::Tuple(items) => items.to_vec(),
            Value::Dict(dict) => dict.iter().map(|(key, _)| key.clone()).collect(),
            Value::View(view, dict) => self.view(*view, dict)?,
            Value::Range(span) => span.iter().collect(),
            Value::Stream(stream) => stream.items.borrow_mut().drain(..).collect(),
            Value::Json(json) if !matches!(json.inside, Value::Text(_)) => {
                let inside = json.inside.clone();
                return self.items(&inside);
            }
            Value::Loop(id) => return self.rest_of_loop(*id),
            other => match other.as_text() {
                Some(text) => {
                    drop(self.meter.hold(text.len().saturating_mul(size_of::<Value>()))?);
                    let mut buffer = [0; 4];
                    text.chars().map(|character| Value::text(character.encode_utf8(&mut buffer))).collect()
                }
                None => return Err(Fault::new(format!("{} cannot be iterated", value.kind()))),
            },
        })
    }

    /// The text that an action writes.
    pub(super) fn written(&mut self, act: impl FnOnce(&mut Run<'a>) -> Answer<()>) -> Answer<Text> {
        self.begin_capture();
        let done = act(self);
        let pen: Option<Pen> = self.end_capture();
        done?;
        Ok(pen.map_or_else(|| Text::from(""), Text::from))
    }
}

fn range(given: Given) -> Answer<Value> {
    let numbers = given.positional.iter().map(|value| {
        numbers::whole(value)
            .ok_or_else(|| Fault::new(format!("`range` needs whole numbers, not {}", value.kind())))
    });
    let numbers = numbers.collect::<Answer<Vec<i128>>>()?;
    let (start, stop, step) = match numbers[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return Err(Fault::new("`range` takes one to three arguments")),
    };
    if step == 0 {
        return Err(Fault::new("`range` cannot have the step 0"));
    }
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let len = if distance > 0 { (distance - 1) / step.saturating_abs() + 1 } else { 0 };
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST_RANGE);
    let len = len.ok_or_else(|| Fault::new(format!("a `range` of more than {MOST_RANGE} numbers")))?;
    Ok(Value::Range(Span { start, stop, step, len }))
}
