//! Notes of a job as lines for people: the library's sentences, in which names of settings become flags.

use plimsoll::training::job::Note;

use crate::exit::{Failure, printable};
use crate::say::say;

/// Says notes, a line each.
pub(crate) fn tell(notes: &[Note]) -> Result<(), Failure> {
    notes.iter().try_for_each(|note| say(&format!("{}\n", line(note))))
}

fn line(note: &Note) -> String {
    let text = match note {
        Note::LaterCheckpoint(last) => {
            let last = last.display();
            format!(
                "{last} is later, from before a step whose numbers were not finite; it is taken with `--resume {last}`"
            )
        }
        Note::UntaughtSamples { count, seq_len } => Note::untaught(*count, *seq_len, "--seq-len"),
        Note::UnreadLabels => {
            "the samples have a `label` that is not read, since hidden words are learned; with \
                               `--task classify` the labels are learned"
                .into()
        }
        Note::NothingToShow => {
            "--show-samples shows nothing, since this run's ids are made up and stand for no text; \
                                give --data to see samples"
                .into()
        }
        other => other.to_string(),
    };
    let mark = if is_news(note) { "" } else { "note: " };
    format!("{mark}{}", printable(&text))
}

/// Whether a note reports an event; other notes warn of things a user may have overlooked.
fn is_news(note: &Note) -> bool {
    matches!(
        note,
        Note::BrokenCheckpoint(_)
            | Note::NothingToResume(_)
            | Note::SkippedSamples { .. }
            | Note::UntaughtSamples { .. }
            | Note::NewParameters(_)
            | Note::UnusedTensors(_)
            | Note::Resumed { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_name_flags_and_cannot_steer_the_terminal() {
        assert_eq!(
            line(&Note::LaterCheckpoint("out/last".into())),
            "note: out/last is later, from before a step whose numbers were not finite; it is taken with `--resume out/last`"
        );
        let skipped = Note::SkippedSamples { count: 2, first: "\u{1b}[2J".into() };
        assert_eq!(line(&skipped), "2 samples were passed over; the first: \\u{1b}[2J");
    }
}
