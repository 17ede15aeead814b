//! JSON with whole numbers of more than 64 bits kept exact, as Python keeps them.
//!
//! The parser turns such numbers into floats. They are rare, so a text is first searched for a long enough run of
//! digits. Only a text that has one is copied, with each such number replaced by a string that starts with a mark that
//! no data contains.
//!
//! A feature of the parser keeps all digits of all numbers, and is not used: it changes how the tokenizer's files are read.

use std::borrow::Cow;

#[cfg(feature = "parquet")]
use serde_json::Number;
use serde_json::Value as Json;

/// Digits that a number of more than 64 bits has at least.
const LONG: usize = 19;
/// Stands before the digits. The code point is a Unicode noncharacter, reserved for use inside a program.
const MARK: &str = "\u{fdd0}whole number ";
/// Stands before an infinity or a NaN of a table: JSON has no numbers for them.
const FLOAT: &str = "\u{fdd0}float ";

/// The value of a JSON text. Chat templates show its whole numbers of up to 128 bits as they are written and refuse longer
/// ones.
///
/// # Errors
///
/// When the text is no JSON.
pub fn parse(text: &str) -> serde_json::Result<Json> {
    serde_json::from_str(&marked(text))
}

/// The whole number in a text that [`parse`] has marked, as it is written.
pub(super) fn digits(text: &str) -> Option<&str> {
    text.strip_prefix(MARK).filter(|token| is_whole(token))
}

/// A float of a table.
#[cfg(feature = "parquet")]
pub(super) fn float(number: f64) -> Json {
    Number::from_f64(number).map_or_else(|| format!("{FLOAT}{number}").into(), Json::Number)
}

/// The infinity or NaN in a text that `float` has marked.
pub(super) fn marked_float(text: &str) -> Option<f64> {
    text.strip_prefix(FLOAT)?.parse().ok()
}

/// Whether a text stands for a number.
pub(super) fn is_number(text: &str) -> bool {
    digits(text).is_some() || marked_float(text).is_some()
}

fn marked(text: &str) -> Cow<'_, str> {
    let mut run = 0;
    let long = text.bytes().any(|byte| {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        run == LONG
    });
    if long { Cow::Owned(with_marks(text)) } else { Cow::Borrowed(text) }
}

fn with_marks(text: &str) -> String {
    let mut marked = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(at) = rest.find(['"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
        let (before, from) = rest.split_at(at);
        marked.push_str(before);
        let token = if from.starts_with('"') { text_len(from) } else { number_len(from) };
        let (token, behind) = from.split_at(token);
        if is_long(token) {
            marked.extend(["\"", MARK, token, "\""]);
        } else {
            marked.push_str(token);
        }
        rest = behind;
    }
    marked.push_str(rest);
    marked
}

/// Whether a token is an integer that does not fit 64 bits.
fn is_long(token: &str) -> bool {
    is_whole(token) && token.parse::<i64>().is_err() && token.parse::<u64>().is_err()
}

/// Whether a token is an integer in JSON, which has no leading 0.
fn is_whole(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0')
}

/// Bytes of the text that begins here, with its quotation marks.
fn text_len(from: &str) -> usize {
    let mut escaped = false;
    let closes = |byte: u8| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    };
    from.bytes().skip(1).position(closes).map_or(from.len(), |at| at + 2)
}

/// Bytes of the number that begins here.
fn number_len(from: &str) -> usize {
    let of_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
    from.bytes().position(|byte| !of_number(byte)).unwrap_or(from.len())
}

/// The kind of a JSON value in words.
pub(super) fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(text) if is_number(text) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_beyond_64_bits_keep_their_digits_and_nothing_else_changes() {
        let longest = "9".repeat(400);
        let long =
            ["18446744073709551616", "-9223372036854775809", "170141183460469231731687303715884105728"];
        for number in long.into_iter().chain([longest.as_str()]) {
            let value = parse(&format!("{{\"a\\\"1\": [{number}, 7]}}")).unwrap();
            assert_eq!(value["a\"1"][0].as_str().and_then(digits), Some(number));
            assert_eq!(value["a\"1"][1], 7);
        }
        let others = r#"["18446744073709551616", 18446744073709551615, -9223372036854775808, 1234567890123456789012.5,
            12345678901234567890e3, "\\", 1e-07, "\" 99999999999999999999"]"#;
        assert_eq!(parse(others).unwrap(), serde_json::from_str::<Json>(others).unwrap());
        for broken in
            ["[1e400000000000000000000]", "[018446744073709551616]", "[1844674407370955161616", "\"\\"]
        {
            assert!(parse(broken).is_err(), "{broken}");
        }
        for text in ["18446744073709551616", "\u{fdd0}whole number ", "\u{fdd0}whole number x"] {
            assert_eq!(digits(text), None);
        }
    }
}
