//! `pprint`: values on several lines where they are too wide for one, as Python's module of that name lays them out.

use super::characters::is_space;
use super::fault::Answer;
use super::interpreter::Run;
use super::meter::Pen;
use super::methods::lines;
use super::show::quoted;
use super::value::{Text, Value};

/// Columns of a line.
const WIDTH: usize = 80;

/// Where a value stands.
#[derive(Clone, Copy)]
struct Place {
    indent: usize,
    /// Columns that brackets and commas behind it take.
    behind: usize,
    /// Whether the value is the whole of what is printed.
    outermost: bool,
}

impl Run<'_> {
    pub(super) fn pprint(&mut self, value: &Value) -> Answer<Value> {
        let mut pen = Pen::new(&self.meter);
        self.pretty(value, Place { indent: 0, behind: 0, outermost: true }, &mut pen)?;
        Ok(Value::Text(pen.into()))
    }

    fn pretty(&mut self, value: &Value, place: Place, pen: &mut Pen) -> Answer<()> {
        let whole = self.pretty_repr(value)?;
        if whole.chars().count() + place.indent + place.behind <= WIDTH {
            return pen.push(&whole);
        }
        match value {
            Value::Text(text) => self.pretty_text(text, place, pen),
            Value::Json(json) => self.pretty_text(&json.text.clone(), place, pen),
            Value::List(items) => {
                let items = items.to_vec();
                self.pretty_items(["[", "]"], &items, place, pen)
            }
            Value::Tuple(items) => {
                let items = items.to_vec();
                self.pretty_items(["(", if items.len() == 1 { ",)" } else { ")" }], &items, place, pen)
            }
            Value::Dict(dict) => {
                let pairs = sorted(dict.iter().cloned().collect());
                self.pretty_pairs(&pairs, place, pen)
            }
            _ => pen.push(&whole),
        }
    }

    /// The value on one line, with dictionaries sorted by their keys.
    fn pretty_repr(&mut self, value: &Value) -> Answer<Text> {
        let sorted = self.deeper(|run| run.in_order(value))?;
        self.repr(&sorted)
    }

    fn in_order(&mut self, value: &Value) -> Answer<Value> {
        match value {
            Value::List(items) | Value::Tuple(items) => {
                let items = items.iter().map(|item| self.deeper(|run| run.in_order(item)));
                let items = items.collect::<Answer<Vec<_>>>()?;
                if matches!(value, Value::List(_)) { self.list(items) } else { self.tuple(items) }
            }
            Value::Dict(dict) => {
                let mut pairs = sorted(dict.iter().cloned().collect());
                for (_, value) in &mut pairs {
                    *value = self.deeper(|run| run.in_order(value))?;
                }
                self.dict(pairs)
            }
            other => Ok(other.clone()),
        }
    }

    fn pretty_items(
        &mut self,
        around: [&str; 2],
        items: &[Value],
        place: Place,
        pen: &mut Pen,
    ) -> Answer<()> {
        pen.push(around[0])?;
        let indent = place.indent + 1;
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.new_line(",", indent, pen)?;
            }
            let last = at + 1 == items.len();
            let behind = if last { place.behind + around[1].len() } else { 1 };
            self.deeper(|run| run.pretty(item, Place { indent, behind, outermost: false }, pen))?;
        }
        pen.push(around[1])
    }

    fn pretty_pairs(&mut self, pairs: &[(Value, Value)], place: Place, pen: &mut Pen) -> Answer<()> {
        pen.push("{")?;
        let indent = place.indent + 1;
        for (at, (key, value)) in pairs.iter().enumerate() {
            if at > 0 {
                self.new_line(",", indent, pen)?;
            }
            let key = self.pretty_repr(key)?;
            pen.push(&key)?;
            pen.push(": ")?;
            let behind = if at + 1 == pairs.len() { place.behind + 1 } else { 1 };
            let place = Place { indent: indent + key.chars().count() + 2, behind, outermost: false };
            self.deeper(|run| run.pretty(value, place, pen))?;
        }
        pen.push("}")
    }

    /// A text as several literals behind each other, broken behind its lines and its words.
    fn pretty_text(&mut self, text: &str, place: Place, pen: &mut Pen) -> Answer<()> {
        let around = usize::from(place.outermost);
        let (indent, behind) = (place.indent + around, place.behind + around);
        let room = WIDTH.saturating_sub(indent);
        let all = lines(text, true);
        let mut literals: Vec<Text> = Vec::new();
        for (at, line) in all.iter().enumerate() {
            let last = at + 1 == all.len();
            let whole = quoted(line, &self.meter)?;
            if whole.chars().count() <= room.saturating_sub(if last { behind } else { 0 }) {
                literals.push(whole);
            } else {
                self.pretty_words(line, [room, if last { behind } else { 0 }], &mut literals)?;
            }
        }
        let bracketed = place.outermost && literals.len() > 1;
        pen.push(if bracketed { "(" } else { "" })?;
        for (at, literal) in literals.iter().enumerate() {
            if at > 0 {
                self.new_line("", indent, pen)?;
            }
            pen.push(literal)?;
        }
        pen.push(if bracketed { ")" } else { "" })
    }

    /// The words of a line as literals of `room` columns, the last with `behind` fewer.
    fn pretty_words(
        &mut self,
        line: &str,
        [room, behind]: [usize; 2],
        literals: &mut Vec<Text>,
    ) -> Answer<()> {
        let mut current = 0..0;
        let mut next = 0;
        while next < line.len() {
            let word = line[next..].find(is_space).map_or(line.len(), |at| next + at);
            let end = line[word..].find(|c| !is_space(c)).map_or(line.len(), |at| word + at);
            let room = if end == line.len() { room.saturating_sub(behind) } else { room };
            let candidate = quoted(&line[current.start..end], &self.meter)?;
            if candidate.chars().count() > room && !current.is_empty() {
                literals.push(quoted(&line[current], &self.meter)?);
                current = next..end;
            } else {
                current.end = end;
            }
            next = end;
        }
        literals.push(quoted(&line[current], &self.meter)?);
        Ok(())
    }

    fn new_line(&self, behind: &str, indent: usize, pen: &mut Pen) -> Answer<()> {
        pen.push(behind)?;
        pen.push("\n")?;
        pen.repeat(" ", indent)
    }
}

/// Pairs by their keys; keys that have no order among each other go by the name of their kind.
fn sorted(mut pairs: Vec<(Value, Value)>) -> Vec<(Value, Value)> {
    pairs.sort_by(|(a, _), (b, _)| match a.order(b) {
        Ok(Some(order)) => order,
        _ => a.kind().cmp(b.kind()),
    });
    pairs
}
