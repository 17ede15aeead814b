//! Kinds of characters, as Python has them.

/// White space as Python has it: Unicode's, and four separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Whether Python's `repr` shows a character as it is.
pub(super) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // Behind another character, only what cannot be printed is escaped.
    let mut escaped = String::from("a");
    escaped.push(character);
    escaped.escape_debug().nth(1).is_none_or(|first| first != '\\')
}

/// Whether all letters that have a case have this one, and there is one.
pub(super) fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}
