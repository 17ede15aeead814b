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

/// The characters for 0 of all scripts, as of Unicode 14; those for 1 to 9 follow each.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50,
    0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40,
    0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066,
    0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950,
    0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6,
    0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// The value of a decimal digit of any script.
pub(super) fn decimal(character: char) -> Option<u32> {
    let code = character as u32;
    let script = ZEROS.partition_point(|zero| *zero <= code).checked_sub(1)?;
    Some(code - ZEROS[script]).filter(|digit| *digit < 10)
}

/// Whether Python's `isdigit` holds: decimal digits, and those that are raised, lowered or circled.
pub(super) fn is_digit(character: char) -> bool {
    decimal(character).is_some()
        || matches!(
            character,
            '\u{b2}'..='\u{b3}' | '\u{b9}' | '\u{1369}'..='\u{1371}' | '\u{19da}' | '\u{2070}' | '\u{2074}'..='\u{2079}'
                | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}' | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}'
                | '\u{24ea}' | '\u{24f5}'..='\u{24fd}' | '\u{24ff}' | '\u{2776}'..='\u{277e}' | '\u{2780}'..='\u{2788}'
                | '\u{278a}'..='\u{2792}' | '\u{10a40}'..='\u{10a43}' | '\u{10e60}'..='\u{10e68}'
                | '\u{11052}'..='\u{1105a}' | '\u{1f100}'..='\u{1f10a}'
        )
}

/// The form of a letter for comparisons without case. Cherokee is compared by its capitals.
pub(super) fn folded(character: char) -> String {
    let one = |code: u32| char::from_u32(code).unwrap_or(character).to_string();
    match character as u32 {
        0x131 | 0x13a0..=0x13f5 => character.to_string(),
        code @ 0x13f8..=0x13fd => one(code - 8),
        code @ 0xab70..=0xabbf => one(code - 0xab70 + 0x13a0),
        // The small form of the capitals: `ß` has the capitals SS.
        _ => character.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect(),
    }
}

/// Whether all letters that have a case have this one, and there is one.
pub(super) fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}
