//! Expressions to values.

use std::rc::Rc;
use std::sync::Arc;

use super::calls::Given;
use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::meter::Pen;
use super::syntax::{Arguments, Comparison, Constant, Expression, Operator, Step, StepKind};
use super::value::Scope;
use super::value::numbers;
use super::value::{Missing, Text, Value};

impl<'a> Run<'a> {
    pub(super) fn evaluate(&mut self, expression: &'a Expression, scope: &Rc<Scope>) -> Answer<Value> {
        self.meter.work(1)?;
        match expression {
            Expression::Constant(constant) => Ok(match constant {
                Constant::None => Value::None,
                Constant::Bool(bool) => Value::Bool(*bool),
                Constant::Int(number) => Value::Int(*number),
                Constant::Float(number) => Value::Float(*number),
                Constant::Text(text) => Value::Text(Text::Fixed(Arc::clone(text))),
            }),
            Expression::Name(name) => Ok(self.lookup(*name, scope)),
            _ => self.deeper(|run| run.compound(expression, scope)),
        }
    }

    fn compound(&mut self, expression: &'a Expression, scope: &Rc<Scope>) -> Answer<Value> {
        match expression {
            Expression::List(items) => {
                let items = self.evaluate_all(items, scope)?;
                self.list(items)
            }
            Expression::Tuple(items) => {
                let items = self.evaluate_all(items, scope)?;
                self.tuple(items)
            }
            Expression::Dict(pairs) => {
                let mut made = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    made.push((self.evaluate(key, scope)?, self.evaluate(value, scope)?));
                }
                self.dict(made)
            }
            Expression::Not(value) => Ok(Value::Bool(!self.evaluate(value, scope)?.is_true())),
            Expression::Negative(value) => signed(&self.evaluate(value, scope)?, true),
            Expression::Positive(value) => signed(&self.evaluate(value, scope)?, false),
            Expression::And(items) => self.first_that_is(false, items, scope),
            Expression::Or(items) => self.first_that_is(true, items, scope),
            Expression::Compare(first, rest) => self.compare(first, rest, scope),
            Expression::Arithmetic(first, rest) => {
                let mut value = self.evaluate(first, scope)?;
                for (operator, operand) in rest {
                    let operand = self.evaluate(operand, scope)?;
                    value = self.operate(*operator, &value, &operand)?;
                }
                Ok(value)
            }
            Expression::Concat(items) => {
                let mut pen = Pen::new(&self.meter);
                for item in items {
                    let item = self.evaluate(item, scope)?;
                    self.write(&item, &mut pen)?;
                }
                Ok(Value::Text(pen.into()))
            }
            Expression::Condition { test, then, otherwise } => {
                match (self.evaluate(test, scope)?.is_true(), otherwise) {
                    (true, _) => self.evaluate(then, scope),
                    (false, Some(otherwise)) => self.evaluate(otherwise, scope),
                    (false, None) => Ok(Value::Undefined(Missing::Because(
                        "the condition is false, and there is no `else`",
                    ))),
                }
            }
            Expression::Chain(first, steps) => {
                let value = self.evaluate(first, scope)?;
                steps.iter().try_fold(value, |value, step| self.step(value, step, scope, None))
            }
            Expression::Constant(_) | Expression::Name(_) => self.evaluate(expression, scope),
        }
    }

    fn evaluate_all(&mut self, items: &'a [Expression], scope: &Rc<Scope>) -> Answer<Vec<Value>> {
        items.iter().map(|item| self.evaluate(item, scope)).collect()
    }

    /// The value of the first item whose truth is `truth`, or else of the last item.
    fn first_that_is(&mut self, truth: bool, items: &'a [Expression], scope: &Rc<Scope>) -> Answer<Value> {
        let mut value = Value::None;
        for item in items {
            value = self.evaluate(item, scope)?;
            if value.is_true() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn compare(
        &mut self,
        first: &'a Expression,
        rest: &'a [(Comparison, Expression)],
        scope: &Rc<Scope>,
    ) -> Answer<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (comparison, right) in rest {
            let right = self.evaluate(right, scope)?;
            if !self.holds(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn holds(&self, comparison: Comparison, left: &Value, right: &Value) -> Answer<bool> {
        self.meter.work(self.breadth(left).min(self.breadth(right)) as u64)?;
        let order = || left.order(right);
        Ok(match comparison {
            Comparison::Equal => left.equals(right),
            Comparison::Unequal => !left.equals(right),
            Comparison::Less => order()?.is_some_and(std::cmp::Ordering::is_lt),
            Comparison::LessEqual => order()?.is_some_and(std::cmp::Ordering::is_le),
            Comparison::Greater => order()?.is_some_and(std::cmp::Ordering::is_gt),
            Comparison::GreaterEqual => order()?.is_some_and(std::cmp::Ordering::is_ge),
            Comparison::In => self.searched(right)?.contains(left)?,
            Comparison::NotIn => !self.searched(right)?.contains(left)?,
        })
    }

    /// Counts the work of searching the value, and returns it.
    fn searched<'v>(&self, value: &'v Value) -> Answer<&'v Value> {
        self.meter.work(self.breadth(value) as u64)?;
        Ok(value)
    }

    /// Approximate amount to compare in a value.
    fn breadth(&self, value: &Value) -> usize {
        match value {
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::View(super::value::View::Values, dict) => dict.len(),
            other => other.as_text().map_or(0, |text| text.len() / 16),
        }
    }

    /// One step of a chain. `caller` goes to the call, if the step is one.
    pub(super) fn step(
        &mut self,
        value: Value,
        step: &'a Step,
        scope: &Rc<Scope>,
        caller: Option<Value>,
    ) -> Answer<Value> {
        self.meter.work(1)?;
        self.step_kind(value, &step.kind, scope, caller).map_err(|fault| fault.at(step.line))
    }

    fn step_kind(
        &mut self,
        value: Value,
        kind: &'a StepKind,
        scope: &Rc<Scope>,
        caller: Option<Value>,
    ) -> Answer<Value> {
        match kind {
            StepKind::Attribute(name) => self.attribute(&value, name),
            StepKind::Item(item) => {
                let item = self.evaluate(item, scope)?;
                self.item(&value, &item)
            }
            StepKind::Slice(parts) => {
                let mut bounds = [Value::None, Value::None, Value::None];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    if let Some(part) = part {
                        *bound = self.evaluate(part, scope)?;
                    }
                }
                self.slice(&value, &bounds)
            }
            StepKind::Call(arguments) => {
                let mut given = self.given(arguments, scope)?;
                if let Some(caller) = caller {
                    given.named.push(("caller".into(), caller));
                }
                self.call(&value, given)
            }
            StepKind::Filter(name, arguments) => {
                let given = self.given(arguments, scope)?;
                self.filter(name, value, given)
            }
            StepKind::Test { name, arguments, negated } => {
                let given = self.given(arguments, scope)?;
                let passed = self.check(name, &value, given)?;
                Ok(Value::Bool(passed != *negated))
            }
        }
    }

    /// The call of a `call` block.
    pub(super) fn call_with_caller(
        &mut self,
        call: &'a Expression,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Answer<Value> {
        let Expression::Chain(first, steps) = call else { return Err(Fault::new("`call` needs a call")) };
        let mut value = self.evaluate(first, scope)?;
        let mut caller = Some(caller);
        for (at, step) in steps.iter().enumerate() {
            let last = at + 1 == steps.len();
            value = self.step(value, step, scope, if last { caller.take() } else { None })?;
        }
        Ok(value)
    }

    fn given(&mut self, arguments: &'a Arguments, scope: &Rc<Scope>) -> Answer<Given> {
        let mut given =
            Given { positional: self.evaluate_all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            given.named.push((Arc::clone(name), self.evaluate(value, scope)?));
        }
        if let Some(spread) = &arguments.spread {
            let spread = self.evaluate(spread, scope)?;
            given.positional.extend(self.items(&spread)?);
        }
        if let Some(spread) = &arguments.spread_named {
            let spread = self.evaluate(spread, scope)?;
            let Value::Dict(dict) = spread.inside() else {
                return Err(Fault::new("`**` needs a dictionary"));
            };
            for (key, value) in dict.iter() {
                let name = key.as_text().ok_or_else(|| Fault::new("`**` needs keys that are texts"))?;
                given.named.push((name.into(), value.clone()));
            }
        }
        Ok(given)
    }

    fn operate(&mut self, operator: Operator, left: &Value, right: &Value) -> Answer<Value> {
        self.meter.work(1)?;
        match numbers::calculate(operator, left, right) {
            Some(number) => number,
            None => self.combine(operator, left, right),
        }
    }
}

fn signed(value: &Value, negative: bool) -> Answer<Value> {
    match (value, numbers::whole(value)) {
        (_, Some(number)) => {
            let number = if negative { number.checked_neg() } else { Some(number) };
            number.map(Value::Int).ok_or_else(|| Fault::new("a whole number grows beyond 128 bits"))
        }
        (Value::Float(number), _) => Ok(Value::Float(if negative { -number } else { *number })),
        (Value::Undefined(missing), _) => Err(missing.fault()),
        (other, _) => Err(Fault::new(format!("{} has no sign", other.kind()))),
    }
}
