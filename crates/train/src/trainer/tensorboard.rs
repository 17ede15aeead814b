//! Event files that TensorBoard reads, with nothing but scalars in them.
//!
//! An event is a protocol buffer of which these fields are used:
//!
//! ```text
//! Event       1: wall_time (double)   2: step (varint)   3: file_version (string, first event only)
//!             5: Summary   7: SessionLog
//! Summary     1: Value, repeated
//! Value       1: tag (string)   2: simple_value (float)   9: SummaryMetadata, where the tag stands first
//! SummaryMetadata   1: PluginData, in it 1: plugin_name (string)   3: summary_description (string)
//! SessionLog  1: status (varint), 1 for START
//! ```
//!
//! A run that resumes repeats the steps after its checkpoint. Their points in the files of the earlier parts are cut
//! off, so that a reader of the folder finds each step once. A TensorBoard that has already read them forgets them at
//! the START event that each file has after its version: at every START but the first it drops the points from that
//! step on (`plugin_event_accumulator.py` in its sources).

mod record;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::events::{Event, Listener};
use super::experts::ExpertRecord;
use crate::error::TrainError;
use crate::files::open_file;
use record::{Field, Next, double, fields, float, framed, framed_length, message, next, text, whole};

/// The beginning of the name of every event file.
const PREFIX: &str = "events.out.tfevents.";
/// The part of the name that tells our files from those of other programs.
const OURS: &str = ".plimsoll.";

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    /// Tags that are in the file, and so have been described.
    described: BTreeSet<String>,
}

impl EventFile {
    /// Begins a file in `folder`, which is created if need be, for the steps after step `after`. Files of the parts of
    /// one run lie side by side and are shown as one; points of later steps are cut from the files of earlier parts.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn create(folder: &Path, after: u64) -> Result<EventFile, TrainError> {
        let unwritable = |error: io::Error| TrainError::output(folder, &error);
        fs::create_dir_all(folder).map_err(unwritable)?;
        let before = parts_before(folder).map_err(unwritable)?;
        for (_, path) in &before {
            cut(path, after).map_err(|error| TrainError::output(path, &error))?;
        }
        // TensorBoard reads files by name, so this one must be the last also where the clock went back.
        let last = before.iter().map(|(second, _)| second.saturating_add(1)).max();
        let second = last.unwrap_or(0).max(now() as u64);
        let path = folder.join(format!("{PREFIX}{second:010}{OURS}{}.0", std::process::id()));
        let file = File::create(&path).map_err(|error| TrainError::output(&path, &error))?;
        let mut events = EventFile { file, path, described: BTreeSet::new() };
        events.write(&[double(1, now()), text(3, "brain.Event:2")].concat())?;
        let start = message(7, &whole(1, 1));
        events.write(&[double(1, now()), whole(2, after.saturating_add(1)), start].concat())?;
        Ok(events)
    }

    /// Adds the values of a step under their tags.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let summary: Vec<u8> = values.iter().flat_map(|(tag, value)| self.value(tag, *value)).collect();
        self.write(&[double(1, now()), whole(2, step), message(5, &summary)].concat())
    }

    fn value(&mut self, tag: &str, value: f64) -> Vec<u8> {
        let meaning = meaning(tag).filter(|_| self.described.insert(tag.to_owned()));
        let described = meaning.map_or_else(Vec::new, |meaning| {
            message(9, &[message(1, &text(1, "scalars")), text(3, meaning)].concat())
        });
        message(1, &[text(1, tag), float(2, value as f32), described].concat())
    }

    fn write(&mut self, event: &[u8]) -> Result<(), TrainError> {
        let written: io::Result<()> = self.file.write_all(&framed(event));
        written.map_err(|error| TrainError::output(&self.path, &error))
    }
}

/// The sentence that TensorBoard shows with a curve.
fn meaning(tag: &str) -> Option<&'static str> {
    Some(match tag {
        "train/loss" | "train/tokens_per_second" => {
            "mean over the steps since the last point (--logging-steps)"
        }
        "train/learning_rate" => "of the step itself",
        "train/grad_norm" => "of the step itself, before clipping",
        "train/router_balance" => "mean over layers; the experts of a token when all have the same load",
        "train/router_z" => "mean over layers of the squared logarithm of a router's divisor",
        "experts/least" => "the smallest share of an expert in the tokens of its layer, of the step itself",
        "experts/most" => "the largest share of an expert in the tokens of its layer, of the step itself",
        "experts/overflow" => {
            "copies of tokens that found their expert full, a mean over layers, of the step itself"
        }
        "eval/f1" => "macro F1, the mean over the classes",
        "eval/loss" => "mean over the validation data",
        _ => return None,
    })
}

impl<E: From<TrainError>> Listener<E> for EventFile {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), E> {
        match event {
            Event::Log(record) => {
                let mut values = vec![
                    ("train/loss", record.loss),
                    ("train/learning_rate", record.lr),
                    ("train/grad_norm", record.grad_norm),
                    ("train/tokens_per_second", record.tokens_per_second),
                ];
                values.extend(record.epoch.map(|epoch| ("train/epoch", epoch)));
                values.extend(record.router_balance.map(|balance| ("train/router_balance", balance)));
                values.extend(record.router_z.map(|z| ("train/router_z", z)));
                self.scalars(record.step, &values)?;
            }
            Event::Experts(record) => {
                let values = expert_scalars(record);
                let values: Vec<(&str, f64)> =
                    values.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
                self.scalars(record.step, &values)?;
            }
            Event::Evaluation(record) => {
                let measures = [
                    ("eval/loss", Some(record.eval_loss)),
                    ("eval/perplexity", record.eval_perplexity),
                    ("eval/accuracy", record.eval_accuracy),
                    ("eval/f1", record.eval_f1),
                ];
                let values: Vec<_> =
                    measures.iter().filter_map(|&(tag, value)| Some((tag, value?))).collect();
                self.scalars(record.step, &values)?;
            }
            Event::Step(_) | Event::Saving | Event::Saved(_) | Event::Note(_) | Event::End(_) => {}
        }
        Ok(())
    }
}

/// The most curves of single experts; a browser shows a few hundred.
const MOST_EXPERTS: usize = 512;

/// The load of experts as curves: one for each expert where they are not too many, and always their range.
fn expert_scalars(record: &ExpertRecord) -> Vec<(String, f64)> {
    let [least, most] = record.extremes();
    let mut values = vec![
        ("experts/least".to_owned(), least),
        ("experts/most".to_owned(), most),
        ("experts/overflow".to_owned(), record.overflow()),
    ];
    if record.shares.iter().map(Vec::len).sum::<usize>() <= MOST_EXPERTS {
        for (layer, shares) in record.layers.iter().zip(&record.shares) {
            let tag = |expert| format!("experts/layer_{layer}/{expert}");
            values.extend(shares.iter().enumerate().map(|(expert, &share)| (tag(expert), share)));
        }
    }
    values
}

/// Seconds since 1970, the clock of TensorBoard's axis "wall".
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Event files of ours in the folder, each with the second in its name.
fn parts_before(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let second =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once(OURS)?.0.parse().ok());
        if let Some(second) = second
            && entry.file_type()?.is_file()
        {
            parts.push((second, entry.path()));
        }
    }
    Ok(parts)
}

/// Shortens an event file to the events up to step `after`, which come first. A record that was cut off goes too. A file
/// that is damaged stays as it is.
fn cut(path: &Path, after: u64) -> io::Result<()> {
    let (mut file, mut kept) = (BufReader::new(open_file(path)?), 0);
    loop {
        match next(&mut file)? {
            Next::Event(event) if step_of(&event) <= after => kept += framed_length(&event),
            Next::Event(_) | Next::End => break,
            Next::Foreign => return Ok(()),
        }
    }
    OpenOptions::new().write(true).open(path)?.set_len(kept)
}

/// The step of an event; 0 where it says none.
fn step_of(event: &[u8]) -> u64 {
    let step =
        |(number, field)| if let (2, Field::Whole(step)) = (number, field) { Some(step) } else { None };
    fields(event).find_map(step).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_record_is_byte_for_byte_what_tensorboards_own_writer_makes() {
        // tensorboard 2.21: RecordWriter's record of Event(wall_time=1.5, step=300, summary with a=0.25).
        let value = message(1, &[text(1, "a"), float(2, 0.25)].concat());
        let event = [double(1, 1.5), whole(2, 300), message(5, &value)].concat();
        let expected: Vec<u8> = EXPECTED
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(framed(&event), expected);
    }

    const EXPECTED: &str = "1800000000000000a37f4b2209000000000000f83f10ac022a0a0a080a0161150000803eb4fa9511";

    /// The events of a file.
    fn events(path: &Path) -> Vec<Vec<u8>> {
        let bytes = fs::read(path).unwrap();
        let mut file = bytes.as_slice();
        let event = |next| if let Next::Event(event) = next { Some(event) } else { None };
        std::iter::from_fn(|| event(next(&mut file).unwrap())).collect()
    }

    /// Steps, tags and numbers of an event file.
    fn values(path: &Path) -> Vec<(u64, String, f32)> {
        fn bytes((_, field): (u64, Field<'_>)) -> Option<Vec<u8>> {
            if let Field::Bytes(bytes) = field { Some(bytes.to_vec()) } else { None }
        }
        let mut values = Vec::new();
        for event in events(path) {
            for summary in fields(&event).filter(|(number, _)| *number == 5).filter_map(bytes) {
                for value in fields(&summary).filter_map(bytes) {
                    let mut parts = fields(&value);
                    if let (Some((1, Field::Bytes(tag))), Some((2, Field::Float(number)))) =
                        (parts.next(), parts.next())
                    {
                        values.push((step_of(&event), String::from_utf8(tag.to_vec()).unwrap(), number));
                    }
                }
            }
        }
        values
    }

    /// Steps at which an event file has a value of `train/loss`, and the values.
    fn losses(path: &Path) -> Vec<(u64, f32)> {
        let losses = values(path).into_iter().filter(|(_, tag, _)| tag == "train/loss");
        losses.map(|(step, _, loss)| (step, loss)).collect()
    }

    fn points(folder: &Path) -> Vec<(u64, f32)> {
        let mut parts = parts_before(folder).unwrap();
        parts.sort();
        parts.iter().flat_map(|(_, path)| losses(path)).collect()
    }

    fn write(events: &mut EventFile, steps: std::ops::RangeInclusive<u64>, loss: f64) {
        for step in steps {
            events.scalars(step, &[("train/loss", loss), ("train/learning_rate", 1e-3)]).unwrap();
        }
    }

    #[test]
    fn a_file_begins_with_its_version_and_its_first_step_and_says_once_what_a_curve_is() {
        let folder = Scratch::new();
        let mut file = EventFile::create(folder.path(), 6).unwrap();
        write(&mut file, 7..=8, 2.5);
        let records = events(&file.path);
        assert_eq!(records.len(), 4);
        assert!(records[0].ends_with(b"brain.Event:2"));
        assert_eq!(records[1][9..], [whole(2, 7), message(7, &[8, 1])].concat(), "START at step 7");
        let says = |event: &[u8]| event.windows(15).any(|bytes| bytes == b"mean over the s");
        assert!(says(&records[2]) && !says(&records[3]));
        assert_eq!(losses(&file.path), [(7, 2.5), (8, 2.5)]);
    }

    #[test]
    fn the_load_of_experts_and_the_losses_of_routers_have_curves() {
        let folder = Scratch::new();
        let mut file = EventFile::create(folder.path(), 0).unwrap();
        let line = r#"{"step":2,"loss":1.0,"grad_norm":1.0,"lr":0.1,"tokens":8,"valid_tokens":8,"tokens_per_second":5.0,"router_balance":2.25,"router_z":0.5}"#;
        let record = serde_json::from_str(line).unwrap();
        let (layers, overflow) = (vec![1, 3], vec![0.0, 0.125]);
        let shares = vec![vec![0.25, 0.75], vec![0.5, 0.5]];
        let experts = ExpertRecord { step: 2, layers, shares, overflow };
        let heard: Result<(), TrainError> = file.hear(&Event::Log(&record));
        heard.and_then(|()| file.hear(&Event::Experts(&experts))).unwrap();
        let values = values(&file.path);
        let of = |tag: &str| {
            let mut found = values.iter().filter(|(_, known, _)| known == tag);
            found.next().map(|(step, _, number)| (*step, *number))
        };
        for (tag, number) in [
            ("train/router_balance", 2.25),
            ("train/router_z", 0.5),
            ("experts/least", 0.25),
            ("experts/most", 0.75),
            ("experts/overflow", 0.0625),
            ("experts/layer_1/0", 0.25),
            ("experts/layer_1/1", 0.75),
            ("experts/layer_3/1", 0.5),
        ] {
            assert_eq!(of(tag), Some((2, number)), "{tag}");
        }
        assert_eq!(values.iter().filter(|(_, tag, _)| tag.starts_with("experts/")).count(), 7);
    }

    #[test]
    fn a_run_that_goes_on_leaves_one_point_for_each_step() {
        let folder = Scratch::new();
        let path = folder.path();
        write(&mut EventFile::create(path, 0).unwrap(), 1..=5, 3.0);
        // Killed after step 5, and again after step 4, with a checkpoint of step 3.
        write(&mut EventFile::create(path, 3).unwrap(), 4..=4, 2.0);
        let mut third = EventFile::create(path, 3).unwrap();
        write(&mut third, 4..=6, 1.0);
        let expected = [(1, 3.0), (2, 3.0), (3, 3.0), (4, 1.0), (5, 1.0), (6, 1.0)];
        assert_eq!(points(path), expected);
        assert_eq!(parts_before(path).unwrap().len(), 3);
        // A file whose writer was killed ends within a record.
        let whole = fs::metadata(&third.path).unwrap().len();
        OpenOptions::new().write(true).open(&third.path).unwrap().set_len(whole - 7).unwrap();
        drop(EventFile::create(path, 6).unwrap());
        assert_eq!(points(path), expected[..5]);
        // A run without a checkpoint starts from the beginning.
        drop(EventFile::create(path, 0).unwrap());
        assert_eq!(points(path), []);
    }

    #[test]
    fn files_of_others_and_damaged_ones_stay_as_they_are() {
        let folder = Scratch::new();
        let mut file = EventFile::create(folder.path(), 0).unwrap();
        write(&mut file, 1..=5, 3.0);
        let others = folder.write("events.out.tfevents.1.host.7.0", fs::read(&file.path).unwrap());
        let mut bytes = fs::read(&file.path).unwrap();
        bytes[100] ^= 1;
        fs::write(&file.path, &bytes).unwrap();
        drop(EventFile::create(folder.path(), 2).unwrap());
        assert_eq!(fs::read(&file.path).unwrap(), bytes);
        assert_eq!(losses(&others).len(), 5);
    }
}
