//! Data that cannot be learned from: every refusal names the file, the line and the fault.

use super::*;

#[test]
fn every_bad_line_is_named_with_its_file_and_number_and_what_is_wrong() {
    let wrong = [
        ("{\"text\": \"a\"", "it is not JSON (EOF while parsing an object, at column 12)"),
        ("[1]", "it is a list, not an object with columns"),
        ("{\"text\": 3}", "`text` is a number, not a text"),
        ("{\"text\": \"\"}", "`text` is empty"),
        (
            "{\"body\": \"a\", \"id\": 1}",
            "the columns are `body`, `id`, and `text`, `messages`, or `prompt` and `completion` is needed",
        ),
        ("{}", "there are no columns, and `text`, `messages`, or `prompt` and `completion` is needed"),
        ("{\"messages\": \"hello\"}", "`messages` is a text that is not JSON (expected value, at column 1)"),
        ("{\"messages\": []}", "`messages` is empty"),
        ("{\"messages\": [{\"content\": \"a\"}]}", "message 1 has no `role`"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "no message is by the `assistant`, so nothing is to be learned",
        ),
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "`completion` is empty"),
        ("{\"prompt\": 1, \"completion\": \"b\"}", "`prompt` is a number, not a text"),
    ];
    for (line, why) in wrong {
        let folder = Scratch::new();
        // The blank line counts as a line.
        let path =
            folder.write("d.jsonl", format!("{{\"text\": \"good\"}}\n\n{line}\n{{\"text\": \"fine\"}}\n"));
        let strict = spec(&folder, &path, 8);
        let sentence = format!(
            "{}, line 3: {why}; mend the line, or pass over such lines with --skip-bad-lines",
            path.display()
        );
        assert_eq!(fault(&strict), sentence);
        let lenient = open(&DataSpec { skip_bad_lines: true, ..strict }, &tokenizer("chatml")).unwrap();
        let first = format!("{}, line 3: {why}", path.display());
        assert_eq!((lenient.skipped, lenient.first_skipped), (1, Some(first)));
    }
}

#[test]
fn bytes_that_are_no_text_are_named() {
    let folder = Scratch::new();
    let jsonl = folder.write("d.jsonl", b"{\"text\": \"\xff\"}\n");
    assert!(fault(&spec(&folder, &jsonl, 8)).contains("line 1: byte 11 of the line is not UTF-8 text; mend"));
    let text = folder.write("d.txt", b"ab\xffcd");
    assert!(fault(&spec(&folder, &text, 8)).contains("d.txt cannot be read (byte 2 is not UTF-8 text)"));
}

#[test]
fn what_holds_for_all_samples_is_said_once_and_cannot_be_skipped() {
    let folder = Scratch::new();
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let path = lines(&folder, "d.jsonl", &[chat]);
    let lenient = DataSpec { skip_bad_lines: true, ..spec(&folder, &path, 8) };
    assert_eq!(open(&lenient, &Tokenizer::bytes()).unwrap_err(), DataError::NoTemplate);
    // An unknown filter is a fault of the template, even if only some conversations reach it.
    let template =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | nope }}{% endif %}{% endfor %}";
    let nope = open(&lenient, &tokenizer("chatml").with_template(template).unwrap()).unwrap_err();
    let why = "the filter `nope` is unknown (line 1 of the template)".into();
    assert_eq!(nope, DataError::Template { path: None, why });
    let small = DataSpec { vocabulary: 300, ..lenient.clone() };
    assert!(fault(&small).starts_with("the tokenizer has 323 ids and the model's embedding only 300 rows"));

    let bad = folder.write("bad.jsonl", "{\"id\": 1}\n{\"id\": 2}\n");
    let sentence = fault(&DataSpec { parts: vec![Part::from(&*bad)], ..lenient.clone() });
    assert_eq!(
        sentence,
        format!(
            "{0}: none of 2 samples can be used; the first is {0}, line 1: the columns are `id`, and `text`, \
             `messages`, or `prompt` and `completion` is needed; give --data other files",
            bad.display()
        )
    );
    let csv = folder.write("d.csv", "text\nhello\n");
    let fault = fault(&DataSpec { parts: vec![Part::from(&*csv)], ..lenient });
    assert!(
        fault.ends_with("d.csv is of a kind that is not read; give --data .txt, .jsonl or .parquet files")
    );
}

#[test]
fn labels_that_make_no_sense_are_refused() {
    let classify = |folder: &Scratch, samples: &[serde_json::Value], labels: Vec<String>| {
        let path = lines(folder, "d.jsonl", samples);
        let spec = DataSpec { task: Task::Classify { labels }, ..spec(folder, &path, 8) };
        open(&spec, &tokenizer("bert")).unwrap_err().to_string()
    };
    let folder = Scratch::new();
    let mixed = [json!({"text": "line", "label": 1}), json!({"text": "line", "label": "one"})];
    let mixed = classify(&folder, &mixed, Vec::new());
    assert!(
        mixed.ends_with("has labels that are numbers and labels that are names; write all of them one way")
    );
    for (label, labels, why) in [
        (json!(-1), vec![], "the label -1 is not allowed: classes are numbered 0 to 65535"),
        (
            json!(2),
            vec!["a".to_owned(), "b".to_owned()],
            "the label 2 is not allowed: the model's classes are numbered 0 to 1",
        ),
        (json!(0.5), vec![], "`label` is a number, not a whole number or a name"),
    ] {
        let sentence = classify(&folder, &[json!({"text": "line", "label": label})], labels);
        assert!(sentence.contains(&format!("line 1: {why}; mend")), "{sentence}");
    }
    let text = DataSpec {
        task: Task::Classify { labels: Vec::new() },
        ..spec(&folder, &folder.write("d.txt", "a text"), 8)
    };
    let sentence = open(&text, &tokenizer("bert")).unwrap_err().to_string();
    assert!(sentence.contains("a text file has no labels, and `text` and `label` are needed"), "{sentence}");
}

#[test]
fn a_label_that_the_model_has_no_class_for_is_named_with_its_line() {
    let folder = Scratch::new();
    let line = |label: &str| format!("{{\"text\": \"t\", \"label\": {label}}}\n");
    let path = folder.write("d.jsonl", [line("0"), line("7")].concat());
    let task = Task::Classify { labels: Vec::new() };
    let made = DataSpec { task: task.clone(), classes: Some(3), ..spec(&folder, &path, 16) };
    let expected = "line 2: the label 7 is not allowed: the model's classes are numbered 0 to 2; mend";
    assert!(fault(&made).contains(expected), "{}", fault(&made));
    let free = DataSpec { classes: None, ..made };
    assert_eq!(open(&free, &tokenizer("chatml")).unwrap().classes, 8);
    for label in ["2000000000", "18446744073709551615", "36893488147419103232", "-1"] {
        let path = folder.write("e.jsonl", [line("0"), line(label)].concat());
        let fault = fault(&DataSpec { task: task.clone(), ..spec(&folder, &path, 16) });
        let expected =
            format!("line 2: the label {label} is not allowed: classes are numbered 0 to 65535; mend");
        assert!(fault.contains(&expected), "{fault}");
    }
}

#[test]
fn a_sample_that_the_budget_has_no_room_for_is_refused_with_its_line_its_size_and_the_budget_it_needs() {
    let folder = Scratch::new();
    let text = |bytes: usize| format!("{{\"text\": \"{}\"}}\n", "word ".repeat(bytes / 5));
    let path = folder.write("d.jsonl", [text(100), text(32 << 20)].concat());
    let held = crate::memory::process().unwrap().resident;
    let fault = fault(&DataSpec { memory: held + (64 << 20), ..spec(&folder, &path, 8) });
    let expected =
        "d.jsonl, line 2: 32.0 MiB of text in one piece; to tokenise it takes a budget of --memory ";
    assert!(fault.contains(expected), "{fault}");
}

#[test]
fn a_template_that_cannot_render_or_writes_nothing_is_named_beside_the_line() {
    let folder = Scratch::new();
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let path = lines(&folder, "d.jsonl", &[json!({"text": "good"}), chat]);
    let nothing = "writes nothing of the assistant's messages, so nothing is to be learned";
    let cases = [
        ("", nothing),
        ("{# to come #}\n", nothing),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", nothing),
        ("{% generation %}{% endgeneration %}{{ messages[1].content }}", nothing),
        (
            "{% for m in messages %}{{ m.content + m.nope }}{% endfor %}",
            "cannot render the conversation: dict has no attribute `nope` (line 1 of the template)",
        ),
    ];
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tokenizer/chatml/tokenizer.json");
    for (template, why) in cases {
        folder.write("model/tokenizer.json", std::fs::read(&from).unwrap());
        let file = folder.write("model/chat_template.jinja", template);
        let tokenizer = Tokenizer::open(file.parent().unwrap()).unwrap();
        let strict = spec(&folder, &path, 8);
        let expected = format!(
            "{}, line 2: the chat template of {} {why}; mend the line or the template, or pass over such lines with \
             --skip-bad-lines",
            path.display(),
            file.display()
        );
        assert_eq!(open(&strict, &tokenizer).unwrap_err().to_string(), expected, "{template}");
        let lenient = open(&DataSpec { skip_bad_lines: true, ..strict }, &tokenizer).unwrap();
        let first = format!("{}, line 2: the chat template {why}", path.display());
        assert_eq!((lenient.skipped, lenient.first_skipped), (1, Some(first)), "{template}");
    }
}

#[test]
fn a_template_that_hides_an_answer_is_named_with_the_line_and_every_way_out() {
    let folder = Scratch::new();
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns = [turn("user", "b"), turn("assistant", "a"), turn("user", "d"), turn("assistant", "c")];
    let path = lines(&folder, "d.jsonl", &[json!({"messages": turns[..2]}), json!({ "messages": turns })]);
    let template = "{% if messages | length > 2 %}{{ messages | map(attribute='content') | sort(reverse=true) | join }}\
                    {% else %}{% for m in messages %}{{ m.content }},{% endfor %}{% endif %}";
    let tokenizer = tokenizer("chatml").with_template(template).unwrap();
    let strict = spec(&folder, &path, 8);
    let said = open(&strict, &tokenizer).unwrap_err().to_string();
    let begin = format!(
        "{}, line 2: the chat template writes message 2 differently once others follow",
        path.display()
    );
    assert!(said.starts_with(&begin), "{said}");
    for way in
        ["{% generation %}", "another chat_template.jinja", "`prompt` and `completion`", "--skip-bad-lines"]
    {
        assert!(said.contains(way), "{said}");
    }
    let lenient = open(&DataSpec { skip_bad_lines: true, ..strict }, &tokenizer).unwrap();
    let first = format!("{}, line 2: the answer of message 2 is unclear", path.display());
    assert_eq!((lenient.skipped, lenient.first_skipped), (1, Some(first)));
}
