//! Python's indices and slices.

use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::value::numbers;
use super::value::{Span, Text, Value};

/// The place an index means in a list of this length; negative ones count from its end.
pub(super) fn place(index: i128, len: usize) -> Option<usize> {
    let at = if index < 0 { index + len as i128 } else { index };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// The places a slice means, in order.
struct Places {
    start: i128,
    stop: i128,
    step: i128,
    count: usize,
}

impl Places {
    fn of(bounds: &[Value; 3], len: usize) -> Answer<Places> {
        let bound = |value: &Value| match value {
            Value::None => Ok(None),
            Value::Undefined(missing) => Err(missing.fault()),
            other => match numbers::whole(other) {
                Some(number) => Ok(Some(number)),
                None => Err(Fault::new(format!("a slice needs whole numbers, not {}", other.kind()))),
            },
        };
        let step = bound(&bounds[2])?.unwrap_or(1);
        if step == 0 {
            return Err(Fault::new("a slice cannot have the step 0"));
        }
        let len = len as i128;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let inside = |number: i128| {
            let number = if number < 0 { number.saturating_add(len) } else { number };
            number.clamp(low, high)
        };
        let (first, last) = if step > 0 { (low, high) } else { (high, low) };
        let start = bound(&bounds[0])?.map_or(first, inside);
        let stop = bound(&bounds[1])?.map_or(last, inside);
        let distance = if step > 0 { stop - start } else { start - stop };
        let count = if distance > 0 { (distance - 1) / step.saturating_abs() + 1 } else { 0 };
        Ok(Places { start, stop, step, count: count as usize })
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.count).map(|at| (self.start + self.step * at as i128) as usize)
    }
}

impl Run<'_> {
    pub(super) fn slice(&mut self, value: &Value, bounds: &[Value; 3]) -> Answer<Value> {
        match value {
            Value::Undefined(missing) => Err(missing.fault()),
            Value::List(items) => {
                let places = Places::of(bounds, items.len())?;
                self.list(places.iter().map(|at| items[at].clone()).collect())
            }
            Value::Tuple(items) => {
                let places = Places::of(bounds, items.len())?;
                self.tuple(places.iter().map(|at| items[at].clone()).collect())
            }
            Value::Range(span) => {
                let places = Places::of(bounds, span.len)?;
                let at = |place: i128| span.start.saturating_add(span.step.saturating_mul(place));
                let (start, stop) = (at(places.start), at(places.stop));
                Ok(Value::Range(Span {
                    start,
                    stop,
                    step: span.step.saturating_mul(places.step),
                    len: places.count,
                }))
            }
            other => match other.as_text() {
                Some(text) => {
                    self.meter.pass(text.len())?;
                    let sliced = Text::made(sliced(text, bounds)?, &self.meter)?;
                    Ok(other.alike(sliced))
                }
                None => Err(Fault::new(format!("{} cannot be sliced", value.kind()))),
            },
        }
    }
}

fn sliced(text: &str, bounds: &[Value; 3]) -> Answer<String> {
    let places = Places::of(bounds, text.chars().count())?;
    if places.step == 1 {
        return Ok(text.chars().skip(places.start as usize).take(places.count).collect());
    }
    let characters: Vec<char> = text.chars().collect();
    Ok(places.iter().map(|at| characters[at]).collect())
}
