//! Python's `'{}'.format(values)`.

use super::calls::Given;
use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::meter::Pen;
use super::percent::{Field, bounded, float_digits, in_base, signed};
use super::value::numbers;
use super::value::{Text, Value};

impl Run<'_> {
    /// The text of `format.format(…)`. What is put into a safe format is escaped.
    pub(super) fn braces(&mut self, format: &str, safe: bool, given: Given) -> Answer<Value> {
        let mut pen = Pen::new(&self.meter);
        let (mut rest, mut next) = (format, 0);
        while let Some(at) = rest.find(['{', '}']) {
            pen.push(&rest[..at])?;
            let (brace, behind) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(behind) = behind.strip_prefix(brace) {
                pen.push(brace)?;
                rest = behind;
                continue;
            }
            let end = closing(behind).filter(|_| brace == "{");
            let end = end.ok_or_else(|| Fault::new("a format has a brace alone"))?;
            let text = self.field(&behind[..end], safe, &given, &mut next)?;
            pen.push(&text)?;
            rest = &behind[end + 1..];
        }
        pen.push(rest)?;
        Ok(if safe { Value::Markup(pen.into()) } else { Value::Text(pen.into()) })
    }

    /// The text of one field: `name!conversion:spec`.
    fn field(&mut self, field: &str, safe: bool, given: &Given, next: &mut usize) -> Answer<Text> {
        self.meter.work(1)?;
        let (place, spec) = field.split_once(':').unwrap_or((field, ""));
        let (place, conversion) = match place.split_once('!') {
            Some((place, conversion)) => (place, Some(conversion)),
            None => (place, None),
        };
        let mut value = self.placed(place, given, next)?;
        value = match conversion {
            None => value,
            Some("s") => Value::Text(self.str(&value)?),
            Some("r" | "a") => Value::Text(self.repr(&value)?),
            Some(_) => return Err(Fault::new("a format has an unknown conversion")),
        };
        let inner =
            if spec.contains('{') { self.braces_inside(spec, safe, given, next)? } else { spec.into() };
        if !safe {
            return self.spec(&value, &inner);
        }
        if !value.is_safe() {
            let text = Value::Text(self.spec(&value, &inner)?);
            return self.safe(&text);
        }
        if !inner.is_empty() {
            return Err(Fault::new("a safe text in a safe format cannot be padded"));
        }
        self.str(&value)
    }

    /// A spec whose own fields are filled, one level deep as in Python.
    fn braces_inside(&mut self, spec: &str, safe: bool, given: &Given, next: &mut usize) -> Answer<String> {
        let (mut made, mut rest) = (String::new(), spec);
        while let Some((before, behind)) = rest.split_once('{') {
            made.push_str(before);
            let (place, after) =
                behind.split_once('}').ok_or_else(|| Fault::new("a format has a brace alone"))?;
            let value = self.placed(place, given, next)?;
            made.push_str(&if safe { self.safe(&value)? } else { self.str(&value)? });
            self.meter.pass(made.len())?;
            rest = after;
        }
        made.push_str(rest);
        Ok(made)
    }

    /// The value a field names: by place or name, and then by attributes and items.
    fn placed(&mut self, place: &str, given: &Given, next: &mut usize) -> Answer<Value> {
        let end = place.find(['.', '[']).unwrap_or(place.len());
        let (first, mut rest) = place.split_at(end);
        let number = if first.is_empty() {
            *next += 1;
            Some(*next - 1)
        } else {
            first.parse::<usize>().ok()
        };
        let missing = || Fault::new(format!("the format asks for `{first}`, which is not there"));
        let mut value = match number {
            Some(at) => given.positional.get(at).cloned().ok_or_else(missing)?,
            None => {
                let found = given.named.iter().find(|(name, _)| &**name == first);
                found.map(|(_, value)| value.clone()).ok_or_else(missing)?
            }
        };
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                value = self.attribute(&value, &behind[..end])?;
                rest = &behind[end..];
            } else {
                let inside = rest.strip_prefix('[').and_then(|inside| inside.split_once(']'));
                let (item, behind) = inside.ok_or_else(|| Fault::new("a format has a bracket alone"))?;
                let item = item.parse::<i128>().map_or_else(|_| Value::text(item), Value::Int);
                value = self.item(&value, &item)?;
                rest = behind;
            }
        }
        Ok(value)
    }

    fn spec(&mut self, value: &Value, spec: &str) -> Answer<Text> {
        if spec.is_empty() {
            return self.str(value);
        }
        let Spec { fill, align, mut field, separator, kind } = Spec::parse(spec)?;
        bounded(&field)?;
        let is_number = numbers::float(value).is_some() && value.as_text().is_none();
        let text = match (value, kind) {
            (_, 's' | '\0') if !is_number => {
                let text = self.str(value)?;
                match field.precision {
                    Some(most) => Text::made(text.chars().take(most).collect(), &self.meter)?,
                    None => text,
                }
            }
            _ => {
                let digits = number_digits(value, kind, &mut field).ok_or_else(|| {
                    Fault::new(format!("a format cannot write {} as `{kind}`", value.kind()))
                })?;
                let negative = numbers::float(value).is_some_and(|number| number < 0.0);
                let digits = match separator {
                    Some(separator) => grouped(&digits, separator, kind),
                    None => digits,
                };
                Text::from(&*signed(negative, digits, &field))
            }
        };
        let missing = field.width.saturating_sub(text.chars().count());
        let align = align.unwrap_or(if is_number { '>' } else { '<' });
        let left = match align {
            '<' => 0,
            '^' => missing / 2,
            _ => missing,
        };
        let sign = if align == '=' { usize::from(text.starts_with(['-', '+', ' '])) } else { 0 };
        let mut pen = Pen::new(&self.meter);
        let fill = fill.to_string();
        pen.push(&text[..sign])?;
        pen.repeat(&fill, left)?;
        pen.push(&text[sign..])?;
        pen.repeat(&fill, missing - left)?;
        Ok(pen.into())
    }
}

/// The place of the brace that closes a field, with braces inside it.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0;
    text.char_indices().find_map(|(at, character)| match character {
        '{' => {
            open += 1;
            None
        }
        '}' if open == 0 => Some(at),
        '}' => {
            open -= 1;
            None
        }
        _ => None,
    })
}

struct Spec {
    fill: char,
    align: Option<char>,
    field: Field,
    /// Stands between groups of digits.
    separator: Option<char>,
    kind: char,
}

impl Spec {
    fn parse(spec: &str) -> Answer<Spec> {
        let mut made = Spec { fill: ' ', align: None, field: Field::default(), separator: None, kind: '\0' };
        let characters: Vec<char> = spec.chars().take(64).collect();
        let mut at = 0;
        if characters.len() > 1 && "<>^=".contains(characters[1]) {
            (made.fill, made.align, at) = (characters[0], Some(characters[1]), 2);
        } else if characters.first().is_some_and(|first| "<>^=".contains(*first)) {
            (made.align, at) = (Some(characters[0]), 1);
        }
        let is = |at: usize, wanted: &str| characters.get(at).copied().filter(|c| wanted.contains(*c));
        if let Some(sign) = is(at, "+- ") {
            made.field.sign = (sign != '-').then_some(sign);
            at += 1;
        }
        if is(at, "#").is_some() {
            made.field.alternate = true;
            at += 1;
        }
        if is(at, "0").is_some() {
            if made.align.is_none() {
                (made.fill, made.align) = ('0', Some('='));
            }
            at += 1;
        }
        let number = |at: &mut usize| {
            let digits: String = characters[*at..].iter().take_while(|c| c.is_ascii_digit()).collect();
            *at += digits.len();
            digits.parse::<usize>().ok()
        };
        made.field.width = number(&mut at).unwrap_or(0);
        made.separator = is(at, ",_");
        at += usize::from(made.separator.is_some());
        if is(at, ".").is_some() {
            at += 1;
            made.field.precision =
                Some(number(&mut at).ok_or_else(|| Fault::new("a format lacks its precision"))?);
        }
        if let Some(kind) = is(at, "sdxXobeEfFgGn%c") {
            made.kind = kind;
            at += 1;
        }
        if at < characters.len() {
            return Err(Fault::new(format!("a format has an unknown spec `{}`", spec.escape_debug())));
        }
        Ok(made)
    }
}

/// The digits of a number without its sign, as its field asks for them.
fn number_digits(value: &Value, kind: char, field: &mut Field) -> Option<String> {
    let number = numbers::float(value)?;
    match (kind, numbers::whole(value)) {
        ('d' | 'n' | '\0', Some(whole)) if field.precision.is_none() => {
            Some(whole.unsigned_abs().to_string())
        }
        ('x' | 'X' | 'o' | 'b', Some(whole)) => Some(in_base(whole.unsigned_abs(), kind, field.alternate)),
        ('c', Some(whole)) => Some(char::from_u32(u32::try_from(whole).ok()?)?.to_string()),
        ('%', _) => Some(float_digits(number.abs() * 100.0, 'f', field) + "%"),
        ('e' | 'E' | 'f' | 'F' | 'g' | 'G', _) => Some(float_digits(number.abs(), kind, field)),
        ('\0' | 'n', None) => Some(match field.precision {
            Some(_) => {
                let digits = float_digits(number.abs(), 'g', field);
                if kind == 'n' || digits.contains(['.', 'e', 'n']) { digits } else { digits + ".0" }
            }
            None => numbers::float_text(number.abs()),
        }),
        _ => None,
    }
}

/// Digits with a separator between groups: of three, and of four where the base is a power of two.
fn grouped(digits: &str, separator: char, kind: char) -> String {
    let group = if "boxX".contains(kind) { 4 } else { 3 };
    if group == 4 {
        return separated(digits, separator, group);
    }
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    separated(whole, separator, group) + rest
}

fn separated(digits: &str, separator: char, group: usize) -> String {
    let mut made = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(group) {
            made.push(separator);
        }
        made.push(digit);
    }
    made
}
