//! Conversations whose columns hold JSON text or a table's nulls, the counting of samples, and the samples shown before
//! a run.

use super::*;
use crate::data::{Counts, Shown, shown};

/// Shows tools, calls and whether a key is null.
const TEMPLATE: &str = "{% for t in tools %}{{ t.name }};{% endfor %}{% for m in messages %}<{{ m.role }}>\
    {% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }} {% endfor %}{% endfor %}\
    {{ m.content }}{{ m.name is none }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn seen(folder: &Scratch, path: &Path, template: &str) -> Vec<Shown> {
    let tokenizer = tokenizer("chatml").with_template(template).unwrap();
    let spec = spec(folder, path, 200);
    let mut source = Source::Corpus(open(&spec, &tokenizer).unwrap().train);
    shown(&mut source, &tokenizer, &Task::Causal, 10).unwrap()
}

fn marked(sample: &Shown) -> String {
    let part = |part: &crate::data::ShownPart| {
        if part.learned { format!("[{}]", part.text) } else { part.text.clone() }
    };
    sample.parts.iter().map(part).collect()
}

#[test]
fn tools_messages_and_arguments_may_be_json_text_in_lines() {
    let folder = Scratch::new();
    let arguments = json!({"town": "x"});
    let call = |arguments: serde_json::Value| json!([{"function": {"name": "f", "arguments": arguments}}]);
    let messages = |calls: serde_json::Value| {
        json!([
            {"role": "user", "content": "a", "name": null},
            {"role": "assistant", "content": "b", "name": null, "tool_calls": calls},
        ])
    };
    let tools = json!([{"name": "f"}]);
    let ways = [
        json!({"messages": messages(call(arguments.clone())), "tools": tools}),
        json!({"messages": messages(call(json!(arguments.to_string()))), "tools": tools.to_string()}),
        json!({"messages": messages(json!(call(arguments.clone()).to_string())), "tools": tools.to_string()}),
        json!({"messages": messages(call(arguments)).to_string(), "tools": tools.to_string()}),
    ];
    for (at, way) in ways.iter().enumerate() {
        let path = lines(&folder, &format!("{at}.jsonl"), std::slice::from_ref(way));
        let samples = seen(&folder, &path, TEMPLATE);
        assert_eq!(marked(&samples[0]), "f;<user>aTrue<assistant>[town=x bTrue]", "{way}");
    }
    // The same as prompt and completion, each a list or the text of one.
    let messages = ways[0]["messages"].as_array().unwrap();
    let [prompt, completion] = [&messages[..1], &messages[1..]].map(|part| json!(part));
    for [prompt, completion] in
        [[prompt.clone(), completion.clone()], [json!(prompt.to_string()), json!(completion.to_string())]]
    {
        let way = json!({"prompt": prompt, "completion": completion, "tools": tools.to_string()});
        let path = lines(&folder, "halves.jsonl", std::slice::from_ref(&way));
        assert_eq!(
            marked(&seen(&folder, &path, TEMPLATE)[0]),
            "f;<user>aTrue<assistant>[town=x bTrue]",
            "{way}"
        );
    }
    // A prompt that only looks like a list is text.
    let plain = lines(&folder, "plain.jsonl", &[json!({"prompt": "[1, 2] is", "completion": " a list"})]);
    assert_eq!(marked(&seen(&folder, &plain, TEMPLATE)[0]), "[1, 2] is[ a list<|im_end|>]");
    let broken = lines(&folder, "broken.jsonl", &[json!({"messages": "[", "tools": null})]);
    let fault = fault(&spec(&folder, &broken, 16));
    assert!(fault.contains("broken.jsonl, line 1: `messages` is a text that is not JSON (EOF"), "{fault}");
}

/// Names of a struct's columns, and definition and repetition levels of its values.
#[cfg(feature = "parquet")]
type Column<'a> = (&'a [&'a str], &'a [i16], Option<&'a [i16]>);

#[cfg(feature = "parquet")]
#[test]
fn nulls_of_a_table_are_none_as_in_transformers_and_text_columns_may_be_json() {
    let folder = Scratch::new();
    let path = folder.path().join("d.parquet");
    let schema = "message m {
        optional group messages (LIST) { repeated group list { optional group element {
            optional binary role (UTF8); optional binary content (UTF8); optional binary name (UTF8); } } }
        optional binary tools (UTF8); }";
    let schema = parse_message_type(schema).unwrap();
    let file = fs::File::create(&path).unwrap();
    let properties = Shared::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, Shared::new(schema), properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    // Two messages of one row; the last column of both is null.
    let columns: [Column; 4] = [
        (&["user", "assistant"], &[4, 4], Some(&[0, 1])),
        (&["a", "b"], &[4, 4], Some(&[0, 1])),
        (&[], &[3, 3], Some(&[0, 1])),
        (&["[{\"name\": \"f\"}]"], &[1], None),
    ];
    for (values, definition, repetition) in columns {
        let values: Vec<ByteArray> = values.iter().map(|&text| ByteArray::from(text)).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(definition), repetition).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let samples = seen(&folder, &path, TEMPLATE);
    assert_eq!(marked(&samples[0]), "f;<user>aTrue<assistant>[bTrue]");
}

#[cfg(feature = "parquet")]
#[test]
fn values_of_a_table_that_json_lacks_are_rendered_as_in_transformers_and_not_as_none() {
    let folder = Scratch::new();
    let path = folder.path().join("d.parquet");
    let schema = "message m { optional binary messages (UTF8); optional group chat_template_kwargs {
        optional int32 day (DATE); optional int64 time (TIMESTAMP(MICROS,true)); optional int32 price (DECIMAL(5,2));
        optional double nan; optional double inf; } }";
    let schema = parse_message_type(schema).unwrap();
    let file = fs::File::create(&path).unwrap();
    let properties = Shared::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, Shared::new(schema), properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let chat = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]).to_string();
    for number in 0..6 {
        let mut column = group.next_column().unwrap().unwrap();
        let level: &[i16] = if number == 0 { &[1] } else { &[2] };
        match number {
            0 => {
                let text = [ByteArray::from(chat.as_str())];
                column.typed::<ByteArrayType>().write_batch(&text, Some(level), None)
            }
            1 | 3 => column.typed::<Int32Type>().write_batch(&[12_345], Some(level), None),
            2 => column.typed::<Int64Type>().write_batch(&[5], Some(level), None),
            4 => column.typed::<DoubleType>().write_batch(&[f64::NAN], Some(level), None),
            _ => column.typed::<DoubleType>().write_batch(&[f64::INFINITY], Some(level), None),
        }
        .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let template = "{{ [day, time, price] }} {{ nan }} {{ [nan, inf] | tojson }}{% for m in messages %}<{{ m.role }}>\
                    {{ m.content }}{% endfor %}";
    let samples = seen(&folder, &path, template);
    assert!(
        marked(&samples[0]).starts_with("['<date>', '<datetime>', '<Decimal>'] nan [NaN, Infinity]<user>a"),
        "{samples:?}"
    );
}

#[test]
fn a_template_with_line_ends_of_windows_gives_the_tokens_of_the_same_template_without() {
    let folder = Scratch::new();
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let path = lines(&folder, "d.jsonl", &[chat]);
    let source = "{% for m in messages %}\n<{{ m.role }}>\n{{ m.content }}\n{% endfor %}\n";
    let unix = seen(&folder, &path, source);
    assert_eq!(seen(&folder, &path, &source.replace('\n', "\r\n")), unix);
    assert!(marked(&unix[0]).contains("<user>\na\n"), "{unix:?}");
}

#[test]
fn samples_are_counted_and_those_longer_than_a_row_told() {
    let folder = Scratch::new();
    let path = lines(
        &folder,
        "d.jsonl",
        &[json!({"text": "ab"}), json!({"text": "abcdefghij"}), json!({"text": "c"})],
    );
    // With its opening and closing tokens, a text of n bytes has n + 1 positions.
    let packed = bytes(&spec(&folder, &path, 5));
    assert_eq!(
        packed.counts,
        Counts { samples: 3, rows: 4, tokens: 3 + 11 + 2, cut: 1, beyond: 6, unread: 0 }
    );
    let padded = bytes(&DataSpec { layout: RowLayout::Padded, ..spec(&folder, &path, 5) });
    assert_eq!(padded.counts, Counts { rows: 5, ..packed.counts });
    let labelled = lines(
        &folder,
        "l.jsonl",
        &[json!({"text": "the mark and no deeper load it", "label": 0}), json!({"text": "ship", "label": 1})],
    );
    let tokenizer = tokenizer("bert");
    let classify = DataSpec { task: Task::Classify { labels: Vec::new() }, ..spec(&folder, &labelled, 5) };
    let long = tokenizer.encode_plain("the mark and no deeper load it").unwrap().len() as u64;
    let counts = open(&classify, &tokenizer).unwrap().counts;
    let short = tokenizer.encode_plain("ship").unwrap().len() as u64;
    let expected = Counts { samples: 2, rows: 2, tokens: 3 + short, cut: 1, beyond: 0, unread: long - 3 };
    assert_eq!(counts, expected, "a classifier reads one row of a text");
    // The first two rows of the pair have nothing to learn and are left out.
    let pair = json!({"prompt": "0123456789ab", "completion": "cd"});
    let prompted = bytes(&spec(&folder, &lines(&folder, "p.jsonl", &[pair]), 5)).counts;
    let in_all = prompted.tokens + prompted.unread;
    assert_eq!(prompted, Counts { samples: 1, rows: 1, cut: 1, beyond: prompted.tokens, ..prompted });
    assert_eq!((in_all, prompted.unread), (15, 10), "{prompted:?}");
    let mut source = Source::Corpus(open(&classify, &tokenizer).unwrap().train);
    let samples = shown(&mut source, &tokenizer, &classify.task, 2).unwrap();
    let mut classes: Vec<_> = samples.iter().map(|sample| sample.class).collect();
    classes.sort_unstable();
    assert_eq!(classes, [Some(0), Some(1)]);
}

/// A table of texts beside a column of which no sample is made, in two row groups of two rows.
#[cfg(feature = "parquet")]
fn table(folder: &Scratch, kind: &str, texts: [&[u8]; 4], unused: &[u8]) -> PathBuf {
    let path = folder.path().join("bytes.parquet");
    let schema = format!("message m {{ required binary text {kind}; required binary scan {kind}; }}");
    let schema = parse_message_type(&schema).unwrap();
    let properties = Shared::new(WriterProperties::builder().build());
    let file = fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Shared::new(schema), properties).unwrap();
    for texts in texts.chunks(2) {
        let mut group = writer.next_row_group().unwrap();
        for values in [texts, &[unused; 2]] {
            let values: Vec<ByteArray> =
                values.iter().map(|&bytes| ByteArray::from(bytes.to_vec())).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    path
}

#[cfg(feature = "parquet")]
#[test]
fn bytes_of_a_table_that_are_no_text_are_refused_by_column_and_row_unless_nothing_is_made_of_them() {
    let folder = Scratch::new();
    let broken: [&[u8]; 4] = [b"one", b"two", b"thr\xffee", b"four"];
    let whole: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
    let same = ["one", "two", "three", "four"].map(|text| json!({"text": text}));
    let same = spec(&folder, &lines(&folder, "same.jsonl", &same), 4);
    for kind in ["", "(UTF8)"] {
        let path = table(&folder, kind, whole, b"\xff\xd8\xff");
        let rows = in_order(&spec(&folder, &path, 4), &Tokenizer::bytes());
        assert_eq!(rows, in_order(&same, &Tokenizer::bytes()), "{kind}");
    }
    let path = table(&folder, "", broken, b"");
    let refused = spec(&folder, &path, 4);
    let said = fault(&refused);
    assert!(
        said.contains("bytes.parquet, line 3: `text` holds bytes that are no UTF-8 text; mend"),
        "{said}"
    );
    assert_eq!(bytes(&DataSpec { skip_bad_lines: true, ..refused }).skipped, 1);
    // The library stops at a column that is declared as text and holds none.
    let path = table(&folder, "(UTF8)", broken, b"");
    let said = fault(&spec(&folder, &path, 4));
    let expected =
        "bytes.parquet, row 3: `text` is a column of texts and holds bytes that are no UTF-8 text; write";
    assert!(said.contains(expected), "{said}");
}
