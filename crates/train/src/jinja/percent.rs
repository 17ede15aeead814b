//! Python's `'%s' % values`.

use super::fault::{Answer, Fault};
use super::interpreter::Run;
use super::meter::Pen;
use super::value::numbers;
use super::value::{Text, Value};

/// A field of a format: its padding and precision.
#[derive(Clone, Debug, Default)]
pub(super) struct Field {
    pub(super) left: bool,
    pub(super) zero: bool,
    pub(super) sign: Option<char>,
    pub(super) alternate: bool,
    pub(super) width: usize,
    pub(super) precision: Option<usize>,
}

impl Run<'_> {
    /// The text of `format % values`. A tuple gives the values in their order; if the fields of the format have names, they
    /// are looked up in the dictionary `whole`. What is put into a safe format is escaped.
    pub(super) fn percent(
        &mut self,
        format: &str,
        safe: bool,
        values: &[Value],
        whole: &Value,
    ) -> Answer<Value> {
        let mut pen = Pen::new(&self.meter);
        let (mut rest, mut next, mut by_name) = (format, 0, false);
        while let Some(at) = rest.find('%') {
            pen.push(&rest[..at])?;
            let mut behind = Cursor(&rest[at + 1..]);
            let mut value = None;
            if let Some(name) = behind.name() {
                let Value::Dict(dict) = whole.inside() else {
                    return Err(Fault::new("a format with names needs a dictionary"));
                };
                let missing = || Fault::new(format!("the format asks for `{name}`, which is not there"));
                value = Some(dict.get_text(name).ok_or_else(missing)?.clone());
                by_name = true;
            }
            let mut take = || {
                next += 1;
                values.get(next - 1).cloned().ok_or_else(|| Fault::new("a format has too few values"))
            };
            let width = || Err(Fault::new("`*` in a format needs a whole number"));
            let field = behind.field(&mut || if safe { width() } else { take() })?;
            let kind = behind.next().ok_or_else(|| Fault::new("a format ends within a field"))?;
            if kind == '%' {
                pen.push("%")?;
            } else {
                let value = value.map_or_else(take, Ok)?;
                let text = if safe {
                    self.safe_field(kind, &field, &value)?
                } else {
                    self.percent_field(kind, &field, &value)?
                };
                self.pad_field(&text, &field, matches!(kind, 's' | 'r' | 'a' | 'c'), &mut pen)?;
            }
            rest = behind.0;
        }
        pen.push(rest)?;
        if next < values.len() && !by_name && !matches!(whole, Value::Dict(_) | Value::List(_)) {
            return Err(Fault::new("a format has more values than fields"));
        }
        Ok(if safe { Value::Markup(pen.into()) } else { Value::Text(pen.into()) })
    }

    /// A field of a safe format. There `markupsafe` hides every value behind one that has a text and is a number only when
    /// asked to become one.
    fn safe_field(&mut self, kind: char, field: &Field, value: &Value) -> Answer<Text> {
        let number = match (kind, value.as_text()) {
            ('s', _) => return self.percent_field('s', field, &Value::Text(self.safe(value)?)),
            ('r' | 'a', _) => {
                let text = Value::Text(self.repr(value)?);
                return self.percent_field('s', field, &Value::Text(self.safe(&text)?));
            }
            ('d' | 'i' | 'u', Some(text)) => numbers::parse_whole(text, 10).map(Value::Int),
            ('f' | 'F' | 'e' | 'E' | 'g' | 'G', Some(text)) => numbers::parse_float(text).map(Value::Float),
            ('d' | 'i' | 'u' | 'f' | 'F' | 'e' | 'E' | 'g' | 'G', None) => Some(value.clone()),
            _ => None,
        };
        let wrong = || Fault::new(format!("`%{kind}` of a safe text does not take {}", value.kind()));
        self.percent_field(kind, field, &number.ok_or_else(wrong)?)
    }

    fn percent_field(&mut self, kind: char, field: &Field, value: &Value) -> Answer<Text> {
        let wrong = || Fault::new(format!("`%{kind}` needs a number, not {}", value.kind()));
        match kind {
            's' | 'r' | 'a' => {
                let text = if kind == 's' { self.str(value)? } else { self.repr(value)? };
                match field.precision {
                    Some(most) => Text::made(text.chars().take(most).collect(), &self.meter),
                    None => Ok(text),
                }
            }
            'c' => match (value.as_text(), numbers::whole(value)) {
                (Some(text), _) if text.chars().count() == 1 => Ok(text.into()),
                (_, Some(code)) => {
                    let found = u32::try_from(code).ok().and_then(char::from_u32);
                    let found = found.ok_or_else(|| Fault::new("`%c` needs a character"))?;
                    Ok(Text::from(&*found.to_string()))
                }
                _ => Err(Fault::new("`%c` needs a character")),
            },
            'd' | 'i' | 'u' => {
                let number = match value {
                    Value::Float(number) if number.is_finite() => *number as i128,
                    other => numbers::whole(other).ok_or_else(wrong)?,
                };
                Ok(Text::from(&*signed(number < 0, number.unsigned_abs().to_string(), field)))
            }
            'x' | 'X' | 'o' => {
                let number = numbers::whole(value).ok_or_else(wrong)?;
                let digits = in_base(number.unsigned_abs(), kind, field.alternate);
                Ok(Text::from(&*signed(number < 0, digits, field)))
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
                let number = numbers::float(value).ok_or_else(wrong)?;
                bounded(field)?;
                let digits = float_digits(number.abs(), kind, field);
                Ok(Text::from(&*signed(number.is_sign_negative() && !number.is_nan(), digits, field)))
            }
            other => Err(Fault::new(format!("a format has an unknown field `%{other}`"))),
        }
    }

    fn pad_field(&self, text: &str, field: &Field, words: bool, pen: &mut Pen) -> Answer<()> {
        let missing = field.width.saturating_sub(text.chars().count());
        match (field.left, field.zero && !words) {
            (true, _) => {
                pen.push(text)?;
                pen.repeat(" ", missing)
            }
            (false, true) => {
                let sign = usize::from(text.starts_with(['-', '+', ' ']));
                pen.push(&text[..sign])?;
                pen.repeat("0", missing)?;
                pen.push(&text[sign..])
            }
            (false, false) => {
                pen.repeat(" ", missing)?;
                pen.push(text)
            }
        }
    }
}

/// The meter does not count digits of floats while they are written, so their number is limited.
pub(super) fn bounded(field: &Field) -> Answer<()> {
    if field.precision.is_some_and(|digits| digits > 400) {
        return Err(Fault::new("a format asks for more than 400 digits"));
    }
    Ok(())
}

/// Digits with the sign a field asks for.
pub(super) fn signed(negative: bool, digits: String, field: &Field) -> String {
    match (negative, field.sign) {
        (true, _) => format!("-{digits}"),
        (false, Some(sign)) => format!("{sign}{digits}"),
        (false, None) => digits,
    }
}

pub(super) fn in_base(number: u128, kind: char, prefixed: bool) -> String {
    match (kind, prefixed) {
        ('x', false) => format!("{number:x}"),
        ('x', true) => format!("{number:#x}"),
        ('X', false) => format!("{number:X}"),
        ('X', true) => format!("0X{number:X}"),
        ('o', false) => format!("{number:o}"),
        ('o', true) => format!("{number:#o}"),
        ('b', true) => format!("{number:#b}"),
        _ => format!("{number:b}"),
    }
}

/// The digits of a number that is not negative, as `f`, `e` or `g` write them.
pub(super) fn float_digits(number: f64, kind: char, field: &Field) -> String {
    let precision = field.precision.unwrap_or(6);
    let text = if number.is_finite() {
        match kind.to_ascii_lowercase() {
            'f' => format!("{number:.precision$}"),
            'e' => with_exponent(number, precision),
            _ => general(number, precision.max(1), field.alternate),
        }
    } else {
        numbers::float_text(number)
    };
    if kind.is_uppercase() { text.to_uppercase() } else { text }
}

fn with_exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(number: f64, precision: usize, keep: bool) -> String {
    let scientific = with_exponent(number, precision - 1);
    let (_, exponent) = scientific.split_once('e').unwrap_or(("", "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let short = |digits: &str| {
        if keep || !digits.contains('.') {
            return digits.to_owned();
        }
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", short(digits));
    }
    let decimals = usize::try_from(precision as i32 - 1 - exponent).unwrap_or(0);
    short(&format!("{number:.decimals$}"))
}

/// The rest of a format.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn next(&mut self) -> Option<char> {
        let first = self.0.chars().next()?;
        self.0 = &self.0[first.len_utf8()..];
        Some(first)
    }

    /// `(name)`.
    fn name(&mut self) -> Option<&'a str> {
        let inside = self.0.strip_prefix('(')?;
        let (name, rest) = inside.split_once(')')?;
        self.0 = rest;
        Some(name)
    }

    fn field(&mut self, take: &mut impl FnMut() -> Answer<Value>) -> Answer<Field> {
        let mut field = Field::default();
        loop {
            match self.0.chars().next() {
                Some('-') => field.left = true,
                Some('0') => field.zero = true,
                Some('+') => field.sign = Some('+'),
                Some(' ') => field.sign = field.sign.or(Some(' ')),
                Some('#') => field.alternate = true,
                _ => break,
            }
            self.next();
        }
        if let Some(width) = self.number(take)? {
            field.left |= width < 0;
            field.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        if let Some(rest) = self.0.strip_prefix('.') {
            self.0 = rest;
            let precision = self.number(take)?.unwrap_or(0);
            field.precision = Some(usize::try_from(precision).unwrap_or(0));
        }
        self.0 = self.0.trim_start_matches(['h', 'l', 'L']);
        Ok(field)
    }

    /// Digits, or `*` for the next value.
    fn number(&mut self, take: &mut impl FnMut() -> Answer<Value>) -> Answer<Option<i128>> {
        if let Some(rest) = self.0.strip_prefix('*') {
            self.0 = rest;
            let value = take()?;
            return match numbers::whole(&value) {
                Some(number) => Ok(Some(number)),
                None => Err(Fault::new("`*` in a format needs a whole number")),
            };
        }
        let digits = self.0.len() - self.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = self.0[..digits].parse().ok();
        self.0 = &self.0[digits..];
        Ok(number)
    }
}
