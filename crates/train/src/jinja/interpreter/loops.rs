//! `for`, and the variable `loop`.
//!
//! Items are taken one at a time, because a loop's condition may depend on what its body has changed; `loop.last` and
//! similar names take one item ahead.

use std::collections::VecDeque;
use std::rc::Rc;

use super::super::fault::{Answer, Fault};
use super::super::syntax::{Expression, Target};
use super::super::value::{Missing, Scope, Text, Value};
use super::{Flow, Run};

/// A loop that runs.
pub(in crate::jinja) struct Active<'a> {
    id: u64,
    /// Its place among the program's loops, to run it again for items inside items.
    pub(in crate::jinja) at: usize,
    pub(in crate::jinja) scope: Rc<Scope>,
    pub(in crate::jinja) depth: usize,
    /// How often the body has begun, less one.
    pub(in crate::jinja) index: usize,
    target: &'a Target,
    test: Option<&'a Expression>,
    items: VecDeque<Value>,
    ahead: Option<Value>,
    current: Option<Value>,
    before: Option<Value>,
    changed: Option<Vec<Value>>,
}

impl Active<'_> {
    pub(in crate::jinja) fn left(&self) -> usize {
        self.items.len() + usize::from(self.ahead.is_some())
    }
}

impl<'a> Run<'a> {
    pub(in crate::jinja) fn active(&self, id: u64) -> Option<&Active<'a>> {
        self.loops.iter().rev().find(|active| active.id == id)
    }

    fn active_mut(&mut self, id: u64) -> Option<&mut Active<'a>> {
        self.loops.iter_mut().rev().find(|active| active.id == id)
    }

    /// Runs loop `at` of the program over the items of a value.
    pub(in crate::jinja) fn for_loop(
        &mut self,
        at: usize,
        items: Value,
        depth: usize,
        scope: &Rc<Scope>,
    ) -> Answer<()> {
        let program = self.program;
        let code = &program.loops[at];
        let items = self.items(&items)?.into();
        let id = self.next_loop;
        self.next_loop += 1;
        self.loops.push(Active {
            id,
            at,
            scope: Rc::clone(scope),
            depth,
            index: 0,
            target: &code.target,
            test: code.test.as_ref(),
            items,
            ahead: None,
            current: None,
            before: None,
            changed: None,
        });
        let completed = self.iterations(id, scope);
        self.loops.retain(|active| active.id != id);
        if !completed? {
            self.statements(&code.otherwise, &Scope::inside(scope))?;
        }
        Ok(())
    }

    /// Runs the body for each item. Returns whether one run was complete: Jinja2 treats a loop as empty if none was.
    fn iterations(&mut self, id: u64, scope: &Rc<Scope>) -> Answer<bool> {
        let program = self.program;
        let loop_name = program.names.iter().position(|name| &**name == "loop");
        let (mut begun, mut completed) = (false, false);
        while let Some(item) = self.take(id)? {
            self.meter.work(1)?;
            let inner = Scope::inside(scope);
            let Some(active) = self.active_mut(id) else { break };
            active.index += usize::from(begun);
            active.before = active.current.replace(item.clone());
            let (target, at) = (active.target, active.at);
            begun = true;
            if let Some(name) = loop_name {
                inner.assign(name as u32, Value::Loop(id));
            }
            self.assign(target, item, &inner)?;
            match self.statements(&program.loops[at].body, &inner)? {
                Flow::On => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        Ok(completed)
    }

    /// The next item that passes the loop's condition.
    fn take(&mut self, id: u64) -> Answer<Option<Value>> {
        loop {
            let Some(active) = self.active_mut(id) else { return Ok(None) };
            if let Some(ahead) = active.ahead.take() {
                return Ok(Some(ahead));
            }
            let Some(item) = active.items.pop_front() else { return Ok(None) };
            let Some(test) = active.test else { return Ok(Some(item)) };
            let (target, scope) = (active.target, Scope::inside(&active.scope));
            self.assign(target, item.clone(), &scope)?;
            if self.evaluate(test, &scope)?.is_true() {
                return Ok(Some(item));
            }
        }
    }

    fn look_ahead(&mut self, id: u64) -> Answer<Option<Value>> {
        let ahead = self.take(id)?;
        if let Some(active) = self.active_mut(id) {
            active.ahead.clone_from(&ahead);
        }
        Ok(ahead)
    }

    /// Takes the remaining items out of a loop.
    pub(in crate::jinja) fn rest_of_loop(&mut self, id: u64) -> Answer<Vec<Value>> {
        let mut rest = Vec::new();
        while let Some(item) = self.take(id)? {
            rest.push(item);
        }
        Ok(rest)
    }

    /// How many items the loop has in all.
    fn length(&mut self, id: u64) -> Answer<usize> {
        if self.active(id).is_some_and(|active| active.test.is_some()) {
            let mut passed = VecDeque::new();
            while let Some(item) = self.take(id)? {
                passed.push_back(item);
            }
            if let Some(active) = self.active_mut(id) {
                (active.items, active.test) = (passed, None);
            }
        }
        Ok(self.active(id).map_or(0, |active| active.index + 1 + active.left()))
    }

    /// `loop.name`.
    pub(in crate::jinja) fn loop_attribute(&mut self, id: u64, name: &str) -> Answer<Option<Value>> {
        let Some(active) = self.active(id) else { return Ok(None) };
        let number = |number: usize| Some(Value::Int(number as i128));
        let (index, depth) = (active.index, active.depth);
        Ok(match name {
            "index0" => number(index),
            "index" => number(index + 1),
            "first" => Some(Value::Bool(index == 0)),
            "depth0" => number(depth),
            "depth" => number(depth + 1),
            "length" => number(self.length(id)?),
            "revindex" => number(self.length(id)? - index),
            "revindex0" => number(self.length(id)? - index - 1),
            "last" => Some(Value::Bool(self.look_ahead(id)?.is_none())),
            "previtem" => {
                let none = || Value::Undefined(Missing::Because("there is no previous item"));
                Some(active.before.clone().unwrap_or_else(none))
            }
            "nextitem" => {
                let none = || Value::Undefined(Missing::Because("there is no next item"));
                Some(self.look_ahead(id)?.unwrap_or_else(none))
            }
            "cycle" | "changed" => Some(Value::Method(Rc::new((Value::Loop(id), name.into())))),
            _ => None,
        })
    }

    /// `loop.cycle(…)` and `loop.changed(…)`.
    pub(in crate::jinja) fn loop_method(&mut self, id: u64, name: &str, values: Vec<Value>) -> Answer<Value> {
        let Some(active) = self.active_mut(id) else { return Err(Fault::new("the loop has ended")) };
        if name == "cycle" {
            if values.is_empty() {
                return Err(Fault::new("`loop.cycle` has nothing to choose from"));
            }
            return Ok(values[active.index % values.len()].clone());
        }
        let same = active.changed.as_ref().is_some_and(|before| {
            before.len() == values.len() && before.iter().zip(&values).all(|(a, b)| a.equals(b))
        });
        active.changed = Some(values);
        Ok(Value::Bool(!same))
    }

    /// `loop(items)` inside a recursive loop: its body for other items, as text.
    pub(in crate::jinja) fn recurse(&mut self, id: u64, items: Value) -> Answer<Value> {
        let found = self.active(id).map(|active| (active.at, active.depth, Rc::clone(&active.scope)));
        let Some((at, depth, scope)) = found.filter(|(at, ..)| self.program.loops[*at].recursive) else {
            return Err(Fault::new("a loop calls itself and is not `recursive`"));
        };
        let text: Text = self.written(|run| run.for_loop(at, items, depth + 1, &scope))?;
        Ok(Value::Text(text))
    }
}
