//! Kinds of characters, as Python has them.

/// White space as in Python: Unicode's, and four separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Whether Python's `repr` shows a character as it is.
pub(super) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    // `escape_debug` also escapes a combining character, but only at the start of a text; so another character stands
    // before it.
    let mut escaped = String::from("a");
    escaped.push(character);
    escaped.escape_debug().nth(1).is_none_or(|first| first != '\\')
}

/// Whether a letter is a small one, a large one or one that begins words.
pub(super) fn has_case(character: char) -> bool {
    let begins_words = matches!(
        character,
        'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}'
            | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}'
    );
    character.is_lowercase() || character.is_uppercase() || begins_words
}

/// The titlecase form of a letter, which for a few differs from the uppercase form: `ǆ` becomes `ǅ`, and `Ǆ` in
/// capitals.
pub(super) fn titled(character: char) -> String {
    let one = |code: u32| char::from_u32(code).unwrap_or(character).to_string();
    let upper = || character.to_uppercase();
    match character as u32 {
        0x149 => upper().collect(),
        code @ 0x1c4..=0x1cc => one(code - (code - 0x1c4) % 3 + 1),
        0x1f1..=0x1f3 => one(0x1f2),
        0x10d0..=0x10fa | 0x10fd..=0x10ff => character.to_string(),
        code @ (0x1f80..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc) => one(code | 8),
        code @ (0x1fb3 | 0x1fc3 | 0x1ff3) => one(code + 9),
        // An iota that is written below the letter stays below it.
        0x1fb2 | 0x1fb4 | 0x1fb7 | 0x1fc2 | 0x1fc4 | 0x1fc7 | 0x1ff2 | 0x1ff4 | 0x1ff7 => {
            upper().map(|part| if part == '\u{399}' { '\u{345}' } else { part }).collect()
        }
        _ => upper().take(1).chain(upper().skip(1).flat_map(char::to_lowercase)).collect(),
    }
}

/// Whether all letters that have a case have this one, and there is one.
pub(super) fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}
