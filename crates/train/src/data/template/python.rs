//! What chat templates expect of Python: dictionaries that keep their order, `json.dumps`, and `strftime`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectExt as _, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

/// A map that keeps the order of its keys, as Python's does.
#[derive(Debug)]
pub(super) struct Dictionary(pub(super) Vec<(String, Value)>);

impl Object for Dictionary {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.0.iter().map(|(key, _)| Value::from(key.as_str()))))
    }
}

pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(*bool),
        Json::Number(number) => number
            .as_i64()
            .map(Value::from)
            .or_else(|| number.as_u64().map(Value::from))
            .unwrap_or_else(|| Value::from(number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect::<Vec<Value>>().into(),
        Json::Object(fields) => {
            let fields: Vec<(String, Value)> =
                fields.iter().map(|(key, value)| (key.clone(), value_of(value))).collect();
            Value::from_object(Dictionary(fields))
        }
    }
}

/// The filter `tojson`: Python's `json.dumps` with `ensure_ascii=False`.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands over its arguments")]
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    // Read so that they are known; the texts of models leave them as they are.
    let _ = (options.get::<Option<Value>>("ensure_ascii")?, options.get::<Option<Value>>("separators")?);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = json_of(value)?;
    if sorted {
        json.sort_all_objects();
    }
    let mut text = String::new();
    dump(&json, indent, 0, &mut text);
    Ok(text)
}

fn json_of(value: &Value) -> Result<Json, Error> {
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("{value} cannot be written as JSON"));
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => Json::Null,
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::Number => match i64::try_from(value.clone()) {
            Ok(whole) if value.is_integer() => Json::from(whole),
            _ => Json::from(f64::try_from(value.clone())?),
        },
        ValueKind::String => Json::from(value.as_str().ok_or_else(wrong)?),
        ValueKind::Seq | ValueKind::Iterable => {
            Json::Array(value.try_iter()?.map(|item| json_of(&item)).collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let mut fields = Map::new();
            for key in value.try_iter()? {
                fields.insert(key.to_string(), json_of(&value.get_item(&key)?)?);
            }
            Json::Object(fields)
        }
        _ => return Err(wrong()),
    })
}

/// Writes `, ` and `: ` between things, as Python does and compact JSON does not.
fn dump(json: &Json, indent: Option<usize>, depth: usize, text: &mut String) {
    let (open, close, count) = match json {
        Json::Array(items) => ('[', ']', items.len()),
        Json::Object(fields) => ('{', '}', fields.len()),
        leaf => {
            let _ = write!(text, "{leaf}");
            return;
        }
    };
    let line = |depth: usize, text: &mut String| {
        if let Some(indent) = indent {
            let _ = write!(text, "\n{:1$}", "", indent * depth);
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    text.push(open);
    let mut item = |at: usize, key: Option<&String>, value: &Json| {
        if at > 0 {
            text.push_str(separator);
        }
        line(depth + 1, text);
        if let Some(key) = key {
            let _ = write!(text, "{}: ", Json::from(key.as_str()));
        }
        dump(value, indent, depth + 1, text);
    };
    match json {
        Json::Array(items) => items.iter().enumerate().for_each(|(at, value)| item(at, None, value)),
        Json::Object(fields) => {
            fields.iter().enumerate().for_each(|(at, (key, value))| item(at, Some(key), value));
        }
        _ => {}
    }
    if count > 0 {
        line(depth, text);
    }
    text.push(close);
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The fields of `strftime` that chat templates use; others stay as they are.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (weekday, month_name) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let _ = match characters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year % 100),
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{day:02}"),
            Some('B') => write!(text, "{month_name}"),
            Some('b') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('H') => write!(text, "{:02}", second / 3600),
            Some('M') => write!(text, "{:02}", second / 60 % 60),
            Some('S') => write!(text, "{:02}", second % 60),
            None | Some('%') => write!(text, "%"),
            Some(other) => write!(text, "%{other}"),
        };
    }
    text
}

/// Year, month and day of the day with this number since 1970. Years are counted from March, so that the day that
/// comes and goes is their last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let text = |seconds| strftime("%d %b %Y, %A %Y-%m-%d %H:%M:%S %y %B %a %% %q", seconds);
        assert_eq!(text(0), "01 Jan 1970, Thursday 1970-01-01 00:00:00 70 January Thu % %q");
        assert_eq!(text(951_827_696), "29 Feb 2000, Tuesday 2000-02-29 12:34:56 00 February Tue % %q");
        assert_eq!(text(1_735_689_599), "31 Dec 2024, Tuesday 2024-12-31 23:59:59 24 December Tue % %q");
    }
}
