//! Rows of data sets, written out by hand where that is possible; in `refusals` every mistake a data set can have, in `caches`
//! tokenised data on disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
#[cfg(feature = "parquet")]
use std::sync::Arc as Shared;

#[cfg(feature = "parquet")]
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
#[cfg(feature = "parquet")]
use parquet::file::properties::WriterProperties;
#[cfg(feature = "parquet")]
use parquet::file::writer::SerializedFileWriter;
#[cfg(feature = "parquet")]
use parquet::schema::parser::parse_message_type;
use serde_json::json;

use super::super::tokenizer::tests::{expected, ids, open as tokenizer};
use super::super::{BEGIN, Batches, END, Group, IGNORED, PAD, RowLayout, Sequence, Source};
use super::*;
use crate::scratch::Scratch;

mod caches;
mod chats;
mod refusals;

const B: i32 = BEGIN;
const E: i32 = END;
const X: i32 = IGNORED;

fn spec(folder: &Scratch, path: &Path, seq_len: usize) -> DataSpec {
    DataSpec {
        parts: vec![Part::from(path)],
        validation: Validation::None,
        task: Task::Causal,
        layout: RowLayout::Packed,
        seq_len,
        vocabulary: 400,
        seed: 3,
        skip_bad_lines: false,
        cache: folder.path().join("cache"),
        threads: 2,
        classes: None,
        memory: 1 << 40,
    }
}

fn open(spec: &DataSpec, tokenizer: &Tokenizer) -> Result<Dataset, DataError> {
    Dataset::open(spec, tokenizer, &mut |_| {})
}

fn bytes(spec: &DataSpec) -> Dataset {
    open(spec, &Tokenizer::bytes()).unwrap()
}

fn fault(spec: &DataSpec) -> String {
    open(spec, &tokenizer("chatml")).unwrap_err().to_string()
}

fn rows(corpus: Corpus, epoch: u64) -> Vec<Sequence> {
    let mut source = Source::Corpus(corpus);
    epoch_of(&mut source, epoch)
}

fn epoch_of(source: &mut Source, epoch: u64) -> Vec<Sequence> {
    let count = source.sequences_per_epoch().unwrap();
    let read = |index| {
        // Full of rubbish, so that a position left out shows.
        let rubbish = vec![-7; source.seq_len()];
        let mut sequence = Sequence { tokens: rubbish.clone(), targets: rubbish.clone(), doc_start: rubbish };
        source.fill(epoch, index, &mut sequence).unwrap();
        sequence
    };
    (0..count).map(read).collect()
}

/// The rows of the data in its own order. Training data is shuffled, so the data is opened as validation data.
fn in_order(spec: &DataSpec, tokenizer: &Tokenizer) -> Vec<Sequence> {
    let spec = DataSpec { validation: Validation::Files(spec.parts.clone()), ..spec.clone() };
    rows(open(&spec, tokenizer).unwrap().validation.unwrap(), 0)
}

fn sequence(tokens: &[i32], targets: &[i32], doc_start: &[i32]) -> Sequence {
    Sequence { tokens: tokens.to_vec(), targets: targets.to_vec(), doc_start: doc_start.to_vec() }
}

/// `.jsonl` with one object per line.
fn lines(folder: &Scratch, name: &str, samples: &[serde_json::Value]) -> PathBuf {
    folder
        .write(name, samples.iter().flat_map(|sample| [sample.to_string(), "\n".into()]).collect::<String>())
}

fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn packed_documents_share_rows_and_padded_ones_do_not_and_targets_stay_at_home() {
    let folder = Scratch::new();
    let path = lines(
        &folder,
        "d.jsonl",
        &[
            json!({"text": "\u{1}\u{2}"}),
            json!({"text": "\u{3}"}),
            json!({"text": "\u{4}\u{5}\u{6}\u{7}\u{8}"}),
        ],
    );
    let packed = spec(&folder, &path, 5);
    assert_eq!(
        in_order(&packed, &Tokenizer::bytes()),
        [
            sequence(&[B, 1, 2, B, 3], &[1, 2, E, 3, E], &[0, 0, 0, 3, 3]),
            sequence(&[B, 4, 5, 6, 7], &[4, 5, 6, 7, 8], &[0; 5]),
            sequence(&[8, PAD, PAD, PAD, PAD], &[E, X, X, X, X], &[0, 1, 1, 1, 1]),
        ]
    );
    let padded = DataSpec { layout: RowLayout::Padded, ..packed };
    assert_eq!(
        in_order(&padded, &Tokenizer::bytes())[..2],
        [
            sequence(&[B, 1, 2, PAD, PAD], &[1, 2, E, X, X], &[0, 0, 0, 3, 3]),
            sequence(&[B, 3, PAD, PAD, PAD], &[3, E, X, X, X], &[0, 0, 2, 2, 2]),
        ]
    );
}

#[test]
fn only_completions_are_learned_and_the_text_is_tokenised_as_one() {
    let folder = Scratch::new();
    let path = lines(&folder, "d.jsonl", &[json!({"prompt": "The ma", "completion": "rk and no deeper."})]);
    let tokenizer = tokenizer("llama3");
    let row = &in_order(&spec(&folder, &path, 32), &tokenizer)[0];
    let whole = tokenizer.encode("The mark and no deeper.").unwrap();
    assert_eq!(row.tokens[..whole.len()], whole);
    // The token `mark` reaches from the prompt into the answer: it is learned, as in TRL, and counted.
    let placed = tokenizer.encode_placed("The mark and no deeper.").unwrap();
    let first = 1 + placed.iter().position(|&(_, (_, to))| to > 6).unwrap();
    assert!(placed[first - 1].1.0 < 6, "{placed:?}");
    assert_eq!(open(&spec(&folder, &path, 32), &tokenizer).unwrap().seams, 1);
    let mut targets = vec![X; 32];
    targets[first - 1..whole.len() - 1].copy_from_slice(&whole[first..]);
    targets[whole.len() - 1] = tokenizer.special().end.unwrap();
    assert_eq!(row.targets, targets);
}

#[test]
fn conversations_give_the_ids_and_the_mask_of_transformers() {
    let folder = Scratch::new();
    let expected = expected();
    let path = lines(&folder, "chat.jsonl", expected["conversations"].as_array().unwrap());
    for style in &expected["chats"].as_array().unwrap()[..2] {
        let tokenizer = tokenizer(style["name"].as_str().unwrap());
        let spec = DataSpec { layout: RowLayout::Padded, ..spec(&folder, &path, 300) };
        let rows = in_order(&spec, &tokenizer);
        assert_eq!(rows.len(), 4);
        for (row, chat) in rows.iter().zip(style["chats"].as_array().unwrap()) {
            let (ids, mask) = (ids(&chat["ids"]), ids(&chat["mask"]));
            let count = ids.len() - 1;
            assert_eq!(row.tokens[..count], ids[..count]);
            let wanted: Vec<i32> =
                ids[1..].iter().zip(&mask[1..]).map(|(&id, &said)| if said == 1 { id } else { X }).collect();
            assert_eq!(row.targets[..count], wanted);
            assert!(row.targets[count..].iter().all(|&target| target == X));
        }
    }
}

#[test]
fn prompts_and_completions_may_be_messages() {
    let folder = Scratch::new();
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let (first, second) =
        ([turn("user", "a"), turn("assistant", "b"), turn("user", "c")], [turn("assistant", "d")]);
    let path = lines(&folder, "d.jsonl", &[json!({"prompt": first, "completion": second})]);
    let tokenizer = tokenizer("chatml");
    let row = &in_order(&spec(&folder, &path, 100), &tokenizer)[0];
    let learned: Vec<i32> = row.targets.iter().copied().filter(|&target| target != X).collect();
    assert_eq!(learned, tokenizer.encode_plain("d<|im_end|>\n").unwrap());
}

#[test]
fn a_sample_that_is_encoded_alone_has_the_ids_that_it_has_in_a_batch() {
    let folder = Scratch::new();
    let long = "The harbour's boats wait.\n".repeat(48_000);
    let talk = json!([{"role": "user", "content": "Go on."}, {"role": "assistant", "content": long}]);
    let samples =
        [json!({"text": "short"}), json!({"messages": talk}), json!({"prompt": "a", "completion": long})];
    let path = lines(&folder, "d.jsonl", &samples);
    let held = crate::memory::process().unwrap().resident;
    let opened = |memory: u64, cache: &str| {
        let cache = folder.path().join(cache);
        in_order(&DataSpec { cache, memory, ..spec(&folder, &path, 1000) }, &tokenizer("chatml"))
    };
    // The larger of the two has batches of 2 MiB.
    assert!(opened(held + (64 << 20), "alone") == opened(1 << 40, "together"));
}

#[test]
fn a_long_text_has_the_ids_of_the_whole_whatever_pieces_and_threads_it_took() {
    let folder = Scratch::new();
    let text = "The planner counts bytes;\n  the engine keeps\n\nto them. Grüße 東京\n".repeat(40_000);
    let path = folder.write("long.txt", &text);
    let tokenizer = tokenizer("chatml");
    let mut whole = tokenizer.encode(&text).unwrap();
    whole.push(tokenizer.special().end.unwrap());
    let mut seen = Vec::new();
    for threads in [1, 3] {
        let cache = folder.path().join(format!("cache {threads}"));
        let spec = DataSpec { cache, threads, ..spec(&folder, &path, 1000) };
        let mut told = Vec::new();
        let data =
            Dataset::open(&spec, &tokenizer, &mut |progress| told.push((progress.read, progress.total)));
        drop(data.unwrap());
        assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
        assert_eq!(told.last(), Some(&(text.len() as u64, text.len() as u64)));
        let tokens: Vec<i32> = in_order(&spec, &tokenizer).into_iter().flat_map(|row| row.tokens).collect();
        assert_eq!(tokens[..whole.len() - 1], whole[..whole.len() - 1]);
        seen.push(fs::read(only_file(&spec.cache)).unwrap());
    }
    assert_eq!(seen[0], seen[1]);
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so() {
    let folder = Scratch::new();
    let path = folder.write("d.parquet", "PAR1");
    let fault = fault(&spec(&folder, &path, 16));
    assert!(fault.contains("build plimsoll with the feature `parquet`"), "{fault}");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_holds_the_same_columns() {
    let folder = Scratch::new();
    let path = folder.path().join("d.parquet");
    let schema =
        parse_message_type("message m { required binary text (UTF8); required int64 label; }").unwrap();
    let file = fs::File::create(&path).unwrap();
    let properties = Shared::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, Shared::new(schema), properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut texts = group.next_column().unwrap().unwrap();
    let values = [ByteArray::from("the mark"), ByteArray::from("no deeper")];
    texts.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
    texts.close().unwrap();
    let mut labels = group.next_column().unwrap().unwrap();
    labels.typed::<Int64Type>().write_batch(&[2, 0], None, None).unwrap();
    labels.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();

    let tokenizer = tokenizer("bert");
    let classify = DataSpec { task: Task::Classify { labels: Vec::new() }, ..spec(&folder, &path, 16) };
    assert_eq!(open(&classify, &tokenizer).unwrap().classes, 3);
    let rows = in_order(&classify, &tokenizer);
    for (row, (text, label)) in rows.iter().zip([("the mark", 2), ("no deeper", 0)]) {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(row.tokens[..ids.len()], ids);
        assert_eq!((row.targets[0], &row.targets[1..]), (label, &[X; 15][..]));
    }
    let causal = spec(&folder, &path, 16);
    assert_eq!(in_order(&causal, &Tokenizer::bytes())[0].tokens[..4], [B, 116, 104, 101]);

    let broken = folder.write("broken.parquet", &fs::read(&path).unwrap()[..60]);
    let fault = fault(&spec(&folder, &broken, 16));
    assert!(fault.contains("broken.parquet cannot be read ("), "{fault}");
}

#[test]
fn texts_to_classify_are_cut_to_fit_and_keep_what_stands_around_them() {
    let folder = Scratch::new();
    let samples = [
        json!({"text": "the mark and no deeper load it", "label": "warm"}),
        json!({"text": "ship", "label": "cold"}),
        json!({"text": "line", "label": "warm"}),
    ];
    let path = lines(&folder, "d.jsonl", &samples);
    let tokenizer = tokenizer("bert");
    let found = DataSpec { task: Task::Classify { labels: Vec::new() }, ..spec(&folder, &path, 5) };
    let data = open(&found, &tokenizer).unwrap();
    assert_eq!((data.labels, data.classes), (vec!["cold".to_owned(), "warm".to_owned()], 2));
    let rows = in_order(&found, &tokenizer);
    assert_eq!(rows.iter().map(|row| row.targets[0]).collect::<Vec<_>>(), [1, 0, 1]);
    let long = tokenizer.encode("the mark and no deeper load it").unwrap();
    assert_eq!(rows[0].tokens, [&long[..4], &long[long.len() - 1..]].concat());
    assert_eq!(rows[0].doc_start, [0; 5]);

    let names = || vec!["warm".to_owned(), "cold".to_owned()];
    let given = DataSpec { task: Task::Classify { labels: names() }, ..found.clone() };
    let rows = in_order(&given, &tokenizer);
    assert_eq!(rows.iter().map(|row| row.targets[0]).collect::<Vec<_>>(), [0, 1, 0]);
    let few = DataSpec { task: Task::Classify { labels: vec!["cold".into()] }, ..found };
    let fault = open(&few, &tokenizer).unwrap_err().to_string();
    assert!(fault.contains("d.jsonl, line 1: the label `warm` is none of `cold`; mend"), "{fault}");
}

#[test]
fn words_are_hidden_as_bert_hides_them_and_the_same_ones_when_asked_again() {
    let folder = Scratch::new();
    let text = "a ship carries its line on the hull and no deeper ".repeat(2000);
    let path = folder.write("d.txt", &text);
    let tokenizer = tokenizer("bert");
    let masked = DataSpec { task: Task::Masked, vocabulary: 200, ..spec(&folder, &path, 64) };
    let plain = tokenizer.encode_plain(&text).unwrap();
    let mut source = Source::Corpus(open(&masked, &tokenizer).unwrap().train);
    let (first, again, second) =
        (epoch_of(&mut source, 0), epoch_of(&mut source, 0), epoch_of(&mut source, 1));
    assert_eq!(first, again);
    assert_ne!(first, second);

    let rows = in_order(&masked, &tokenizer);
    let (mut hidden, mut masks, mut kept, mut words) = (0, 0, 0, 0);
    let mut restored = Vec::new();
    for row in &rows {
        let end = row.tokens.iter().rposition(|&id| id == 3).unwrap();
        assert_eq!((row.tokens[0], row.targets[0], row.targets[end]), (2, X, X));
        for (&token, &target) in row.tokens.iter().zip(&row.targets).take(end).skip(1) {
            words += 1;
            restored.push(if target == X { token } else { target });
            if target != X {
                hidden += 1;
                masks += u32::from(token == 4);
                kept += u32::from(token == target);
            }
        }
    }
    assert_eq!(restored, plain);
    let near = |part: u32, whole: u32, share: f64| {
        let (mean, deviation) = (f64::from(whole) * share, (f64::from(whole) * share * (1.0 - share)).sqrt());
        assert!((f64::from(part) - mean).abs() < 5.0 * deviation, "{part} of {whole}");
    };
    near(hidden, words, 0.15);
    near(masks, hidden, 0.8);
    // A word drawn at random is the word itself once in 200.
    near(kept, hidden, 0.1);

    let none =
        open(&DataSpec { task: Task::Masked, ..spec(&folder, &path, 64) }, &super::super::Tokenizer::bytes());
    assert_eq!(none.unwrap_err(), DataError::NoMask);
    let short = DataSpec { seq_len: 2, ..masked };
    assert_eq!(open(&short, &tokenizer).unwrap_err(), DataError::NoRoom { seq_len: 2, around: 2 });
}

/// A file of `count` one-byte documents, from `first` on.
fn numbered(folder: &Scratch, name: &str, first: u8, count: u8) -> PathBuf {
    let samples: Vec<_> =
        (first..first + count).map(|byte| json!({"text": char::from(byte).to_string()})).collect();
    lines(folder, name, &samples)
}

/// How often each byte came.
fn counted(rows: &[Sequence]) -> BTreeMap<i32, u32> {
    let mut counts = BTreeMap::new();
    for &token in rows.iter().flat_map(|row| &row.tokens).filter(|&&token| token < 256) {
        *counts.entry(token).or_default() += 1;
    }
    counts
}

#[test]
fn a_weight_says_how_often_an_epoch_sees_a_part() {
    let folder = Scratch::new();
    let (a, b, c) = (
        numbered(&folder, "a.jsonl", 0, 10),
        numbered(&folder, "b.jsonl", 20, 10),
        numbered(&folder, "c.jsonl", 40, 10),
    );
    let part = |path: &PathBuf, weight| Part { path: path.clone(), weight };
    let mixed = DataSpec {
        parts: vec![part(&a, 1.0), part(&b, 2.0), part(&c, 0.5)],
        layout: RowLayout::Padded,
        ..spec(&folder, &a, 4)
    };
    let mut source = Source::Corpus(bytes(&mixed).train);
    let first = counted(&epoch_of(&mut source, 0));
    let both = counted(&[epoch_of(&mut source, 0), epoch_of(&mut source, 1)].concat());
    assert_eq!(first.iter().filter(|(byte, _)| **byte >= 40).count(), 5);
    for (byte, count) in both {
        let wanted = if byte < 20 {
            2
        } else if byte < 40 {
            4
        } else {
            1
        };
        assert_eq!(count, wanted, "{byte}");
    }
    let order = |rows: Vec<Sequence>| rows.into_iter().map(|row| row.tokens[1]).collect::<Vec<_>>();
    let shuffled = order(epoch_of(&mut source, 0));
    assert!(!shuffled.is_sorted(), "{shuffled:?}");
    assert_eq!(shuffled, order(rows(bytes(&mixed).train, 0)), "the order is a function of the seed");
    assert_ne!(shuffled, order(rows(bytes(&DataSpec { seed: 4, ..mixed.clone() }).train, 0)));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let wrong = DataSpec { parts: vec![part(&a, weight)], ..mixed.clone() };
        assert!(matches!(open(&wrong, &Tokenizer::bytes()), Err(DataError::Weight { .. })), "{weight}");
    }
}

#[test]
fn a_share_for_validation_is_whole_documents_and_none_of_them_is_trained_on() {
    let folder = Scratch::new();
    let path = numbered(&folder, "a.jsonl", 0, 100);
    let shared = DataSpec { validation: Validation::Share(0.2), ..spec(&folder, &path, 8) };
    let split = |spec: &DataSpec| {
        let data = bytes(spec);
        (counted(&rows(data.train, 0)), counted(&rows(data.validation.unwrap(), 0)))
    };
    let (train, judged) = split(&shared);
    assert_eq!((train.len(), judged.len()), (80, 20));
    assert!(train.keys().all(|byte| !judged.contains_key(byte)));
    assert_eq!(split(&DataSpec { seed: 99, ..shared.clone() }).1, judged, "whatever the seed");

    // There is one document, and validation takes the end of it.
    let text = folder.write("t.txt", (0..100).collect::<Vec<u8>>());
    let (train, judged) = split(&DataSpec { parts: vec![Part::from(&*text)], ..shared.clone() });
    assert_eq!((*train.keys().max().unwrap(), *judged.keys().max().unwrap()), (78, 99));

    for share in [0.0001, 0.999, 1.0] {
        let one = folder.write("one.txt", "abc");
        let wrong = DataSpec {
            parts: vec![Part::from(&*one)],
            validation: Validation::Share(share),
            ..shared.clone()
        };
        assert!(matches!(open(&wrong, &Tokenizer::bytes()), Err(DataError::Split { .. })), "{share}");
    }
}

#[test]
fn batches_of_a_data_set_go_on_from_any_step() {
    let folder = Scratch::new();
    let path = numbered(&folder, "a.jsonl", 0, 50);
    let spec = DataSpec { layout: RowLayout::Padded, ..spec(&folder, &path, 4) };
    let take = |batches: &mut Batches| -> (Group, Sequence) {
        let group = batches.next_group().unwrap();
        let mut rows = Sequence::with_positions(2 * 4);
        batches.read(&group, 0, rows.rows()).unwrap();
        (group, rows)
    };
    let mut batches = Batches::new(Source::Corpus(bytes(&spec).train), 4, 2);
    let walked: Vec<_> = (0..40).map(|_| take(&mut batches)).collect();
    let mut resumed = Batches::new(Source::Corpus(bytes(&spec).train), 4, 2);
    for step in [30, 3, 14] {
        resumed.go_to(step);
        assert_eq!(take(&mut resumed), walked[step as usize]);
    }
}

#[test]
fn a_folder_of_samples_is_a_data_set_and_its_read_me_is_not_part_of_it() {
    let folder = Scratch::new();
    let data = Scratch::new();
    data.write("README.md", "about the data");
    data.write("b/2.jsonl", "{\"text\": \"\\u0002\"}\n");
    data.write("1.jsonl", "\u{feff}{\"text\": \"\\u0001\"}\n");
    let rows = in_order(&spec(&folder, data.path(), 4), &Tokenizer::bytes());
    assert_eq!(rows, [sequence(&[B, 1, B, 2], &[1, E, 2, E], &[0, 0, 2, 2])]);
    let empty = Scratch::new();
    empty.write("a.txt", "");
    assert!(fault(&spec(&folder, empty.path(), 4)).contains("is empty; give --data"));
    assert!(fault(&spec(&folder, &empty.path().join("no"), 4)).contains("no does not exist; give --data"));
}

#[test]
fn parts_of_samples_without_a_target_are_left_out_and_counted() {
    let folder = Scratch::new();
    let long = "p".repeat(40);
    let line = |prompt: &str| format!("{{\"prompt\": \"{prompt}\", \"completion\": \"yes\"}}\n");
    let path = folder.write("d.jsonl", [line(&long), line("q"), line(&long)].concat());
    for layout in [RowLayout::Packed, RowLayout::Padded] {
        let data = bytes(&DataSpec { layout, ..spec(&folder, &path, 8) });
        // 44 positions are six pieces, of which the last alone has the answer.
        assert_eq!(data.untaught, 2 * 5);
        for row in rows(data.train, 0) {
            assert!(row.targets.iter().any(|&target| target != X), "{row:?}");
        }
    }
    assert_eq!(bytes(&spec(&folder, &path, 64)).untaught, 0);
}
