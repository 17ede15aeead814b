//! `striptags` and `urlize`: HTML taken out of a text, and links put into it.
//!
//! Named HTML entities are known for Latin-1 only; HTML allows these without a semicolon. A text with another named
//! entity is refused, since it would render differently from Python.

use std::rc::Rc;

use super::super::calls::Given;
use super::super::characters::is_space;
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::{Meter, Pen};
use super::super::show::escaped;
use super::super::value::numbers;
use super::super::value::{Text, Value};

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
/// Domains that make a link of a name without `https://`.
const DOMAINS: [&str; 8] = ["com", "net", "int", "edu", "gov", "org", "info", "mil"];
/// The most characters of a name behind `&`.
const MOST_NAME: usize = 32;

impl Run<'_> {
    pub(super) fn striptags(&mut self, value: &Value, given: Given) -> Answer<Value> {
        given.none("striptags")?;
        bare(&self.str(value)?, &self.meter)
    }

    pub(super) fn urlize(&mut self, value: &Value, given: Given) -> Answer<Value> {
        let names = ["trim_url_limit", "nofollow", "target", "rel", "extra_schemes"];
        let [limit, nofollow, target, rel, schemes] = given.bind("urlize", names)?;
        let link = Link {
            limit: limit.as_ref().and_then(numbers::whole).map(|most| usize::try_from(most).unwrap_or(0)),
            attributes: self.link_attributes(nofollow, target, rel)?,
            schemes: self.schemes(schemes)?,
        };
        let text = self.safe(value)?;
        let mut pen = Pen::new(&self.meter);
        let mut left: &str = &text;
        while !left.is_empty() {
            let word = left.find(is_space).unwrap_or(left.len());
            link.word(&left[..word], &mut pen)?;
            let blank = left[word..].find(|c| !is_space(c)).map_or(left.len(), |at| word + at);
            pen.push(&left[word..blank])?;
            left = &left[blank..];
        }
        Ok(Value::Text(pen.into()))
    }

    fn link_attributes(
        &mut self,
        nofollow: Option<Value>,
        target: Option<Value>,
        rel: Option<Value>,
    ) -> Answer<String> {
        let rel = match rel.filter(|rel| !matches!(rel, Value::None)) {
            Some(rel) => self.str(&rel)?,
            None => Text::from(""),
        };
        let mut parts: Vec<&str> = rel.split(is_space).filter(|part| !part.is_empty()).collect();
        parts.push("noopener");
        parts.extend(nofollow.is_some_and(|nofollow| nofollow.is_true()).then_some("nofollow"));
        parts.sort_unstable();
        parts.dedup();
        let mut attributes = format!(" rel=\"{}\"", &*escaped(&parts.join(" "), &self.meter)?);
        if let Some(target) = target.filter(Value::is_true) {
            attributes += &format!(" target=\"{}\"", &*self.safe(&target)?);
        }
        Ok(attributes)
    }

    fn schemes(&mut self, schemes: Option<Value>) -> Answer<Vec<Text>> {
        let Some(schemes) = schemes.filter(|schemes| !matches!(schemes, Value::None)) else {
            return Ok(Vec::new());
        };
        let schemes: Vec<Text> =
            self.items(&schemes)?.iter().map(|scheme| self.str(scheme)).collect::<Answer<_>>()?;
        match schemes.iter().find(|scheme| !is_scheme(scheme)) {
            Some(wrong) => Err(Fault::new(format!("`{}` is no beginning of an address", &**wrong))),
            None => Ok(schemes),
        }
    }
}

/// A text without its tags, with single blanks.
pub(in crate::jinja) fn bare(text: &str, meter: &Rc<Meter>) -> Answer<Value> {
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
pub(in crate::jinja) fn unescaped(text: &str, meter: &Rc<Meter>) -> Answer<Value> {
    let mut pen = Pen::new(meter);
    unescape(text, &mut pen)?;
    Ok(Value::Text(pen.into()))
}

/// How links are written.
struct Link {
    /// Characters of a link that are shown.
    limit: Option<usize>,
    attributes: String,
    schemes: Vec<Text>,
}

impl Link {
    /// Writes one word, as a link where it is one.
    fn word(&self, word: &str, pen: &mut Pen) -> Answer<()> {
        let (head, rest) = word.split_at(word.len() - without(word, &["(", "<", "&lt;"]).len());
        let mut middle = rest.len() - ending(rest, &[")", ">", ".", ",", "&gt;"]);
        for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
            let opened = rest[..middle].matches(open).count();
            if opened <= rest[..middle].matches(close).count() {
                continue;
            }
            // A closing bracket that matches one in the address belongs to the address.
            for _ in 0..opened.min(rest[middle..].matches(close).count()) {
                middle += rest[middle..].find(close).map_or(0, |at| at + close.len());
            }
        }
        let (middle, tail) = rest.split_at(middle);
        pen.push(head)?;
        self.middle(middle, pen)?;
        pen.push(tail)
    }

    fn middle(&self, middle: &str, pen: &mut Pen) -> Answer<()> {
        if is_address(middle) {
            let is_whole = middle.starts_with("https://") || middle.starts_with("http://");
            let shown = match self.limit.and_then(|limit| middle.char_indices().nth(limit)) {
                Some((cut, _)) => format!("{}...", &middle[..cut]),
                None => middle.to_owned(),
            };
            let scheme = if is_whole { "" } else { "https://" };
            return self.link([scheme, middle], &self.attributes, &shown, pen);
        }
        if let Some(address) = middle.strip_prefix("mailto:").filter(|address| is_mail(address)) {
            return self.link(["", middle], "", address, pen);
        }
        let named = middle.starts_with("www.") || middle.starts_with('@') || middle.contains(':');
        if !named && is_mail(middle) {
            return self.link(["mailto:", middle], "", middle, pen);
        }
        let mut made = middle.to_owned();
        for scheme in &self.schemes {
            if made != **scheme && made.starts_with(&**scheme) {
                made = format!("<a href=\"{made}\"{}>{made}</a>", self.attributes);
            }
        }
        pen.push(&made)
    }

    fn link(&self, to: [&str; 2], attributes: &str, shown: &str, pen: &mut Pen) -> Answer<()> {
        ["<a href=\"", to[0], to[1], "\"", attributes, ">", shown, "</a>"]
            .into_iter()
            .try_for_each(|part| pen.push(part))
    }
}

/// A text without any of these characters at its start.
fn without<'a>(mut text: &'a str, of: &[&str]) -> &'a str {
    while let Some(rest) = of.iter().find_map(|part| text.strip_prefix(part)) {
        text = rest;
    }
    text
}

/// Bytes of these characters at the end of a text.
fn ending(text: &str, of: &[&str]) -> usize {
    let mut left = text;
    while let Some(rest) = of.iter().find_map(|part| left.strip_suffix(part)) {
        left = rest;
    }
    text.len() - left.len()
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn is_scheme(text: &str) -> bool {
    let name = text.trim_end_matches('/');
    let slashes = text.len() - name.len();
    let Some(name) = name.strip_suffix(':') else { return false };
    slashes <= 2 && name.chars().count() >= 2 && name.chars().all(|c| is_word(c) || ".+-".contains(c))
}

/// A host with or without `https://`, a port and a path behind it.
fn is_address(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let behind = ["https://", "http://"].iter().find_map(|scheme| lower.strip_prefix(scheme));
    let host = |rest: &str, is_host: &dyn Fn(&str) -> bool| {
        let len = rest.find(|c: char| !is_word(c) && !"%.-".contains(c)).unwrap_or(rest.len());
        is_host(&rest[..len]) && is_behind_host(&rest[len..])
    };
    let number = |rest: &str| {
        let Some(rest) = rest.strip_prefix('[') else { return host(rest, &is_ip4) };
        rest.split_once(']').is_some_and(|(inside, behind)| is_ip6(inside) && is_behind_host(behind))
    };
    behind.or(lower.strip_prefix("www.")).is_some_and(|rest| host(rest, &is_named))
        || host(&lower, &is_well_known)
        || behind.is_some_and(number)
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.chars().all(|c| is_word(c) || "%-".contains(c))
}

fn is_named(host: &str) -> bool {
    let (labels, last) = host.rsplit_once('.').map_or((None, host), |(labels, last)| (Some(labels), last));
    let latin = (2..=63).contains(&last.len()) && last.bytes().all(|b| b.is_ascii_lowercase());
    let coded = last.strip_prefix("xn--").is_some_and(|rest| {
        (2..=59).contains(&rest.chars().count()) && rest.chars().all(|c| is_word(c) || c == '%')
    });
    (latin || coded) && labels.is_none_or(|labels| labels.split('.').all(is_label))
}

fn is_well_known(host: &str) -> bool {
    let label = |label: &str| is_label(label) && (2..=63).contains(&label.chars().count());
    host.rsplit_once('.')
        .is_some_and(|(labels, last)| DOMAINS.contains(&last) && labels.split('.').all(label))
}

fn is_ip4(host: &str) -> bool {
    let part = |part: &str| (1..=3).contains(&part.chars().count()) && part.chars().all(char::is_numeric);
    host.split('.').count() == 4 && host.split('.').all(part)
}

fn is_ip6(mut inside: &str) -> bool {
    let digits = |text: &str| text.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
    for _ in 0..2 {
        match inside[digits(inside)..].strip_prefix(':') {
            Some(rest) => inside = rest,
            None => return false,
        }
    }
    for _ in 0..6 {
        let rest = &inside[digits(inside)..];
        inside = rest.strip_prefix(':').unwrap_or(rest);
    }
    inside.is_empty()
}

/// A port, and a path behind that.
fn is_behind_host(text: &str) -> bool {
    let path = match text.strip_prefix(':') {
        Some(port) => {
            let digits = port.find(|c: char| !c.is_numeric()).unwrap_or(port.len());
            if !(1..=5).contains(&port[..digits].chars().count()) {
                return false;
            }
            &port[digits..]
        }
        None => text,
    };
    path.is_empty() || path.starts_with(['/', '?', '#'])
}

fn is_mail(text: &str) -> bool {
    let Some((name, host)) = text.rsplit_once('@') else { return false };
    let Some((_, last)) = host.rsplit_once('.') else { return false };
    let begins = host.starts_with(is_word);
    let within = host.chars().all(|c| is_word(c) || ".-".contains(c));
    !name.is_empty() && begins && within && !last.is_empty() && last.chars().all(is_word)
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
