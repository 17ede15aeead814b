//! Tokenised data on disk: found again, made again when anything changed, and never half written.

use super::*;

#[test]
fn tokenised_data_is_found_again_and_made_again_when_anything_changed_or_broke() {
    let folder = Scratch::new();
    let path = folder.write("d.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    let spec = spec(&folder, &path, 8);
    let (bytes, chatml) = (Tokenizer::bytes(), tokenizer("chatml"));
    let made = |spec: &DataSpec, tokenizer: &Tokenizer| {
        let mut calls = 0;
        Dataset::open(spec, tokenizer, &mut |_| calls += 1).unwrap();
        calls > 0
    };
    assert!(made(&spec, &bytes), "the first time");
    assert!(!made(&spec, &bytes), "the second time");
    assert!(!made(&DataSpec { seq_len: 16, layout: RowLayout::Padded, seed: 9, ..spec.clone() }, &bytes));
    assert!(made(&spec, &chatml), "another tokenizer");
    let template = chatml.with_template("{{ messages[0].content }}").unwrap();
    assert!(made(&spec, &template), "another template");
    assert!(!made(&spec, &bytes), "the first is still there");

    let written = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "{\"text\": \"one\"}\n{\"text\": \"tow\"}\n").unwrap();
    let touch = |time| fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    touch(written);
    assert!(made(&spec, &bytes), "other content of the same length and time");
    touch(std::time::SystemTime::UNIX_EPOCH);
    assert!(!made(&spec, &bytes), "the same content at another time");

    let fresh = DataSpec { cache: folder.path().join("other"), ..spec };
    assert!(made(&fresh, &bytes));
    let cache = only_file(&fresh.cache);
    let whole = fs::read(&cache).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut broken = whole.clone();
        broken[at] ^= 0x40;
        fs::write(&cache, broken).unwrap();
        assert!(made(&fresh, &bytes), "byte {at} changed");
        assert_eq!(fs::read(&cache).unwrap(), whole, "byte {at} is mended");
    }
    for len in [0, 10, whole.len() - 1] {
        fs::write(&cache, &whole[..len]).unwrap();
        assert!(made(&fresh, &bytes), "cut to {len}");
    }
    assert_eq!(only_file(&fresh.cache), cache, "nothing half made is left");
}

#[test]
fn a_cache_that_cannot_be_written_is_named_and_leaves_nothing_behind() {
    let folder = Scratch::new();
    let path = folder.write("d.txt", "text");
    let blocked = DataSpec { cache: folder.write("file", ""), ..spec(&folder, &path, 8) };
    assert!(matches!(open(&blocked, &Tokenizer::bytes()), Err(DataError::Cache { .. })));
    let bad = folder.write("bad.jsonl", "{");
    let cache = folder.path().join("unused");
    fault(&DataSpec { cache: cache.clone(), ..spec(&folder, &bad, 8) });
    assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
}
