//! Long texts through a tokenizer in windows, so that what it holds meanwhile does not grow with the text.
//!
//! ```text
//! text      ............................................
//! left      [ tokens of the first window    |····]            ···· may be wrong: the text was cut off behind them
//! right                              [····| tokens of the next window   ]
//!                                         ^ the seam: both say the same, for some tokens before it and behind it
//! ```
//!
//! Tokens depend on what is near them. Splitting by a pattern goes on from a boundary without looking back, and a
//! sequence of byte pairs is right when all its neighbours are, so where two windows agree on tokens and places, one
//! may be continued by the other. Where they do not agree, as within a word that has to be seen whole, the window grows.

use super::sample::Fault;
use super::tokenizer::Placed;
use crate::reading;

/// Bytes of a window, and of those that the next sees too.
pub(super) const WINDOW: usize = 4096;
const OVERLAP: usize = 512;
/// Tokens that two windows must agree on.
const AGREED: usize = 8;

/// Tells `each` the tokens of a text. No more than `most` bytes, or a window, are given to `encode` at once.
///
/// # Errors
///
/// When windows of that length find no seam, or the tokenizer cannot read the text.
pub(super) fn encode(
    text: &str,
    most: usize,
    encode: impl Fn(&str) -> Result<Vec<Placed>, Fault>,
    mut each: impl FnMut(Placed),
) -> Result<(), Fault> {
    let window = |from: usize, len: usize| {
        let from = text.floor_char_boundary(from);
        let to = text.floor_char_boundary(from.saturating_add(len));
        reading::step();
        let shifted = |(id, (a, b)): Placed| (id, (a + from, b + from));
        let tokens: Vec<Placed> = encode(&text[from..to])?.into_iter().map(shifted).collect();
        Ok::<_, Fault>((from, to, tokens))
    };
    let (mut from, mut to, mut left) = window(0, WINDOW)?;
    // Tokens of the window that the one before it has told already.
    let mut told = 0;
    while to < text.len() {
        let (next, end, right) = window(to - OVERLAP, WINDOW)?;
        if let Some((behind, ahead)) = seam(&left[told..], &right) {
            left[told..told + behind].iter().copied().for_each(&mut each);
            (from, to, left, told) = (next, end, right, ahead);
            continue;
        }
        let len = 2 * (to - from);
        if len > most.max(WINDOW) {
            return Err(Fault::Unbroken(len));
        }
        let last = told.checked_sub(1).map(|last| left[last]);
        (from, to, left) = window(from, len)?;
        told = match last {
            None => 0,
            Some(last) => left.iter().position(|token| *token == last).ok_or(Fault::Unbroken(len))? + 1,
        };
    }
    left[told..].iter().copied().for_each(each);
    Ok(())
}

/// A place in both lists, of tokens in the order of their text, before and behind which they agree.
fn seam(left: &[Placed], right: &[Placed]) -> Option<(usize, usize)> {
    let mut at = 0;
    for (begin, &(_, (from, _))) in left.iter().enumerate() {
        while right.get(at).is_some_and(|&(_, (other, _))| other < from) {
            at += 1;
        }
        let agreed = left[begin..].iter().zip(right.get(at..)?).take_while(|(a, b)| a == b).count();
        if agreed >= AGREED {
            // In the middle, and not between two tokens of one character.
            let middle = agreed / 2..agreed - 1;
            let apart = |&ahead: &usize| left[begin + ahead - 1].1.1 <= left[begin + ahead].1.0;
            return middle.into_iter().find(apart).map(|ahead| (begin + ahead, at + ahead));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::tests::open;

    fn stitched(name: &str, text: &str, most: usize) -> Result<Vec<Placed>, Fault> {
        let (tokenizer, mut tokens) = (open(name), Vec::new());
        encode(text, most, |part| Ok(tokenizer.encode_placed(part)?), |token| tokens.push(token))?;
        Ok(tokens)
    }

    #[test]
    fn a_long_text_in_windows_has_the_tokens_and_places_of_the_whole() {
        let words = (0..4000u64)
            .map(|n| format!("Line {n}: the harbour's {} boats, “ünïcödé” 漢字 🚢", n * n * 7919));
        let words: Vec<String> = words.collect();
        let texts = [
            words.join("\n"),
            words.join(" "),
            words.concat().replace(' ', ""),
            "漢字かな交じり文".repeat(4000),
        ];
        for name in ["chatml", "llama3", "bert"] {
            for text in &texts {
                let whole = open(name).encode_placed(text).unwrap();
                assert!(stitched(name, text, usize::MAX).unwrap() == whole, "{name}: {text:.40}");
            }
        }
    }

    #[test]
    fn words_that_must_be_seen_whole_make_the_window_grow_as_far_as_it_may() {
        // A word of more than 100 letters is one unknown token, however long; digits go in threes from the first.
        let word = format!("a {} b {}", "x".repeat(20_000), "1".repeat(20_001));
        for name in ["bert", "llama3", "chatml"] {
            let whole = open(name).encode_placed(&word).unwrap();
            assert_eq!(stitched(name, &word, usize::MAX).unwrap(), whole, "{name}");
        }
        assert!(matches!(stitched("bert", &word, 0), Err(Fault::Unbroken(bytes)) if bytes > WINDOW));
    }

    #[test]
    fn windows_that_disagree_have_no_seam() {
        let tokens: Vec<Placed> = (0..20).map(|n| (n as i32, (n, n + 1))).collect();
        assert_eq!(seam(&tokens, &tokens[10..]), Some((15, 5)));
        let shifted: Vec<Placed> = tokens.iter().map(|&(id, (a, b))| (id, (a + 1, b + 1))).collect();
        assert_eq!(seam(&tokens, &shifted), None);
        assert_eq!(seam(&tokens, &tokens[13..]), None, "too few to tell");
        let halves: Vec<Placed> = (0..20).map(|n| (n, (0, 4))).collect();
        assert_eq!(seam(&halves, &halves), None, "all of one character");
    }
}
