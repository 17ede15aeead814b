//! The printed summary of the samples before a run: their number, the tokens beyond the first row, and the first samples with
//! their learned parts marked.

use std::fmt::Write as _;

use plimsoll::training::OpenedData;
use plimsoll::training::data::{Counts, Shown, Task};
use plimsoll::training::job::class_of;

use crate::exit::printable;

/// Marks around learned text where there is no colour.
const MARKS: [&str; 2] = ["⟦", "⟧"];
/// Green, and back.
const COLOURS: [&str; 2] = ["\u{1b}[32m", "\u{1b}[0m"];

/// One or two lines about the data of a run.
pub(crate) fn counted(data: &OpenedData, task: &Task, seq_len: usize) -> String {
    let Some(counts) = data.counts else {
        let rows = data.train.sequences_per_epoch();
        return rows
            .map_or_else(String::new, |rows| format!("data: {} of {seq_len} tokens\n", number(rows, "row")));
    };
    sentences(&counts, task, seq_len)
}

fn sentences(counts: &Counts, task: &Task, seq_len: usize) -> String {
    let &Counts { samples, rows, tokens, cut, beyond, unread } = counts;
    let mut text = format!(
        "data: {} in {} of {seq_len} tokens; {} in all rows together\n",
        number(samples, "sample"),
        number(rows, "row"),
        number(tokens, "token")
    );
    if cut == 0 {
        return text;
    }
    let why = match task {
        Task::Classify { .. } => "since a classifier reads one row of a text",
        Task::Causal | Task::Masked => "since their rows have nothing to learn",
    };
    let mut fates = Vec::new();
    if beyond > 0 {
        let lie = if beyond == 1 { "lies in a further row" } else { "lie in further rows" };
        fates.push(format!("{} of these tokens {lie}, without the text before", grouped(beyond)));
    }
    if unread > 0 {
        let are = if unread == 1 { "is" } else { "are" };
        fates.push(format!("{} {are} left out, {why}", number(unread, "more token")));
    }
    let longer = if cut == 1 { "is" } else { "are" };
    let _ = writeln!(
        text,
        "{} {longer} longer than --seq-len {seq_len}: {}",
        number(cut, "sample"),
        fates.join(", and ")
    );
    text
}

/// `1 row`, `12,345 rows`.
fn number(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(count))
}

/// `12,345`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Samples for a terminal, or for a file where `colour` is not set.
pub(crate) fn text(samples: &[Shown], labels: &[String], colour: bool) -> String {
    let [begin, end] = if colour { COLOURS } else { MARKS };
    let mut text = String::new();
    for sample in samples {
        let place = match sample.place {
            (_, ..=1) => String::new(),
            (at, of) => format!(", text {at} of {of}"),
        };
        let _ = writeln!(text, "row {}{place}, {begin}learned{end}:", sample.row);
        for part in &sample.parts {
            let words = part.text.split_inclusive('\n').map(|line| match line.strip_suffix('\n') {
                Some(line) => printable(line) + "\n",
                None => printable(line),
            });
            let words: String = words.collect();
            let _ = if part.learned { write!(text, "{begin}{words}{end}") } else { write!(text, "{words}") };
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        if let Some(class) = class_of(sample, labels) {
            let _ = writeln!(text, "{begin}{}{end}", printable(&class));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use plimsoll::training::data::ShownPart;

    use super::*;

    fn sample() -> Shown {
        let part = |text: &str, learned| ShownPart { text: text.into(), learned };
        let parts = vec![part("<user>\nhi\u{1b}[0m\n", false), part("hello</s>", true)];
        Shown { row: 1, place: (1, 1), parts, class: None }
    }

    #[test]
    fn learned_text_is_marked_with_and_without_colour_and_nothing_else_steers_the_terminal() {
        let plain = text(&[sample()], &[], false);
        assert_eq!(plain, "row 1, ⟦learned⟧:\n<user>\nhi\\u{1b}[0m\n⟦hello</s>⟧\n");
        let coloured = text(&[sample()], &[], true);
        assert_eq!(coloured.matches('\u{1b}').count(), 4);
    }

    #[test]
    fn a_text_is_numbered_by_its_row_and_its_place_there() {
        let shown = |row, place| text(&[Shown { row, place, ..sample() }], &[], false);
        assert!(shown(3, (1, 1)).starts_with("row 3, ⟦learned⟧:\n"));
        assert!(shown(3, (2, 4)).starts_with("row 3, text 2 of 4, ⟦learned⟧:\n"));
    }

    #[test]
    fn a_class_is_shown_with_its_name() {
        let shown = Shown { class: Some(1), ..sample() };
        assert!(
            text(std::slice::from_ref(&shown), &["no".into(), "yes".into()], false)
                .ends_with("⟦class 1, yes⟧\n")
        );
        assert!(text(&[shown], &[], false).ends_with("⟦class 1⟧\n"));
    }

    #[test]
    fn counts_say_which_tokens_are_read_and_which_are_not() {
        let counts = Counts { samples: 3, rows: 2, tokens: 856, cut: 0, beyond: 0, unread: 0 };
        let whole = "data: 3 samples in 2 rows of 16 tokens; 856 tokens in all rows together\n";
        assert_eq!(sentences(&counts, &Task::Causal, 16), whole);
        let classify = Task::Classify { labels: Vec::new() };
        let cut = Counts { cut: 2, unread: 1469, ..counts };
        assert_eq!(
            sentences(&cut, &classify, 16),
            format!(
                "{whole}2 samples are longer than --seq-len 16: 1,469 more tokens are left out, since a classifier \
                 reads one row of a text\n"
            )
        );
        let further = Counts { cut: 1, beyond: 840, unread: 1, ..counts };
        assert_eq!(
            sentences(&further, &Task::Causal, 16),
            format!(
                "{whole}1 sample is longer than --seq-len 16: 840 of these tokens lie in further rows, without the \
                 text before, and 1 more token is left out, since their rows have nothing to learn\n"
            )
        );
    }

    #[test]
    fn counts_are_readable() {
        assert_eq!(number(1, "row"), "1 row");
        assert_eq!(number(1_234_567, "token"), "1,234,567 tokens");
    }
}
