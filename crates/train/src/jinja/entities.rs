//! HTML taken out of a text: tags dropped, named and numbered characters written as themselves.
//!
//! Names are known for Latin-1 only; HTML allows these without a semicolon. A text with another name is refused, since it would
//! render differently from Python.

use std::rc::Rc;

use super::characters::is_space;
use super::fault::{Answer, Fault};
use super::meter::{Meter, Pen};
use super::value::Value;

/// Names of the characters from U+A0 to U+FF, in their order.
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo",
    "not", "shy", "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot",
    "cedil", "sup1", "ordm", "raquo", "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc",
    "Atilde", "Auml", "Aring", "AElig", "Ccedil", "Egrave", "Eacute", "Ecirc", "Euml", "Igrave", "Iacute",
    "Icirc", "Iuml", "ETH", "Ntilde", "Ograve", "Oacute", "Ocirc", "Otilde", "Ouml", "times", "Oslash",
    "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN", "szlig", "agrave", "aacute", "acirc", "atilde",
    "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc", "euml", "igrave", "iacute", "icirc",
    "iuml", "eth", "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml", "divide", "oslash", "ugrave",
    "uacute", "ucirc", "uuml", "yacute", "thorn", "yuml",
];
/// Numbers from 128 to 159, as browsers read them: Windows has characters there.
const WINDOWS: [u32; 32] = [
    0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160, 0x2039, 0x152, 0x8d,
    0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x2dc, 0x2122, 0x161, 0x203a,
    0x153, 0x9d, 0x17e, 0x178,
];
/// The most characters of a name behind `&`.
const MOST_NAME: usize = 32;

/// A text without its tags, with single blanks.
pub(super) fn bare(text: &str, meter: &Rc<Meter>) -> Answer<Value> {
    let mut bare = Pen::new(meter);
    let mut left: &str = text;
    while let Some(start) = left.find('<') {
        let end = match left[start..].strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|at| start + 4 + at + 3),
            None => left[start..].find('>').map(|at| start + at + 1),
        };
        let Some(end) = end else { break };
        bare.push(&left[..start])?;
        left = &left[end..];
    }
    bare.push(left)?;
    let mut spaced = Pen::new(meter);
    for (at, word) in bare.text().split(is_space).filter(|word| !word.is_empty()).enumerate() {
        spaced.push(if at > 0 { " " } else { "" })?;
        spaced.push(word)?;
    }
    unescaped(spaced.text(), meter)
}

/// A text with its named and numbered characters as themselves.
pub(super) fn unescaped(text: &str, meter: &Rc<Meter>) -> Answer<Value> {
    let mut pen = Pen::new(meter);
    unescape(text, &mut pen)?;
    Ok(Value::Text(pen.into()))
}

/// Writes a text with its named and numbered characters as themselves.
fn unescape(mut text: &str, pen: &mut Pen) -> Answer<()> {
    while let Some(at) = text.find('&') {
        pen.push(&text[..at])?;
        text = &text[at + 1..];
        let taken = match text.strip_prefix('#') {
            Some(number) => numbered(number, pen)?.map(|taken| taken + 1),
            None => named(text, pen)?,
        };
        match taken {
            Some(taken) => text = &text[taken..],
            None => pen.push("&")?,
        }
    }
    pen.push(text)
}

/// Writes the character of a number, and returns the bytes that named it.
fn numbered(text: &str, pen: &mut Pen) -> Answer<Option<usize>> {
    let (radix, digits) = match text.strip_prefix(['x', 'X']) {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let len = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    if len == 0 {
        return Ok(None);
    }
    let number = u32::from_str_radix(&digits[..len], radix).unwrap_or(u32::MAX);
    let number = match number {
        0 => 0xfffd,
        128..=159 => WINDOWS[number as usize - 128],
        other => other,
    };
    match char::from_u32(number) {
        Some(_) if is_no_character(number) => {}
        Some(character) => pen.push_char(character)?,
        None => pen.push_char('\u{fffd}')?,
    }
    let taken = text.len() - digits.len() + len;
    Ok(Some(taken + usize::from(digits[len..].starts_with(';'))))
}

/// Controls and places of Unicode that hold nothing.
fn is_no_character(number: u32) -> bool {
    matches!(number, 0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef) || number & 0xfffe == 0xfffe
}

/// Writes the character of a name, and returns the bytes that named it.
fn named(text: &str, pen: &mut Pen) -> Answer<Option<usize>> {
    let ends = |c: char| matches!(c, '\t' | '\n' | '\u{c}' | ' ' | '<' | '&' | '#' | ';');
    let len = text.char_indices().take(MOST_NAME).take_while(|(_, c)| !ends(*c)).last();
    let len = len.map_or(0, |(at, c)| at + c.len_utf8());
    let (name, closed) = (&text[..len], text[len..].starts_with(';'));
    if let Some(character) = latin(name) {
        pen.push_char(character)?;
        return Ok(Some(len + usize::from(closed)));
    }
    if closed && !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(Fault::new(format!(
            "`striptags` does not know the character `&{name};`; write it as itself"
        )));
    }
    let shorter = (2..len).rev().filter(|&to| name.is_char_boundary(to));
    for to in shorter {
        if let Some(character) = latin(&name[..to]) {
            pen.push_char(character)?;
            return Ok(Some(to));
        }
    }
    Ok(None)
}

fn latin(name: &str) -> Option<char> {
    Some(match name {
        "amp" | "AMP" => '&',
        "lt" | "LT" => '<',
        "gt" | "GT" => '>',
        "quot" | "QUOT" => '"',
        "COPY" => '\u{a9}',
        "REG" => '\u{ae}',
        _ => char::from_u32(0xa0 + LATIN.iter().position(|known| *known == name)? as u32)?,
    })
}
