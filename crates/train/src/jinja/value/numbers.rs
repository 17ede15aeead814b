//! Python's numbers: whole ones up to 128 bits, floats printed in the shortest form, and their common operations.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::super::characters::{decimal, is_space};
use super::super::fault::{Answer, Fault};
use super::super::syntax::Operator;
use super::Value;

/// A whole number, with `True` as 1.
pub(in crate::jinja) fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(bool) => Some(i128::from(*bool)),
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// Any number as a float.
pub(in crate::jinja) fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        other => whole(other).map(|number| number as f64),
    }
}

/// The order of two numbers; `None` if one of the values is no number.
#[allow(clippy::option_option, reason = "no numbers, and numbers without an order, are different answers")]
pub(in crate::jinja) fn compare(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        return Some(Some(a.cmp(&b)));
    }
    let (x, y) = (float(a)?, float(b)?);
    // A float that is whole is compared exactly, as Python does.
    let exact = |float: f64| (float.fract() == 0.0 && float.abs() < 1e37).then_some(float as i128);
    match (whole(a), whole(b)) {
        (Some(whole), None) if exact(y).is_some() => Some(exact(y).map(|y| whole.cmp(&y))),
        (None, Some(whole)) if exact(x).is_some() => Some(exact(x).map(|x| x.cmp(&whole))),
        _ => Some(x.partial_cmp(&y)),
    }
}

/// Arithmetic on two numbers; `None` when an operand is no number.
pub(in crate::jinja) fn calculate(operator: Operator, a: &Value, b: &Value) -> Option<Answer<Value>> {
    let wholes = whole(a).zip(whole(b));
    match (operator, wholes) {
        (Operator::Divide, _) => Some(divide(float(a)?, float(b)?)),
        (Operator::Power, Some((_, exponent))) if exponent < 0 => Some(power(float(a)?, float(b)?)),
        (_, Some((a, b))) => Some(on_wholes(operator, a, b)),
        (_, None) => Some(on_floats(operator, float(a)?, float(b)?)),
    }
}

fn by_zero() -> Fault {
    Fault::new("a number is divided by 0")
}

fn divide(a: f64, b: f64) -> Answer<Value> {
    if b == 0.0 { Err(by_zero()) } else { Ok(Value::Float(a / b)) }
}

fn power(a: f64, b: f64) -> Answer<Value> {
    if a == 0.0 && b < 0.0 {
        return Err(by_zero());
    }
    if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 {
        return Err(Fault::new(format!(
            "{} ** {} is a complex number, which is not known here",
            float_text(a),
            float_text(b)
        )));
    }
    let result = a.powf(b);
    if result.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(Fault::new("a power grows beyond the largest float"));
    }
    Ok(Value::Float(result))
}

fn on_wholes(operator: Operator, a: i128, b: i128) -> Answer<Value> {
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::FloorDivide | Operator::Remainder | Operator::Divide if b == 0 => return Err(by_zero()),
        Operator::FloorDivide | Operator::Divide => floor_divide(a, b),
        Operator::Remainder => floor_divide(a, b).and_then(|quotient| a.checked_sub(quotient * b)),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Int).ok_or_else(|| Fault::new("a whole number grows beyond 128 bits"))
}

/// Towards negative infinity.
fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn on_floats(operator: Operator, a: f64, b: f64) -> Answer<Value> {
    if b == 0.0 && matches!(operator, Operator::FloorDivide | Operator::Remainder) {
        return Err(by_zero());
    }
    let remainder = || {
        let remainder = a % b;
        if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
    };
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => ((a - remainder()) / b).round(),
        Operator::Remainder => remainder(),
        Operator::Power => return power(a, b),
    }))
}

/// A float as Python's `repr` writes it: the shortest digits that mean it, with an exponent below 1e-4 and from 1e16 on.
pub(in crate::jinja) fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = format!("{number}");
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// A float rounded as Python's `round` does: to the nearest decimal, ties to even.
pub(in crate::jinja) fn rounded(number: f64, digits: i128) -> f64 {
    if !number.is_finite() || digits > 300 {
        return number;
    }
    if digits >= 0 {
        return format!("{number:.*}", digits as usize).parse().unwrap_or(number);
    }
    let scale = 10f64.powi(i32::try_from(-digits).unwrap_or(i32::MAX));
    if scale.is_infinite() { 0.0 * number } else { (number / scale).round_ties_even() * scale }
}

/// A text without the space around it, its decimal digits as those of ASCII.
fn plain(text: &str) -> Cow<'_, str> {
    let text = text.trim_matches(is_space);
    let digit = |c: char| decimal(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c);
    if text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(text.chars().map(digit).collect()) }
}

/// A number as Python's `int` reads it from a text.
pub(in crate::jinja) fn parse_whole(text: &str, base: u32) -> Option<i128> {
    let text = plain(text);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = |prefix, of| (base == of || base == 0).then(|| lower.strip_prefix(prefix)).flatten();
    let (base, digits) = match (prefixed("0x", 16), prefixed("0o", 8), prefixed("0b", 2)) {
        (Some(digits), _, _) => (16, digits),
        (_, Some(digits), _) => (8, digits),
        (_, _, Some(digits)) => (2, digits),
        _ => (if base == 0 { 10 } else { base }, lower.as_str()),
    };
    if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") || !(2..=36).contains(&base)
    {
        return None;
    }
    let digits = digits.replace('_', "");
    if !digits.starts_with(|digit: char| digit.is_digit(base)) {
        return None;
    }
    i128::from_str_radix(&digits, base).ok().map(|number| if negative { -number } else { number })
}

/// A number as Python's `float` reads it from a text.
pub(in crate::jinja) fn parse_float(text: &str) -> Option<f64> {
    let text = plain(text);
    // An underscore stands between two digits.
    let parts: Vec<&str> = text.split('_').collect();
    let joins = |pair: &[&str]| {
        pair[0].ends_with(|c: char| c.is_ascii_digit()) && pair[1].starts_with(|c: char| c.is_ascii_digit())
    };
    if parts.windows(2).all(joins) { parts.concat().parse().ok() } else { None }
}
