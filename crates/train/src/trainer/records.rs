//! Records of a run, as JSON lines: one object per step or evaluation, and one at the end.
//!
//! ```text
//! {"step":1,"loss":5.545,"mean_over":1,"grad_norm":1.25,"lr":0.0003,"tokens":4096,"valid_tokens":4090,"tokens_per_second":812.5,"memory_bytes":9437184}
//! {"event":"evaluation","step":1,"eval_loss":5.5,"eval_perplexity":244.7,"valid_tokens":8190,"seconds":2.5,"best":true}
//! {"event":"end","planned_peak_bytes":1048576,"measured_peak_bytes":1048576,"process_peak_bytes":9437184,"tokens_per_second":810.1}
//! ```
//!
//! JSON has no NaN and no infinity. Such a number is written as `null` and read back as NaN: a run that diverges must
//! still report the step at which it did, so an error would be wrong. Absent: the clock, which belongs to the caller.

use std::io;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Best;

/// One optimizer step, or the mean of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// Passes over the data up to here; absent where it never ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Mean loss over the valid tokens of the global batch; of several steps, the mean of theirs.
    #[serde(with = "finite_or_null")]
    pub loss: f64,
    /// The number of steps, up to `step`, that this record is of: `loss` and `tokens_per_second` are means over them,
    /// `tokens` and `valid_tokens` sums.
    #[serde(default = "one")]
    pub mean_over: u64,
    /// Norm of the whole gradient before clipping, of the last step.
    #[serde(with = "finite_or_null")]
    pub grad_norm: f64,
    /// The learning rate that the last step used.
    #[serde(with = "finite_or_null")]
    pub lr: f64,
    /// Positions in the sequences of the global batch: sequences × sequence length.
    pub tokens: u64,
    /// Positions whose target counts in the loss.
    pub valid_tokens: u64,
    /// `tokens` over the seconds the step took.
    #[serde(with = "finite_or_null")]
    pub tokens_per_second: f64,
    /// Bytes that the run holds of the memory that its budget counts, after the last step: the most that the process
    /// ever held, or its share of a card by the driver's count.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The balance of experts in the last step, a mean over layers and without its weight; for a token with `k` experts, `k` is
    /// an even load. Absent for models without experts.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "finite_or_null_if_any")]
    pub router_balance: Option<f64>,
    /// The mean square of the log-sum-exp of router logits in the last step, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "finite_or_null_if_any")]
    pub router_z: Option<f64>,
}

/// One evaluation on validation data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "evaluation")]
pub struct EvaluationRecord {
    /// Steps taken before the evaluation.
    pub step: u64,
    /// Mean loss over the valid tokens.
    #[serde(with = "finite_or_null")]
    pub eval_loss: f64,
    /// The exponential of the loss (perplexity), where words are guessed.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "finite_or_null_if_any")]
    pub eval_perplexity: Option<f64>,
    /// Accuracy of a classifier: the share of texts whose likeliest label is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_accuracy: Option<f64>,
    /// Macro F1: the mean over the classes of F1, where texts are sorted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_f1: Option<f64>,
    /// Number of targets evaluated.
    pub valid_tokens: u64,
    /// Seconds that the evaluation took.
    pub seconds: f64,
    /// Whether no evaluation before was as good.
    pub best: bool,
}

/// The best evaluation, also when an earlier part of the run made it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestRecord {
    /// Steps taken before it.
    pub step: u64,
    /// Mean loss over the valid tokens.
    pub eval_loss: f64,
}

impl From<Best> for BestRecord {
    fn from(best: Best) -> BestRecord {
        BestRecord { step: best.step, eval_loss: best.metric }
    }
}

/// One of several ranks, at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// The rank's number.
    pub rank: usize,
    /// The most bytes of the rank's arena that were in use.
    pub peak_bytes: u64,
    /// Peak resident memory of its process, or its part of one where ranks are threads.
    pub process_bytes: u64,
    /// Seconds of the rank's steps during which it did not wait for other ranks.
    pub busy_seconds: f64,
}

impl RankRecord {
    /// The number of the rank that the others waited for the most: the one that was busy the longest.
    pub fn slowest(ranks: &[RankRecord]) -> Option<usize> {
        let longest = ranks.iter().max_by(|a, b| a.busy_seconds.total_cmp(&b.busy_seconds));
        longest.map(|record| record.rank)
    }
}

/// The last line of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "end")]
pub struct EndRecord {
    /// Size of the arena according to the plan.
    pub planned_peak_bytes: u64,
    /// The most bytes of the arena that were in use.
    pub measured_peak_bytes: u64,
    /// The most bytes that the process held of the memory that the budget counts: resident memory, code and libraries
    /// included, or memory of the card.
    pub process_peak_bytes: u64,
    /// Peak resident memory of the process beside a card whose memory the budget counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_peak_bytes: Option<u64>,
    /// Tokens over seconds, for the whole run.
    #[serde(with = "finite_or_null")]
    pub tokens_per_second: f64,
    /// The best evaluation of the whole run, which includes the parts before it was resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestRecord>,
    /// Whether the run ended before its last step because it no longer got better.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
    /// Figures of every rank, if there are several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankRecord>,
    /// The rank that was busy the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_rank: Option<usize>,
}

/// Steps in a record of an earlier version, which did not store their number: one.
fn one() -> u64 {
    1
}

/// Writes one record as one line, with its line end.
pub fn write_line(out: &mut impl io::Write, record: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Stated here rather than left to `serde_json`, whose `null` for NaN another serializer may not share.
mod finite_or_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives fields by reference")]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// For a number that may be absent: a key that is missing is no number, and `null` is a number that is not finite.
mod finite_or_null_if_any {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde gives fields by reference")]
    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.filter(|value| value.is_finite()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Some(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepRecord = StepRecord {
        step: 7,
        epoch: None,
        loss: 2.5,
        mean_over: 1,
        grad_norm: 0.75,
        lr: 0.001,
        tokens: 4096,
        valid_tokens: 4090,
        tokens_per_second: 812.5,
        memory_bytes: 5000,
        router_balance: None,
        router_z: None,
    };

    #[test]
    fn a_step_is_one_line_with_the_agreed_names_in_the_agreed_order() {
        let expected = "{\"step\":7,\"loss\":2.5,\"mean_over\":1,\"grad_norm\":0.75,\"lr\":0.001,\
                        \"tokens\":4096,\"valid_tokens\":4090,\"tokens_per_second\":812.5,\"memory_bytes\":5000}\n";
        assert_eq!(line(&STEP), expected);
        assert_eq!(serde_json::from_str::<StepRecord>(expected).unwrap(), STEP);
        let before = expected.replace("\"mean_over\":1,", "");
        assert_eq!(
            serde_json::from_str::<StepRecord>(&before).unwrap(),
            STEP,
            "a line of an earlier version"
        );
    }

    #[test]
    fn the_end_says_that_it_is_the_end() {
        let end = EndRecord {
            planned_peak_bytes: 1024,
            measured_peak_bytes: 1000,
            process_peak_bytes: 5000,
            host_peak_bytes: None,
            tokens_per_second: 10.5,
            best: None,
            stopped_early: false,
            ranks: Vec::new(),
            slowest_rank: None,
        };
        let expected = "{\"event\":\"end\",\"planned_peak_bytes\":1024,\"measured_peak_bytes\":1000,\
                        \"process_peak_bytes\":5000,\"tokens_per_second\":10.5}\n";
        assert_eq!(line(&end), expected);
        assert_eq!(serde_json::from_str::<EndRecord>(expected).unwrap(), end);
        let beside = EndRecord { host_peak_bytes: Some(700), ..end.clone() };
        assert!(
            line(&beside).contains("\"process_peak_bytes\":5000,\"host_peak_bytes\":700,"),
            "{}",
            line(&beside)
        );
        assert_eq!(serde_json::from_str::<EndRecord>(&line(&beside)).unwrap(), beside);
        let rank = |rank, busy_seconds| RankRecord { rank, peak_bytes: 1, process_bytes: 2, busy_seconds };
        let ranks = vec![rank(0, 1.5), rank(1, 2.5), rank(2, 2.0)];
        let several = EndRecord { slowest_rank: RankRecord::slowest(&ranks), ranks, ..end };
        assert!(
            line(&several).ends_with("\"busy_seconds\":2.0}],\"slowest_rank\":1}\n"),
            "{}",
            line(&several)
        );
        assert_eq!(serde_json::from_str::<EndRecord>(&line(&several)).unwrap(), several);
    }

    #[test]
    fn an_evaluation_says_perplexity_of_words_and_accuracy_and_f1_of_classes() {
        let words = EvaluationRecord {
            step: 4,
            eval_loss: 0.5,
            eval_perplexity: Some(1.5),
            eval_accuracy: None,
            eval_f1: None,
            valid_tokens: 8,
            seconds: 0.25,
            best: true,
        };
        let classes = EvaluationRecord {
            eval_perplexity: None,
            eval_accuracy: Some(0.75),
            eval_f1: Some(0.625),
            ..words
        };
        let rest = "\"valid_tokens\":8,\"seconds\":0.25,\"best\":true}\n";
        let begin = "{\"event\":\"evaluation\",\"step\":4,\"eval_loss\":0.5,";
        assert_eq!(line(&words), format!("{begin}\"eval_perplexity\":1.5,{rest}"));
        assert_eq!(line(&classes), format!("{begin}\"eval_accuracy\":0.75,\"eval_f1\":0.625,{rest}"));
        for record in [words, classes] {
            assert_eq!(serde_json::from_str::<EvaluationRecord>(&line(&record)).unwrap(), record);
        }
        let broken = line(&EvaluationRecord { eval_perplexity: Some(f64::INFINITY), ..words });
        let back: EvaluationRecord = serde_json::from_str(&broken).unwrap();
        assert!(back.eval_perplexity.unwrap().is_nan(), "{broken}");
    }

    #[test]
    fn numbers_that_are_not_finite_become_null_and_come_back_as_nan() {
        for broken in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let text = line(&StepRecord { loss: broken, grad_norm: broken, ..STEP });
            assert!(text.contains("\"loss\":null,\"mean_over\":1,\"grad_norm\":null,\"lr\":0.001"), "{text}");
            let back: StepRecord = serde_json::from_str(&text).unwrap();
            assert!(back.loss.is_nan() && back.grad_norm.is_nan());
            assert_eq!(back.tokens, STEP.tokens);
        }
    }

    #[test]
    fn a_missing_number_is_an_error_unlike_a_null_one() {
        assert!(serde_json::from_str::<StepRecord>("{\"step\":7}").is_err());
    }

    fn line(record: &impl Serialize) -> String {
        let mut out = Vec::new();
        write_line(&mut out, record).unwrap();
        String::from_utf8(out).unwrap()
    }
}
