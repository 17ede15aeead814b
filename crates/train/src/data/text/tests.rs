//! Judges [`super::Text`] against streams written out by hand and against a version that reads all
//! files at once.

use proptest::prelude::*;

use super::super::{Sequence, Source};
use super::*;
use crate::scratch::Scratch;

const B: i32 = BEGIN;
const E: i32 = END;
const X: i32 = IGNORED;

#[test]
fn a_file_is_cut_into_sequences_with_shifted_targets_and_a_padded_end() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", [1, 2, 3, 4]);
    let mut source = open(&path, 4);
    assert_eq!(source.sequences_per_epoch(), Some(2));
    assert_eq!(read(&mut source, 0, 0), sequence(&[B, 1, 2, 3], &[1, 2, 3, 4], &[0, 0, 0, 0]));
    assert_eq!(read(&mut source, 0, 1), sequence(&[4, E, PAD, PAD], &[E, X, X, X], &[0, 0, 2, 2]));
}

#[test]
fn documents_follow_in_the_order_of_their_paths_and_each_knows_its_start() {
    let folder = Scratch::new();
    folder.write("b.md", [5]);
    folder.write("a/z.rs", [1, 2]);
    folder.write("empty.txt", []);
    folder.write("a/notes.pdf", [9]);
    let mut source = open(folder.path(), 7);
    assert_eq!(source.sequences_per_epoch(), Some(1));
    assert_eq!(
        read(&mut source, 0, 0),
        sequence(&[B, 1, 2, E, B, 5, E], &[1, 2, E, B, 5, E, X], &[0, 0, 0, 0, 4, 4, 4])
    );
}

#[test]
fn a_sequence_that_starts_inside_a_document_counts_from_the_row() {
    let folder = Scratch::new();
    folder.write("a.txt", [1, 2, 3]);
    folder.write("b.txt", [4, 5]);
    let mut source = open(folder.path(), 3);
    assert_eq!(read(&mut source, 0, 1), sequence(&[3, E, B], &[E, B, 4], &[0, 0, 2]));
}

#[test]
fn no_sequence_is_made_for_the_last_token_alone() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", [1, 2, 3]);
    let mut source = open(&path, 4);
    assert_eq!(source.sequences_per_epoch(), Some(1));
    assert_eq!(read(&mut source, 0, 0), sequence(&[B, 1, 2, 3], &[1, 2, 3, E], &[0; 4]));
}

#[test]
fn a_single_file_needs_no_particular_name() {
    let folder = Scratch::new();
    let path = folder.write("corpus", "some text");
    assert_eq!(open(&path, 4).sequences_per_epoch(), Some(3));
}

#[test]
fn sequences_longer_than_a_piece_are_read_whole() {
    let folder = Scratch::new();
    let bytes: Vec<u8> = (0..3 * PIECE).map(|i| (i % 251) as u8).collect();
    let path = folder.write("long.txt", &bytes);
    let seq_len = 2 * PIECE + 10;
    let mut source = open(&path, seq_len);
    let whole = read(&mut source, 0, 0);
    assert_eq!(
        whole.tokens[1..],
        bytes[..seq_len - 1].iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>()
    );
}

#[test]
fn a_shuffled_epoch_holds_the_same_sequences_in_another_order() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", (0..200).collect::<Vec<u8>>());
    let mut written = open(&path, 8);
    let mut shuffled = Source::Text(Text::open(&path, 8, 300, Order::Shuffled { seed: 5 }).unwrap());
    let count = written.sequences_per_epoch().unwrap();
    let epoch =
        |source: &mut Source, epoch| (0..count).map(|i| read(source, epoch, i).tokens).collect::<Vec<_>>();
    let (plain, first, second) = (epoch(&mut written, 0), epoch(&mut shuffled, 0), epoch(&mut shuffled, 1));
    assert_ne!(first, plain);
    assert_ne!(first, second);
    for mut order in [first, second] {
        order.sort();
        let mut plain = plain.clone();
        plain.sort();
        assert_eq!(order, plain);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_files_give_what_reading_them_at_once_gives(
        files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8),
        seq_len in 1usize..20,
    ) {
        let folder = Scratch::new();
        let mut stream = Vec::new();
        for (i, bytes) in files.iter().enumerate() {
            folder.write(&format!("{i}.txt"), bytes);
            if !bytes.is_empty() {
                stream.push((B, i));
                stream.extend(bytes.iter().map(|&byte| (i32::from(byte), i)));
                stream.push((E, i));
            }
        }
        prop_assume!(stream.len() >= seq_len.max(1));

        let mut source = open(folder.path(), seq_len);
        for index in 0..source.sequences_per_epoch().unwrap() {
            let got = read(&mut source, 0, index);
            let first = index as usize * seq_len;
            for t in 0..seq_len {
                let here = stream.get(first + t);
                let next = here.and_then(|_| stream.get(first + t + 1));
                prop_assert_eq!(got.tokens[t], here.map_or(PAD, |x| x.0));
                prop_assert_eq!(got.targets[t], next.map_or(X, |x| x.0));
                let document = here.map(|x| x.1);
                let start = (0..=t).find(|&s| stream.get(first + s).map(|x| x.1) == document).unwrap();
                prop_assert_eq!(got.doc_start[t], start as i32);
            }
        }
    }
}

#[test]
fn a_path_that_is_not_there_is_named() {
    let folder = Scratch::new();
    let path = folder.path().join("nowhere");
    assert_eq!(fault(&path, 4), DataError::Missing { path });
}

#[test]
fn a_link_to_nothing_cannot_be_read() {
    let folder = Scratch::new();
    let path = folder.path().join("broken.txt");
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &path).unwrap();
    assert!(matches!(fault(folder.path(), 4), DataError::Unreadable { path: named, .. } if named == path));
}

#[test]
fn what_is_no_file_is_refused_before_it_is_opened() {
    let path = PathBuf::from("/dev/null");
    assert_eq!(fault(&path, 4), DataError::NotAFile { path });
}

#[test]
fn nothing_to_read_is_told_apart_from_no_text_files() {
    let folder = Scratch::new();
    let path = folder.path().to_owned();
    assert_eq!(fault(&path, 4), DataError::NoFiles { path: path.clone() });
    let file = folder.write("empty.txt", []);
    assert_eq!(fault(&path, 4), DataError::Empty { path });
    assert_eq!(fault(&file, 4), DataError::Empty { path: file });
}

#[test]
fn too_little_text_says_which_length_would_work_and_that_length_works() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", "hello");
    let fault = fault(&path, 512).to_string();
    assert_eq!(
        fault,
        "the data has 7 tokens, less than one sequence of 512; use --seq-len 7 or less, or more text"
    );
    assert_eq!(open(&path, 7).sequences_per_epoch(), Some(1));
}

#[test]
fn a_vocabulary_without_room_for_bytes_is_refused() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", "hello");
    let fault = Text::open(&path, 4, 258, Order::AsWritten).unwrap_err();
    assert_eq!(fault, DataError::Vocabulary { vocabulary: 258, needed: 259 });
    assert!(Text::open(&path, 4, 259, Order::AsWritten).is_ok());
    assert_eq!(
        Text::open(&path, 0, 259, Order::AsWritten).unwrap_err(),
        DataError::SequenceLength { seq_len: 0 }
    );
}

#[test]
fn a_file_that_grows_shrinks_or_goes_away_is_noticed() {
    for change in [Some("hello, world and more"), Some("h"), None] {
        for already_open in [false, true] {
            let folder = Scratch::new();
            let path = folder.write("a.txt", "hello, world");
            let mut source = open(&path, 4);
            if already_open {
                read(&mut source, 0, 0);
            }
            match change {
                Some(text) => std::fs::write(&path, text).unwrap(),
                // An open file outlives its name and keeps its text.
                None if already_open => continue,
                None => std::fs::remove_file(&path).unwrap(),
            }
            let fault = source.fill(0, 1, &mut Sequence::with_positions(4)).unwrap_err();
            assert_eq!(fault, DataError::Changed { path }, "{change:?}, open: {already_open}");
        }
    }
}

#[test]
fn text_of_the_same_length_with_another_time_is_noticed() {
    let folder = Scratch::new();
    let path = folder.write("a.txt", "hello, world");
    let mut source = open(&path, 4);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let fault = source.fill(0, 1, &mut Sequence::with_positions(4)).unwrap_err();
    assert_eq!(fault, DataError::Changed { path });
}

fn open(path: &Path, seq_len: usize) -> Source {
    Source::Text(Text::open(path, seq_len, BYTE_VOCABULARY, Order::AsWritten).unwrap())
}

fn fault(path: &Path, seq_len: usize) -> DataError {
    Text::open(path, seq_len, BYTE_VOCABULARY, Order::AsWritten).unwrap_err()
}

/// Reads into memory full of rubbish, so that a position left out shows.
fn read(source: &mut Source, epoch: u64, index: u64) -> Sequence {
    let rubbish = vec![-7; source.seq_len()];
    let mut sequence = Sequence { tokens: rubbish.clone(), targets: rubbish.clone(), doc_start: rubbish };
    source.fill(epoch, index, &mut sequence).unwrap();
    sequence
}

fn sequence(tokens: &[i32], targets: &[i32], doc_start: &[i32]) -> Sequence {
    Sequence { tokens: tokens.to_vec(), targets: targets.to_vec(), doc_start: doc_start.to_vec() }
}
