//! Source to tokens: text, tags with the white space they remove, and the tokens inside tags.
//!
//! Line ends of any kind become `\n`, and one at the very end is dropped. A block removes the line break after it and
//! the blanks before it on its line; `-` removes all white space on its side, `+` removes none.

use super::characters::is_space;
use super::fault::{Answer, Fault};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// Longer operators first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// A token and the line it begins on.
pub(super) type Placed = (Token, u32);

/// The tokens of a template, with [`Token::End`] last.
pub(super) fn tokens(source: &str) -> Answer<Vec<Placed>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { rest: &source, line: 1, line_starts: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.text_and_tag().map_err(|fault| fault.at(lexer.line))?;
    }
    lexer.tokens.push((Token::End, lexer.line));
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    /// Whether the last thing taken ended with a line break.
    line_starts: bool,
    tokens: Vec<Placed>,
}

impl<'a> Lexer<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        if !taken.is_empty() {
            self.line_starts = taken.ends_with('\n');
        }
        taken
    }

    fn take_space(&mut self) {
        let bytes = self.rest.len() - self.rest.trim_start_matches(is_space).len();
        self.take(bytes);
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    /// Text up to the next tag, and the tag.
    fn text_and_tag(&mut self) -> Answer<()> {
        let tag = self
            .rest
            .match_indices('{')
            .find(|(at, _)| matches!(self.rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let Some((at, _)) = tag else {
            let data = self.rest.to_owned();
            self.push(Token::Data(data));
            self.take(self.rest.len());
            return Ok(());
        };
        let kind = self.rest.as_bytes()[at + 1];
        let sign = self.rest[at + 2..].chars().next().filter(|sign| "-+".contains(*sign));
        let data = self.stripped(&self.rest[..at], sign, kind != b'{');
        if !data.is_empty() {
            self.push(Token::Data(data.to_owned()));
        }
        self.take(at);
        if kind == b'%' && self.raw(sign)? {
            return Ok(());
        }
        self.take(2 + usize::from(sign.is_some()));
        match kind {
            b'#' => self.comment(),
            b'%' => {
                self.push(Token::BlockBegin);
                self.inside("%}")
            }
            _ => {
                self.push(Token::VariableBegin);
                self.inside("}}")
            }
        }
    }

    /// The rest of a text before a tag.
    fn stripped(&self, text: &'a str, sign: Option<char>, block: bool) -> &'a str {
        match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if block => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[line..].chars().all(is_space);
                if (line > 0 || self.line_starts) && blank { &text[..line] } else { text }
            }
            _ => text,
        }
    }

    fn comment(&mut self) -> Answer<()> {
        let Some(at) = self.rest.find("#}") else {
            return Err(Fault::new("a comment has no end `#}`"));
        };
        let sign = self.rest[..at].chars().next_back().filter(|sign| "-+".contains(*sign));
        self.take(at + 2);
        self.behind_block(sign);
        Ok(())
    }

    /// Consumes the white space that a block's end removes from the following text.
    fn behind_block(&mut self, sign: Option<char>) {
        match sign {
            Some('-') => self.take_space(),
            None if self.rest.starts_with('\n') => {
                self.take(1);
            }
            _ => {}
        }
    }

    /// Reads a whole `raw` block, if one begins here.
    fn raw(&mut self, sign: Option<char>) -> Answer<bool> {
        let open = 2 + usize::from(sign.is_some());
        let Some((inside, trims)) = word_tag(&self.rest[open..], "raw") else { return Ok(false) };
        // A line break behind `{% raw %}` stays, unlike one behind other blocks.
        if trims == Some('+') {
            return Ok(false);
        }
        self.take(open + inside);
        if trims == Some('-') {
            self.take_space();
        }
        for (at, _) in self.rest.match_indices("{%") {
            let sign = self.rest[at + 2..].chars().next().filter(|sign| "-+".contains(*sign));
            let open = at + 2 + usize::from(sign.is_some());
            if let Some((inside, trims)) = word_tag(&self.rest[open..], "endraw") {
                let data = self.stripped(&self.rest[..at], sign, true);
                if !data.is_empty() {
                    self.push(Token::Data(data.to_owned()));
                }
                self.take(open + inside);
                self.behind_block(trims);
                return Ok(true);
            }
        }
        Err(Fault::new("`{% raw %}` has no `{% endraw %}`"))
    }

    /// Tokens up to the end of a tag.
    fn inside(&mut self, end: &'static str) -> Answer<()> {
        let mut open: Vec<&str> = Vec::new();
        loop {
            self.take_space();
            if self.rest.is_empty() {
                return Err(Fault::new(format!("a tag has no end `{end}`")));
            }
            if open.is_empty() && self.tag_end(end) {
                return Ok(());
            }
            let token = self.token()?;
            if let Token::Operator(operator) = token {
                match operator {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(operator) => {
                        return Err(Fault::new(format!("unexpected `{operator}`")));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Takes the end of a tag, if it is here.
    fn tag_end(&mut self, end: &str) -> bool {
        let block = end == "%}";
        let (sign, at) = match self.rest.as_bytes()[0] {
            b'-' => (Some('-'), 1),
            b'+' if block => (Some('+'), 1),
            _ => (None, 0),
        };
        if !self.rest[at..].starts_with(end) {
            return false;
        }
        self.push(if block { Token::BlockEnd } else { Token::VariableEnd });
        self.take(at + 2);
        if block || sign == Some('-') {
            self.behind_block(sign);
        }
        true
    }

    /// The next token inside a tag.
    fn token(&mut self) -> Answer<Token> {
        let rest = self.rest;
        let first = rest.chars().next().unwrap_or_default();
        let (token, bytes) = if first.is_ascii_digit() {
            let after_dot = matches!(self.tokens.last(), Some((Token::Operator("."), _)));
            number(rest, after_dot)?
        } else if first == '_' || first.is_alphabetic() {
            let bytes = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            (Token::Name(rest[..bytes].to_owned()), bytes)
        } else if first == '"' || first == '\'' {
            let bytes = string_end(rest, first).ok_or_else(|| Fault::new("a text has no closing quote"))?;
            (Token::Text(unescape(&rest[1..bytes - 1])?), bytes)
        } else {
            let known = OPERATORS.into_iter().find(|operator| rest.starts_with(operator));
            let operator = known.ok_or_else(|| Fault::new(format!("unexpected character {first:?}")))?;
            (Token::Operator(operator), operator.len())
        };
        self.push(token.clone());
        self.take(bytes);
        Ok(token)
    }
}

/// The length of ` word %}` and the sign before its end, if the tag continues with that.
fn word_tag(rest: &str, word: &str) -> Option<(usize, Option<char>)> {
    let inside = rest.trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space);
    let sign = inside.chars().next().filter(|sign| "-+".contains(*sign));
    let behind = inside[usize::from(sign.is_some())..].strip_prefix("%}")?;
    Some((rest.len() - behind.len(), sign))
}

/// Bytes up to and with the closing quote.
fn string_end(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = true; // the opening quote closes nothing
    for (at, character) in rest.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// A number and its length. Behind a dot (`x.0.1`) only digits count.
fn number(rest: &str, after_dot: bool) -> Answer<(Token, usize)> {
    let digits = |from: usize| {
        let mut end = from;
        let bytes = rest.as_bytes();
        while bytes.get(end).is_some_and(u8::is_ascii_digit)
            || end > from
                && bytes.get(end) == Some(&b'_')
                && bytes.get(end + 1).is_some_and(u8::is_ascii_digit)
        {
            end += 1;
        }
        end
    };
    let (whole, bytes) = (digits(0), rest.as_bytes());
    let mut end = whole;
    if !after_dot {
        if bytes.get(end) == Some(&b'.') && digits(end + 1) > end + 1 {
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if digits(end + 1 + sign) > end + 1 + sign {
                end = digits(end + 1 + sign);
            }
        }
        if end > whole {
            let text = rest[..end].replace('_', "");
            let value = text.parse().map_err(|_| Fault::new(format!("`{text}` is no number")))?;
            return Ok((Token::Float(value), end));
        }
        if let Some((value, end)) = radix(rest) {
            return Ok((Token::Int(value), end));
        }
    }
    let text = rest[..whole].replace('_', "");
    if text.len() > 1 && text.starts_with('0') && !text.trim_start_matches('0').is_empty() {
        return Err(Fault::new(format!("the number `{text}` begins with 0")));
    }
    let value = text.parse().map_err(|_| Fault::new(format!("the number {text} is too large")))?;
    Ok((Token::Int(value), whole))
}

/// A number with the prefix `0x`, `0o` or `0b`, and its length.
fn radix(rest: &str) -> Option<(i128, usize)> {
    let base = match rest.get(..2)? {
        "0x" | "0X" => 16,
        "0o" | "0O" => 8,
        "0b" | "0B" => 2,
        _ => return None,
    };
    let behind = &rest[2..];
    let bytes = behind.find(|c: char| c != '_' && !c.is_digit(base)).unwrap_or(behind.len());
    let value = i128::from_str_radix(&behind[..bytes].replace('_', ""), base).ok()?;
    Some((value, 2 + bytes))
}

/// The text of a literal, with Python's escapes.
fn unescape(literal: &str) -> Answer<String> {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let Some(escape) = behind.chars().next() else { break };
        let plain = |c: char| (Some(c), 1);
        let (character, bytes) = match escape {
            'n' => plain('\n'),
            't' => plain('\t'),
            'r' => plain('\r'),
            'a' => plain('\u{7}'),
            'b' => plain('\u{8}'),
            'f' => plain('\u{c}'),
            'v' => plain('\u{b}'),
            '\\' | '\'' | '"' => plain(escape),
            '\n' => (None, 1),
            '0'..='7' => {
                let bytes = behind.bytes().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
                (u32::from_str_radix(&behind[..bytes], 8).ok().and_then(char::from_u32), bytes)
            }
            'x' => code(behind, 2)?,
            'u' => pair(behind)?,
            'U' => code(behind, 8)?,
            'N' => return Err(Fault::new("a text names a character with `\\N`, which is not known here")),
            // Python encodes non-ASCII characters before it looks for escapes, and the backslash stays with the code.
            other if !other.is_ascii() => {
                let (number, digits) = (other as u32, other.len_utf8());
                text.push('\\');
                text.push_str(&match number {
                    0..=0xff => format!("x{number:02x}"),
                    0x100..=0xffff => format!("u{number:04x}"),
                    _ => format!("U{number:08x}"),
                });
                (None, digits)
            }
            other => {
                text.push('\\');
                plain(other)
            }
        };
        text.extend(character);
        rest = &behind[bytes..];
    }
    text.push_str(rest);
    Ok(text)
}

/// The character given by this many hexadecimal digits after a letter.
fn code(behind: &str, digits: usize) -> Answer<(Option<char>, usize)> {
    let number = behind.get(1..=digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let character = number.and_then(char::from_u32);
    let wrong = || Fault::new(format!("a text has an escape `\\{}` that is no character", &behind[..1]));
    Ok((Some(character.ok_or_else(wrong)?), 1 + digits))
}

/// The character of `uXXXX`, or of two of them that stand for one.
fn pair(behind: &str) -> Answer<(Option<char>, usize)> {
    let half = |text: Option<&str>| text.and_then(|text| u16::from_str_radix(text, 16).ok());
    let (first, second) = (half(behind.get(1..5)), half(behind.get(7..11)));
    if let (Some(first), Some(second), Some("\\u")) = (first, second, behind.get(5..7))
        && let Some(Ok(character)) = char::decode_utf16([first, second]).next()
        && character.len_utf16() == 2
    {
        return Ok((Some(character), 11));
    }
    code(behind, 4)
}
