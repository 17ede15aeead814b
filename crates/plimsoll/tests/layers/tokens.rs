//! Rust source as words and signs, without comments and texts.

/// The tokens of a source: identifiers, `::`, and every other sign by itself.
pub(crate) fn tokens(source: &str) -> Vec<String> {
    let mut rest = Source { left: source };
    let mut tokens = Vec::new();
    while let Some(next) = rest.left.chars().next() {
        if rest.skip_comment() || rest.skip_text() {
            continue;
        }
        if next.is_alphanumeric() || next == '_' {
            let end = rest.left.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.left.len());
            tokens.push(rest.take(end));
        } else if rest.left.starts_with("::") {
            tokens.push(rest.take(2));
        } else if next.is_whitespace() {
            rest.take(next.len_utf8());
        } else {
            tokens.push(rest.take(next.len_utf8()));
        }
    }
    tokens
}

/// The rest of a source.
struct Source<'a> {
    left: &'a str,
}

impl Source<'_> {
    fn take(&mut self, bytes: usize) -> String {
        let (taken, left) = self.left.split_at(bytes);
        self.left = left;
        taken.to_owned()
    }

    /// Goes behind the end of `end`, or to the end of the source.
    fn skip_past(&mut self, from: usize, end: &str) -> bool {
        let at = self.left[from..].find(end).map_or(self.left.len(), |at| from + at + end.len());
        self.left = &self.left[at..];
        true
    }

    fn skip_comment(&mut self) -> bool {
        (self.left.starts_with("//") && self.skip_past(2, "\n"))
            || (self.left.starts_with("/*") && self.skip_past(2, "*/"))
    }

    /// Passes over a text, a raw text or a character. A lifetime is none of them.
    fn skip_text(&mut self) -> bool {
        if self.left.starts_with("r\"") {
            return self.skip_past(2, "\"");
        }
        if self.left.starts_with("r#\"") {
            return self.skip_past(3, "\"#");
        }
        if self.left.starts_with('"') {
            return self.skip_quoted('"');
        }
        let mut after = self.left.chars().skip(1);
        let character =
            self.left.starts_with('\'') && (after.next() == Some('\\') || after.next() == Some('\''));
        character && self.skip_quoted('\'')
    }

    fn skip_quoted(&mut self, quote: char) -> bool {
        let mut escaped = false;
        for (at, c) in self.left.char_indices().skip(1) {
            if c == quote && !escaped {
                self.left = &self.left[at + 1..];
                return true;
            }
            escaped = c == '\\' && !escaped;
        }
        self.left = "";
        true
    }
}
