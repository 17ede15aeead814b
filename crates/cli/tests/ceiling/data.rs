//! Lines, texts and files of columns that expand when they are read.

use std::sync::Arc;
use std::thread;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

#[test]
fn lines_and_texts_beyond_reason_are_refused() {
    let home = Home::with_model();
    let train = |data: &str| TRAIN.replace("text.txt", data);
    sparse(&home.path("long.jsonl"), 1 << 30);
    refused(&home, "a line of 1 GiB", &train("long.jsonl"), "long.jsonl");
    refused(&home, "a line of 1 GiB", "plan --model model --data long.jsonl", "long.jsonl");
    sparse(&home.path("long.txt"), 1 << 30);
    refused(&home, "a text of 1 GiB without a seam", &train("long.txt"), "long.txt");
    home.write("deep.jsonl", format!("{{\"text\":\"a\",\"x\":{}}}\n", deep("[", "", "]", 100_000)));
    refused(&home, "a deep line", &train("deep.jsonl"), "deep.jsonl");
    written(&home.path("lists.jsonl"), |out| {
        out.write_all(b"{\"text\":\"a\",\"x\":[0").unwrap();
        fill(out, ",{}", 3_000_000);
        out.write_all(b"]}\n").unwrap();
    });
    bounded(&home, "a line of a million objects", &train("lists.jsonl"));
    written(&home.path("columns.jsonl"), |out| {
        out.write_all(b"{\"text\":\"a\"").unwrap();
        (0..300_000).for_each(|n| write!(out, ",\"{n}\":0").unwrap());
        out.write_all(b"}\n").unwrap();
    });
    bounded(&home, "a line of 300,000 columns", &train("columns.jsonl"));
}

fn write_parquet_files(folder: &Path) {
    let codecs = [
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("lz4", Compression::LZ4),
        ("lz4_raw", Compression::LZ4_RAW),
    ];
    let properties = |codec: Compression| {
        WriterProperties::builder()
            .set_compression(codec)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
            .set_data_page_size_limit(1 << 30)
            .set_dictionary_page_size_limit(1 << 30)
    };
    for (name, codec) in codecs {
        // One text of 100 MB, which compresses to almost nothing.
        text(&folder.join(format!("{name}.parquet")), properties(codec).build(), 100_000_000);
    }
    list(&folder.join("list.parquet"), properties(Compression::SNAPPY).build(), 20_000_000);
    many_groups(&folder.join("groups.parquet"));
    let depth = 20_000;
    let schema = format!(
        "message m {{ {} optional int32 x; {} }}",
        "optional group g {".repeat(depth),
        "}".repeat(depth)
    );
    column(&folder.join("deep.parquet"), &schema, WriterProperties::new());
}

fn text(path: &Path, properties: WriterProperties, bytes: usize) {
    let schema = Arc::new(parse_message_type("message m { required binary text (UTF8); }").unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let text = ByteArray::from(vec![b'a'; bytes]);
    column.typed::<ByteArrayType>().write_batch(&[text], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

/// One row with a list of so many equal numbers.
fn list(path: &Path, properties: WriterProperties, elements: usize) {
    let schema =
        "message m { required group text (LIST) { repeated group list { required int32 element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (values, present, mut again) = (vec![7; elements], vec![1i16; elements], vec![1i16; elements]);
    again[0] = 0;
    column.typed::<Int32Type>().write_batch(&values, Some(&present), Some(&again)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

fn many_groups(path: &Path) {
    let schema = Arc::new(parse_message_type("message m { required int32 text; }").unwrap());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    for n in 0..30_000 {
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[n], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
}

fn column(path: &Path, schema: &str, properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[], Some(&[0]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn files_of_columns_that_unfold_are_refused() {
    let home = Home::with_model();
    // The writer of deep schemas is as recursive as their reader.
    let folder = home.path("");
    let writer = thread::Builder::new().stack_size(1 << 30).spawn(move || write_parquet_files(&folder));
    writer.unwrap().join().unwrap();
    let train = |name: &str| TRAIN.replace("text.txt", name);
    for name in ["snappy", "gzip", "zstd", "brotli", "lz4", "lz4_raw"] {
        let name = format!("{name}.parquet");
        let bytes = fs::metadata(home.path(&name)).unwrap().len();
        assert!(bytes < 6_000_000, "{name} has {bytes} bytes");
        refused(&home, "a text of 100 MB", &train(&name), &name);
    }
    refused(&home, "a list of 20 million numbers", &train("list.parquet"), "list.parquet");
    bounded(&home, "30,000 groups of rows", &train("groups.parquet"));
    refused(&home, "20,000 groups in each other", &train("deep.parquet"), "deep.parquet");
    lies(&home, &train("lie.parquet"));
}

/// A file whose footer, and whatever stands in it, is not what it says: each byte of the last kilobyte set to the largest
/// number of its encoding, some at a time.
fn lies(home: &Home, command: &str) {
    let whole = home.read("snappy.parquet");
    let small = if whole.len() > 1 << 20 { &whole[whole.len() - (1 << 20)..] } else { &whole[..] };
    let footer = small.len() - 8;
    let with = |from: usize, bytes: &[u8]| {
        let mut lie = small.to_vec();
        lie[from..from + bytes.len()].copy_from_slice(bytes);
        home.write("lie.parquet", lie);
        refused(home, &format!("{bytes:x?} at {from}"), command, "lie.parquet");
    };
    with(footer, &u32::MAX.to_le_bytes());
    with(footer, &i32::MAX.to_le_bytes());
    let begin = footer - u32::from_le_bytes(small[footer..footer + 4].try_into().unwrap()) as usize;
    // A varint of five bytes is a number of 32 bits, and one of ten the longest there is.
    for at in (begin..footer - 10).step_by(29) {
        with(at, &[0xff, 0xff, 0xff, 0xff, 0x0f]);
    }
    with(begin, &[0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]);
}
