//! Notes for the user before the first step, as data: the caller that shows them chooses the words.

use std::fmt;
use std::path::PathBuf;

use crate::checkpoint::Best;

/// One thing that a user should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// About the model's configuration.
    Model(String),
    /// A checkpoint is broken and was skipped.
    BrokenCheckpoint(String),
    /// A later checkpoint exists than the one that is resumed; it is from before a step whose numbers were not finite.
    LaterCheckpoint(PathBuf),
    /// The resumed folder holds no checkpoint, so the run starts from the beginning.
    NothingToResume(PathBuf),
    /// Samples that cannot be used were skipped.
    SkippedSamples {
        /// How many.
        count: u64,
        /// The fault of the first.
        first: String,
    },
    /// Samples, or parts of them, have nothing to learn within a row and are left out.
    UntaughtSamples {
        /// The number of samples and of parts that are left out.
        count: u64,
        /// Tokens of a row.
        seq_len: usize,
    },
    /// Tokens begin in a prompt and reach into its answer; they are learned.
    Seams {
        /// The number of these tokens.
        count: u64,
    },
    /// Samples have labels, and the task learns hidden words.
    UnreadLabels,
    /// Samples are to be shown, but the data is synthetic.
    NothingToShow,
    /// The micro-batch of the run so far does not fit, so the run continues within rounding.
    OtherMicroBatch {
        /// Rows of the micro-batches before.
        before: usize,
    },
    /// The run so far was computed on another instruction path, so it continues within rounding.
    OtherInstructions {
        /// The path before.
        before: String,
        /// The path from here on.
        now: String,
    },
    /// The plan in the checkpoint cannot be used, so another was searched for.
    OtherPlan {
        /// Why not.
        why: String,
    },
    /// About the device.
    Device(String),
    /// Parameters that are not in the model's files, and so are new.
    NewParameters(Vec<String>),
    /// Tensors of the model's files that nothing uses.
    UnusedTensors(Vec<String>),
    /// The run resumes from a checkpoint.
    Resumed {
        /// The checkpoint's last step.
        step: u64,
        /// The checkpoint's folder.
        from: PathBuf,
    },
    /// The best checkpoint so far is gone.
    LostBest(Best),
    /// A setting has changed since the run was interrupted.
    Changed {
        /// The setting.
        name: &'static str,
        /// The setting's value then.
        then: String,
        /// The setting's value now.
        now: String,
    },
    /// About checkpoints that were left or set aside.
    Checkpoints(String),
}

impl Note {
    /// The words of [`UntaughtSamples`](Note::UntaughtSamples), with the name that the setting of the length is known by.
    pub fn untaught(count: u64, seq_len: usize, setting: &str) -> String {
        let (parts, have) = if count == 1 {
            ("1 part of a sample".to_owned(), "has nothing to learn and is")
        } else {
            (format!("{count} parts of samples"), "have nothing to learn and are")
        };
        format!(
            "{parts}, of up to {seq_len} tokens each, {have} left out; with a longer {setting}, more prompts share a row with \
             their answer"
        )
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Model(note) | Note::Device(note) | Note::Checkpoints(note) => f.write_str(note),
            Note::BrokenCheckpoint(fault) => write!(f, "passed over: {fault}"),
            Note::LaterCheckpoint(last) => write!(
                f,
                "{0} is later, from before a step whose numbers were not finite; it is taken with resume = \"{0}\"",
                last.display()
            ),
            Note::NothingToResume(folder) => {
                write!(f, "`{}` holds no whole checkpoint yet; the run begins anew", folder.display())
            }
            Note::SkippedSamples { count, first } => {
                write!(f, "{count} samples were passed over; the first: {first}")
            }
            Note::UntaughtSamples { count, seq_len } => {
                f.write_str(&Note::untaught(*count, *seq_len, "seq_len"))
            }
            Note::Seams { count: 1 } => f.write_str(
                "1 token begins in a prompt and reaches into its answer; it is learned whole, and a prompt that ends where \
                 a token ends is closer to how the model is used",
            ),
            Note::Seams { count } => write!(
                f,
                "{count} tokens begin in a prompt and reach into its answer; they are learned whole, and prompts that end where \
                 a token ends are closer to how the model is used"
            ),
            Note::UnreadLabels => f.write_str(
                "the samples have a `label` that is not read, since hidden words are learned; with task = \"classify\" the labels \
                 are learned",
            ),
            Note::NothingToShow => f.write_str(
                "show_samples shows nothing, since this run's ids are made up and stand for no text; give data to see samples",
            ),
            Note::OtherMicroBatch { before } => write!(
                f,
                "micro-batches of {before}, as they were, do not fit; with others the run goes on within rounding"
            ),
            Note::OtherInstructions { before, now } => write!(
                f,
                "the run so far was computed with {before} instructions and goes on with {now}, within rounding"
            ),
            Note::OtherPlan { why } => {
                write!(f, "the checkpoint's own plan cannot be used, so the run is planned anew: {why}")
            }
            Note::NewParameters(names) => write!(f, "not in the folder, so new: {}", names.join(", ")),
            Note::UnusedTensors(names) => write!(f, "passed over: {}", names.join(", ")),
            Note::Resumed { step, from } => write!(f, "going on after step {step} of {}", from.display()),
            Note::LostBest(Best { step, metric }) => write!(
                f,
                "the best so far, {metric:.4} after step {step}, has no checkpoint any more; it is looked for anew"
            ),
            Note::Changed { name, then, now } => write!(f, "{name} is {now} from here on, and was {then}"),
        }
    }
}
