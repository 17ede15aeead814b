//! `striptags` and `urlize`: HTML taken out of a text, and links put into it.

use super::super::calls::Given;
use super::super::characters::is_space;
use super::super::entities::bare;
use super::super::fault::{Answer, Fault};
use super::super::interpreter::Run;
use super::super::meter::Pen;
use super::super::show::escaped;
use super::super::value::numbers;
use super::super::value::{Text, Value};

/// Domains that make a link of a name without `https://`.
const DOMAINS: [&str; 8] = ["com", "net", "int", "edu", "gov", "org", "info", "mil"];
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
