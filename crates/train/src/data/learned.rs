//! Samples for people to read, with the learned parts marked.
//!
//! Samples are numbered by their rows: a long text is cut into rows, and a row may hold several short ones. They are
//! read back from the rows of the run, so they show exactly what is trained on: after rendering, tokenising, cutting
//! and packing. Padding is left out.

use super::{DataError, IGNORED, Sequence, Source, Task, Tokenizer};

/// A sample, or the piece of one that lies in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The row of the first epoch in which the sample lies, counted from 1.
    pub row: u64,
    /// Its place among the texts of that row, counted from 1, and how many there are.
    pub place: (usize, usize),
    /// The sample's text in order.
    pub parts: Vec<ShownPart>,
    /// The sample's class, where the task is classification.
    pub class: Option<i32>,
}

/// Text of a sample that is learned as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPart {
    /// The text, special tokens included.
    pub text: String,
    /// Whether the part is learned.
    pub learned: bool,
}

/// The first `most` samples of the first epoch.
pub(crate) fn shown(
    source: &mut Source,
    tokenizer: &Tokenizer,
    task: &Task,
    most: usize,
) -> Result<Vec<Shown>, DataError> {
    let mut samples = Vec::new();
    let mut row = Sequence::with_positions(source.seq_len());
    let rows = source.sequences_per_epoch().unwrap_or(u64::MAX);
    for index in (0..rows).take(most) {
        source.fill(0, index, &mut row)?;
        let documents = documents(&row, source.pad(), task);
        let texts = documents.len();
        let placed = documents.into_iter().enumerate().map(|(at, document)| Shown {
            row: index + 1,
            place: (at + 1, texts),
            ..sample(document, tokenizer)
        });
        samples.extend(placed);
        if samples.len() >= most {
            break;
        }
    }
    samples.truncate(most);
    Ok(samples)
}

/// A document of a row: its ids, whether each is learned, and its class.
#[derive(Debug, Default, PartialEq, Eq)]
struct Document {
    ids: Vec<(i32, bool)>,
    class: Option<i32>,
}

fn documents(row: &Sequence, pad: i32, task: &Task) -> Vec<Document> {
    let Sequence { tokens, targets, doc_start } = row;
    let mut documents = Vec::new();
    let mut from = 0;
    while from < tokens.len() {
        let len = doc_start[from..].iter().take_while(|&&start| start == doc_start[from]).count();
        let (ids, asked) = (&tokens[from..from + len], &targets[from..from + len]);
        let is_padding = ids.iter().all(|&id| id == pad) && asked.iter().all(|&target| target == IGNORED);
        if !is_padding {
            documents.push(document(ids, asked, task));
        }
        from += len;
    }
    documents
}

fn document(ids: &[i32], targets: &[i32], task: &Task) -> Document {
    match task {
        // A token is learned at the position before it, and the last target stands in no position.
        Task::Causal => {
            let shifted = std::iter::once(IGNORED).chain(targets.iter().copied());
            let read = ids.iter().zip(shifted).map(|(&id, target)| (id, target != IGNORED));
            let last = targets.last().filter(|&&target| target != IGNORED).map(|&target| (target, true));
            Document { ids: read.chain(last).collect(), class: None }
        }
        // Hidden characters are shown.
        Task::Masked => {
            let hidden = |(&id, &target): (&i32, &i32)| {
                if target == IGNORED { (id, false) } else { (target, true) }
            };
            Document { ids: ids.iter().zip(targets).map(hidden).collect(), class: None }
        }
        Task::Classify { .. } => Document {
            ids: ids.iter().map(|&id| (id, false)).collect(),
            class: targets.first().copied().filter(|&class| class != IGNORED),
        },
    }
}

fn sample(document: Document, tokenizer: &Tokenizer) -> Shown {
    let (ids, learned): (Vec<i32>, Vec<bool>) = document.ids.into_iter().unzip();
    let mut parts: Vec<ShownPart> = Vec::new();
    let (mut begin, mut told) = (0, 0);
    for end in 1..=ids.len() {
        if end < ids.len() && learned[end] == learned[begin] {
            continue;
        }
        // The text of all ids so far: some tokenizers write an id differently where it opens a text.
        let text = tokenizer.decode_whole(&ids[..end]);
        let whole = end == ids.len() || !text.ends_with(char::REPLACEMENT_CHARACTER);
        let new = if whole { text.get(told..).unwrap_or_default() } else { "" };
        if whole {
            told = text.len();
        }
        match parts.last_mut() {
            Some(part) if part.learned == learned[begin] => part.text.push_str(new),
            _ if new.is_empty() => {}
            _ => parts.push(ShownPart { text: new.to_owned(), learned: learned[begin] }),
        }
        begin = end;
    }
    Shown { parts, class: document.class, ..Shown::default() }
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tests::open;
    use super::*;

    const X: i32 = IGNORED;

    fn text(shown: &Shown) -> String {
        let part =
            |part: &ShownPart| if part.learned { format!("[{}]", part.text) } else { part.text.clone() };
        shown.parts.iter().map(part).collect()
    }

    fn row(tokens: &[i32], targets: &[i32], doc_start: &[i32]) -> Sequence {
        Sequence { tokens: tokens.to_vec(), targets: targets.to_vec(), doc_start: doc_start.to_vec() }
    }

    fn read(row: &Sequence, task: &Task) -> Vec<Shown> {
        let tokenizer = Tokenizer::bytes();
        documents(row, 258, task).into_iter().map(|ids| sample(ids, &tokenizer)).collect()
    }

    #[test]
    fn packed_documents_are_shown_apart_without_padding() {
        let [a, b, c, d] = [97, 98, 99, 100];
        let packed = row(&[a, b, c, d, 258, 258], &[X, c, d, a, X, X], &[0, 0, 2, 2, 4, 4]);
        let shown = read(&packed, &Task::Causal);
        assert_eq!(shown.iter().map(text).collect::<Vec<_>>(), ["ab[c]", "c[da]"]);
    }

    #[test]
    fn hidden_words_and_classes_are_shown_as_what_is_learned() {
        let [a, b, c] = [97, 98, 99];
        let masked = row(&[a, 5, c], &[X, b, X], &[0; 3]);
        assert_eq!(read(&masked, &Task::Masked).iter().map(text).collect::<Vec<_>>(), ["a[b]c"]);
        let classified = row(&[a, b, 258], &[1, X, X], &[0, 0, 2]);
        let shown = read(&classified, &Task::Classify { labels: Vec::new() });
        assert_eq!((text(&shown[0]).as_str(), shown[0].class), ("ab", Some(1)));
    }

    #[test]
    fn half_a_character_waits_for_its_other_half() {
        let e: Vec<i32> = "é!".bytes().map(i32::from).collect();
        let split = Document { ids: vec![(e[0], false), (e[1], true), (e[2], true)], class: None };
        assert_eq!(text(&sample(split, &Tokenizer::bytes())), "[é!]");
    }

    #[test]
    fn special_tokens_and_leading_blanks_are_shown() {
        for name in ["chatml", "llama3"] {
            let tokenizer = open(name);
            let whole = "<|im_start|>user\n Hello world";
            let ids = tokenizer.encode_plain(whole).unwrap();
            let half = ids.len() / 2;
            let ids = ids.into_iter().enumerate().map(|(at, id)| (id, at >= half)).collect();
            let shown = sample(Document { ids, class: None }, &tokenizer);
            assert_eq!(text(&shown).replace(['[', ']'], ""), whole, "{name}");
        }
    }
}
