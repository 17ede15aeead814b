//! Operators on values that are not both numbers: joining, repeating, and Python's old way of formatting.

use std::rc::Rc;

use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::meter::Pen;
use super::syntax::Operator;
use super::value::numbers;
use super::value::{Items, PER_ITEM, Value};

impl Run<'_> {
    pub(super) fn combine(&mut self, operator: Operator, left: &Value, right: &Value) -> Answer<Value> {
        for side in [left, right] {
            if let Value::Undefined(missing) = side {
                return Err(missing.fault());
            }
        }
        match operator {
            Operator::Add => self.add(left, right),
            Operator::Multiply => match (numbers::whole(left), numbers::whole(right)) {
                (_, Some(times)) => self.repeat(left, times),
                (Some(times), _) => self.repeat(right, times),
                _ => Err(impossible(operator, left, right)),
            },
            Operator::Remainder => match left.as_text() {
                Some(format) => {
                    let values = match right {
                        Value::Tuple(items) => items.to_vec(),
                        other => vec![other.clone()],
                    };
                    self.percent(format, left.is_safe(), &values, right)
                }
                None => Err(impossible(operator, left, right)),
            },
            _ => Err(impossible(operator, left, right)),
        }
    }

    fn add(&mut self, left: &Value, right: &Value) -> Answer<Value> {
        let joined = |a: &Rc<Items>, b: &Rc<Items>| -> Answer<Vec<Value>> {
            self.meter.work((a.len() + b.len()) as u64)?;
            Ok([&a[..], &b[..]].concat())
        };
        match (left, right) {
            (Value::List(a), Value::List(b)) => self.list(joined(a, b)?),
            (Value::Tuple(a), Value::Tuple(b)) => self.tuple(joined(a, b)?),
            (Value::Markup(_), other) | (other, Value::Markup(_)) if other.as_text().is_some() => {
                let mut pen = Pen::new(&self.meter);
                pen.push(&self.safe(left)?)?;
                pen.push(&self.safe(right)?)?;
                Ok(Value::Markup(pen.into()))
            }
            _ => match (left.as_text(), right.as_text()) {
                (Some(a), Some(b)) => {
                    let mut pen = Pen::new(&self.meter);
                    pen.push(a)?;
                    pen.push(b)?;
                    Ok(Value::Text(pen.into()))
                }
                _ => Err(impossible(Operator::Add, left, right)),
            },
        }
    }

    fn repeat(&mut self, value: &Value, times: i128) -> Answer<Value> {
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        let repeated = |items: &Rc<Items>| -> Answer<Vec<Value>> {
            let len = items.len().saturating_mul(times);
            // Charged before such a list is made.
            drop(self.meter.hold(len.saturating_mul(PER_ITEM))?);
            self.meter.work(len as u64)?;
            Ok(std::iter::repeat_n(&items[..], times).flatten().cloned().collect())
        };
        match value {
            Value::List(items) => self.list(repeated(items)?),
            Value::Tuple(items) => self.tuple(repeated(items)?),
            _ => match value.as_text() {
                Some(text) => {
                    let mut pen = Pen::new(&self.meter);
                    pen.repeat(text, times)?;
                    Ok(value.alike(pen.into()))
                }
                None => Err(Fault::new(format!("{} cannot be repeated", value.kind()))),
            },
        }
    }
}

fn impossible(operator: Operator, left: &Value, right: &Value) -> Fault {
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    };
    Fault::new(format!("`{sign}` does not work on {} and {}", left.kind(), right.kind()))
}
