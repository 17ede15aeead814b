//! Long texts pass a tokenizer in windows, so that its memory does not grow with the text.
//!
//! ```text
//! text      ............................................
//! left      [ tokens of the first window    |····]            ···· may be wrong: the text was cut off behind them
//! right                              [····| tokens of the next window   ]
//!                                         ^ the seam: both say the same, for some tokens before it and behind it
//! ```
//!
//! Tokens depend only on nearby text. Splitting by a pattern continues from a boundary without looking back, and a
//! sequence of byte pairs is right when all neighbouring pairs are. So where two windows agree on tokens and places,
//! one may continue the other. A window begins where a token of the window before it begins, so both agree also within
//! a run that is cut by counting, such as digits in threes or one letter repeated endlessly. Where they disagree, as
//! within a word that must be seen whole, windows and their overlap grow. A tokenizer that splits all words at spaces
//! is then also cut there, before the last space of a window.

use super::fault::Fault;
use crate::reading;

/// After this many windows of a long text, another thread continues. The library caches every word it has met, at 32
/// bytes for each byte of it, for the life of the thread.
pub(super) const WINDOWS_PER_THREAD: usize = 16;
/// Bytes of a window at first.
pub(super) const WINDOW: usize = 4096;
/// The share of a window that the next sees too.
const SHARED: usize = 8;
/// Tokens that two windows must agree on.
const AGREED: usize = 8;

/// An id and the bytes of the text it stands for.
pub(super) type Placed = (i32, (usize, usize));

/// A text on its way through a tokenizer.
pub(super) struct Windows<'a, E> {
    text: &'a str,
    encode: E,
    limits: Limits,
    /// The current window.
    from: usize,
    to: usize,
    tokens: Vec<Placed>,
    /// Tokens of the window that were passed on, by it or by the window before it.
    told: usize,
}

/// How a text may be taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most bytes of a window, if larger than [`WINDOW`].
    pub(super) most: usize,
    /// Whether tokens never reach across a space, and never depend on an earlier token.
    pub(super) parts_at_spaces: bool,
}

impl<'a, E: Fn(&str) -> Result<Vec<Placed>, Fault>> Windows<'a, E> {
    pub(super) fn new(text: &'a str, limits: Limits, encode: E) -> Windows<'a, E> {
        Windows { text, encode, limits, from: 0, to: 0, tokens: Vec::new(), told: 0 }
    }

    /// Passes to `each` the tokens up to the next seam; `false` if these were the last.
    ///
    /// # Errors
    ///
    /// When windows of the greatest allowed length find no seam, or the tokenizer cannot read the text.
    pub(super) fn next(&mut self, each: &mut impl FnMut(Placed)) -> Result<bool, Fault> {
        if self.to == 0 {
            (self.from, self.to, self.tokens) = self.window(0, WINDOW)?;
        }
        if self.to == self.text.len() {
            self.tell(self.tokens.len(), each);
            return Ok(false);
        }
        let shared = self.shared_from();
        // Windows that had to grow become short again by and by.
        let ahead = (WINDOW - WINDOW / SHARED).max((self.to - self.from) / 4);
        let (from, to, right) = self.window(shared, self.to - shared + ahead)?;
        if let Some((behind, ahead)) = seam(&self.tokens[self.told..], &right) {
            self.tell(self.told + behind, each);
            (self.from, self.to, self.tokens, self.told) = (from, to, right, ahead);
        } else if let Some(space) = self.last_space() {
            let before = self.tokens.iter().take_while(|(_, (_, end))| *end <= space).count();
            self.tell(before, each);
            (self.from, self.to, self.tokens) = self.window(space, WINDOW)?;
            self.told = 0;
        } else {
            drop(right);
            self.grow()?;
        }
        Ok(true)
    }

    /// Tells the tokens before the one at `end`.
    fn tell(&mut self, end: usize, each: &mut impl FnMut(Placed)) {
        self.tokens[self.told..end.max(self.told)].iter().copied().for_each(each);
        self.told = end;
    }

    /// A window of the text, shorter at the end, with its tokens.
    fn window(&self, from: usize, len: usize) -> Result<(usize, usize, Vec<Placed>), Fault> {
        let from = self.text.floor_char_boundary(from);
        let to = self.text.floor_char_boundary(from.saturating_add(len));
        reading::step();
        let mut tokens = (self.encode)(&self.text[from..to])?;
        for (_, (a, b)) in &mut tokens {
            (*a, *b) = (*a + from, *b + from);
        }
        Ok((from, to, tokens))
    }

    /// Where the next window begins: at a token in the last part of this window, which both windows see.
    fn shared_from(&self) -> usize {
        let from = self.to - (self.to - self.from) / SHARED;
        let mut begins = self.tokens.iter().rev().map(|&(_, (begin, _))| begin);
        begins.find(|&begin| begin <= from).filter(|&begin| begin > self.from).unwrap_or(from)
    }

    /// The last space of the window that has a token already passed on before it, if the text may be cut at spaces.
    fn last_space(&self) -> Option<usize> {
        if !self.limits.parts_at_spaces {
            return None;
        }
        let told = self.told.checked_sub(1).map_or(self.from, |last| self.tokens[last].1.1);
        let spaces = self.text.as_bytes()[..self.to].iter().rposition(|&byte| byte == b' ');
        spaces.filter(|&space| space > told && space > self.from)
    }

    /// Takes the window again, twice as long.
    fn grow(&mut self) -> Result<(), Fault> {
        let len = (2 * (self.to - self.from)).min(self.text.len() - self.from);
        if len > self.limits.most.max(WINDOW) {
            return Err(Fault::Unbroken(self.surely_enough().max(len)));
        }
        let last = self.told.checked_sub(1).map(|last| self.tokens[last]);
        (self.from, self.to, self.tokens) = self.window(self.from, len)?;
        self.told = match last {
            None => 0,
            Some(last) => {
                let place = self.tokens.iter().position(|token| *token == last);
                place.ok_or_else(|| Fault::Unbroken(self.surely_enough()))? + 1
            }
        };
        Ok(())
    }

    /// Bytes of windows that surely suffice for the rest of the text: all of it, or its longest run without a space if
    /// the text may be cut at spaces. Windows double, and begin up to half a run before it.
    fn surely_enough(&self) -> usize {
        let rest = &self.text.as_bytes()[self.from..];
        if !self.limits.parts_at_spaces {
            return rest.len();
        }
        let longest = rest.split(|&byte| byte == b' ').map(<[u8]>::len).max().unwrap_or(0);
        (3 * longest + 4 * WINDOW).min(rest.len())
    }
}

/// A place in both lists of tokens, before and after which they agree.
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
        let limits = Limits { most, parts_at_spaces: tokenizer.parts_at_spaces() };
        let mut windows = Windows::new(text, limits, |part| Ok(tokenizer.encode_placed(part)?));
        while windows.next(&mut |token| tokens.push(token))? {}
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
    fn runs_that_are_cut_by_counting_need_no_longer_window() {
        let runs = format!("a {} b {}  {}", "x".repeat(20_000), "1".repeat(20_001), "\n".repeat(9000));
        for name in ["llama3", "chatml"] {
            let whole = open(name).encode_placed(&runs).unwrap();
            assert!(stitched(name, &runs, 0).unwrap() == whole, "{name}");
        }
    }

    #[test]
    fn words_that_must_be_seen_whole_make_the_window_grow_as_far_as_it_may() {
        // A word of more than 100 letters is one unknown token, however long.
        let word = |len: usize| "x".repeat(len);
        let one = format!("a {} b {}", word(20_000), "1".repeat(20_001));
        let many = [word(5000), word(70), word(5000), word(3000)].join(" ").repeat(9);
        for text in [&one, &many] {
            let whole = open("bert").encode_placed(text).unwrap();
            assert_eq!(stitched("bert", text, usize::MAX).unwrap(), whole);
            let Err(Fault::Unbroken(enough)) = stitched("bert", text, 0) else {
                panic!("longer than a window")
            };
            assert_eq!(stitched("bert", text, enough).unwrap(), whole, "what is said to be enough is");
        }
        let Err(Fault::Unbroken(enough)) = stitched("bert", &many, 0) else { panic!("longer than a window") };
        assert!(enough < many.len(), "words are cut apart at spaces");
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
