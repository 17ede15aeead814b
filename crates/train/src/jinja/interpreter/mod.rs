//! Statements, scopes and output.
//!
//! A scope holds the names that one loop iteration, macro call or block can assign. A name is looked up from the
//! innermost scope outwards, then among the template's variables, then among the built-in functions. Macros see the
//! scope they were defined in, as it is when they are called.

pub(in crate::jinja) mod loops;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::Rendering;
use super::fault::{Answer, Fault, required_fault};
use super::meter::{Meter, Pen};
use super::syntax::{Name, Program, Statement, StatementKind, Step, Target};
use super::value::dict::Dict;
use super::value::{Function, Items, Macro, Missing, Scope, Text, Value};
use loops::Active;

/// Mark the beginning and the end of an answer in captured text; they are the last two code points of Unicode, which
/// mean nothing.
const BEGINS: char = '\u{10fffe}';
const ENDS: char = '\u{10ffff}';

/// Limit on nested evaluations. A level of the template takes a few of them, and each takes some stack.
const MOST_DEEP: usize = 384;
/// Bytes charged for a scope that a macro keeps alive, and for a namespace.
const KEPT: usize = 256;

/// The next move after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::jinja) enum Flow {
    On,
    Break,
    Continue,
}

/// One rendering.
pub(in crate::jinja) struct Run<'a> {
    pub(in crate::jinja) program: &'a Program,
    pub(in crate::jinja) meter: Rc<Meter>,
    /// The time, in seconds since 1970.
    pub(in crate::jinja) now: u64,
    root: Rc<Scope>,
    namespaces: Vec<Dict>,
    /// Loops that run, the innermost last.
    pub(in crate::jinja) loops: Vec<Active<'a>>,
    pub(in crate::jinja) next_loop: u64,
    /// Scopes that macros keep: they are emptied at the end, since a scope that holds its macro would never be dropped.
    kept: Vec<Rc<Scope>>,
    /// The texts being written; output goes to the last, and all but the first are captured.
    out: Vec<Pen>,
    marked: Vec<Range<usize>>,
    deep: usize,
}

impl<'a> Run<'a> {
    pub(in crate::jinja) fn new(
        program: &'a Program,
        variables: &[(&str, Value)],
        meter: Rc<Meter>,
        now: u64,
    ) -> Run<'a> {
        let root = Rc::new(Scope::default());
        for (at, name) in program.names.iter().enumerate() {
            if let Some((_, value)) = variables.iter().find(|(known, _)| *known == &**name) {
                root.assign(at as Name, value.clone());
            }
        }
        Run {
            program,
            out: vec![Pen::new(&meter)],
            meter,
            now,
            root,
            namespaces: Vec::new(),
            loops: Vec::new(),
            next_loop: 0,
            kept: Vec::new(),
            marked: Vec::new(),
            deep: 0,
        }
    }

    pub(in crate::jinja) fn render(mut self) -> Answer<Rendering> {
        let root = Rc::clone(&self.root);
        self.statements(&self.program.body, &root)?;
        let text = self.out.pop().map(|pen| pen.finish().0).unwrap_or_default();
        let work = self.meter.worked();
        Ok(Rendering { work, ..without_marks(text, std::mem::take(&mut self.marked)) })
    }

    /// Runs something one level deeper on the stack.
    pub(in crate::jinja) fn deeper<T>(&mut self, act: impl FnOnce(&mut Run<'a>) -> Answer<T>) -> Answer<T> {
        if self.deep == MOST_DEEP {
            return Err(Fault::new("the template calls itself too deeply"));
        }
        self.deep += 1;
        let result = act(self);
        self.deep -= 1;
        result
    }

    pub(in crate::jinja) fn statements(&mut self, body: &'a [Statement], scope: &Rc<Scope>) -> Answer<Flow> {
        for statement in body {
            self.meter.work(1)?;
            let flow = self.statement(statement, scope).map_err(|fault| fault.at(statement.line))?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &'a Statement, scope: &Rc<Scope>) -> Answer<Flow> {
        match &statement.kind {
            StatementKind::Data(data) => self.print(data)?,
            StatementKind::Print(value) => {
                let value = self.evaluate(value, scope)?;
                self.print_value(&value)?;
            }
            StatementKind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.deeper(|run| run.statements(body, scope));
                    }
                }
                return self.deeper(|run| run.statements(otherwise, scope));
            }
            StatementKind::For(at) => {
                let items = self.evaluate(&self.program.loops[*at].items, scope)?;
                self.deeper(|run| run.for_loop(*at, items, 0, scope))?;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
            StatementKind::Set { target, value } => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock { target, filters, body } => {
                let text = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(Value::Text(text), filters, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::With { bindings, body } => {
                let inner = Scope::inside(scope);
                for (target, value) in bindings {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.deeper(|run| run.statements(body, &inner));
            }
            StatementKind::Macro { name, function } => {
                let value = self.closure(*function, scope)?;
                scope.assign(*name, value);
            }
            StatementKind::Call { call, function } => {
                let caller = self.closure(*function, scope)?;
                let value = self.call_with_caller(call, caller, scope)?;
                self.print_value(&value)?;
            }
            StatementKind::Generation { function } => self.generation(*function, scope)?,
            StatementKind::FilterBlock { filters, body } => {
                let text = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(Value::Text(text), filters, scope)?;
                self.print_value(&value)?;
            }
            StatementKind::Block(body) => {
                let scope = Scope::inside(&Rc::clone(&self.root));
                self.deeper(|run| run.statements(body, &scope))?;
            }
            StatementKind::RequiredBlock(name) => {
                return Err(required_fault(&self.program.names[*name as usize]));
            }
            StatementKind::Scope(body) => {
                let inner = Scope::inside(scope);
                return self.deeper(|run| run.statements(body, &inner));
            }
        }
        Ok(Flow::On)
    }

    fn print(&mut self, text: &str) -> Answer<()> {
        self.out.last_mut().map_or(Ok(()), |out| out.push(text))
    }

    fn print_value(&mut self, value: &Value) -> Answer<()> {
        match value.as_text() {
            Some(text) => self.print(text),
            None => {
                let text = self.str(value)?;
                self.print(&text)
            }
        }
    }

    /// The text that statements write.
    pub(in crate::jinja) fn captured(&mut self, body: &'a [Statement], scope: &Rc<Scope>) -> Answer<Text> {
        self.written(|run| run.deeper(|run| run.statements(body, scope)).map(|_| ()))
    }

    pub(in crate::jinja) fn begin_capture(&mut self) {
        self.out.push(Pen::new(&self.meter));
    }

    pub(in crate::jinja) fn end_capture(&mut self) -> Option<Pen> {
        self.out.pop()
    }

    /// An answer: a body with a scope of its own, marked in the output.
    fn generation(&mut self, function: usize, scope: &Rc<Scope>) -> Answer<()> {
        let (body, inner) = (&self.program.functions[function].body, Scope::inside(scope));
        let captured = self.out.len() > 1;
        let begin = self.out.last().map_or(0, Pen::len);
        if captured {
            self.print(BEGINS.encode_utf8(&mut [0; 4]))?;
        }
        self.deeper(|run| run.statements(body, &inner))?;
        if captured {
            return self.print(ENDS.encode_utf8(&mut [0; 4]));
        }
        self.marked.push(begin..self.out.last().map_or(0, Pen::len));
        Ok(())
    }

    /// A macro that sees this scope.
    fn closure(&mut self, function: usize, scope: &Rc<Scope>) -> Answer<Value> {
        self.meter.keep(KEPT)?;
        self.kept.push(Rc::clone(scope));
        Ok(Value::Macro(Rc::new(Macro { function, scope: Rc::clone(scope) })))
    }

    pub(in crate::jinja) fn lookup(&self, name: Name, scope: &Scope) -> Value {
        if let Some(value) = scope.find(name) {
            return value;
        }
        let name = &self.program.names[name as usize];
        match function_called(name) {
            Some(function) => Value::Function(function),
            // The template itself, through which named blocks could be called; no template does.
            None if &**name == "self" => Value::Dict(Rc::default()),
            None => Value::Undefined(Missing::Variable(Arc::clone(name))),
        }
    }

    pub(in crate::jinja) fn assign(&mut self, target: &Target, value: Value, scope: &Scope) -> Answer<()> {
        match target {
            Target::Name(name) => scope.assign(*name, value),
            Target::Attribute(name, attribute) => match self.lookup(*name, scope) {
                Value::Namespace(at) => {
                    if attribute.starts_with('_') {
                        return Err(Fault::new(format!("a namespace cannot keep `{attribute}`")));
                    }
                    if self.namespaces[at].get_text(attribute).is_none() {
                        self.meter.keep(size_of::<(Value, Value)>())?;
                    }
                    self.namespaces[at].set(Value::Text(Text::Fixed(Arc::clone(attribute))), value);
                }
                other => {
                    return Err(Fault::new(format!(
                        "`{attribute}` can only be assigned in a namespace, not in {}",
                        other.kind()
                    )));
                }
            },
            Target::Several(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.len() {
                    return Err(Fault::new(format!(
                        "{} values do not fit {} names",
                        values.len(),
                        targets.len()
                    )));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    pub(in crate::jinja) fn new_namespace(&mut self, entries: Dict) -> Answer<Value> {
        self.meter.keep(KEPT)?;
        self.namespaces.push(entries);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    pub(in crate::jinja) fn namespace(&self, at: usize) -> &Dict {
        &self.namespaces[at]
    }

    fn filtered(&mut self, value: Value, filters: &'a [Step], scope: &Rc<Scope>) -> Answer<Value> {
        filters.iter().try_fold(value, |value, step| self.step(value, step, scope, None))
    }

    pub(in crate::jinja) fn list(&self, values: Vec<Value>) -> Answer<Value> {
        Ok(Value::List(Items::made(values, &self.meter)?))
    }

    pub(in crate::jinja) fn tuple(&self, values: Vec<Value>) -> Answer<Value> {
        Ok(Value::Tuple(Items::made(values, &self.meter)?))
    }

    pub(in crate::jinja) fn dict(&self, pairs: Vec<(Value, Value)>) -> Answer<Value> {
        Ok(Value::Dict(Dict::made(pairs, &self.meter)?))
    }

    /// A text that is no longer than the texts it was made of.
    pub(in crate::jinja) fn text(&self, text: String) -> Answer<Value> {
        Ok(Value::Text(Text::made(text, &self.meter)?))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        for scope in &self.kept {
            // Each scope is emptied while all of them are still held. A scope that is dropped later holds no other,
            // so dropping a long chain of scopes never recurses.
            let assigned = scope.assigned.try_borrow_mut().map(|mut assigned| std::mem::take(&mut *assigned));
            drop(assigned);
        }
    }
}

/// The function of this name, among those every template has.
pub(in crate::jinja) fn function_called(name: &str) -> Option<Function> {
    Some(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "cycler" => Function::Cycler,
        "joiner" => Function::Joiner,
        "lipsum" => Function::Lipsum,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    })
}

/// Takes marks out of captured text that was printed, and merges them with those of the output itself.
fn without_marks(marked: String, ranges: Vec<Range<usize>>) -> Rendering {
    if !marked.contains([BEGINS, ENDS]) {
        return Rendering { text: marked, marked: ranges, work: 0 };
    }
    let (mut text, mut found, mut begin) = (String::with_capacity(marked.len()), Vec::new(), None);
    let mut direct = ranges.into_iter().peekable();
    let mut open = None;
    for (at, character) in marked.char_indices() {
        if let Some(range) = direct.next_if(|range| range.start <= at) {
            open = Some((text.len(), range.end));
        }
        if let Some((begin, _)) = open.take_if(|(_, end)| *end <= at) {
            found.push(begin..text.len());
        }
        match character {
            BEGINS => begin = Some(text.len()),
            ENDS => found.extend(begin.take().map(|begin| begin..text.len())),
            _ => text.push(character),
        }
    }
    found.extend(open.map(|(begin, _)| begin..text.len()));
    found.sort_by_key(|range| range.start);
    Rendering { text, marked: found, work: 0 }
}
