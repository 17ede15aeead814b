//! Tokenizers and chat templates against transformers' results for the same files; see `reference/tokenizer.py`.

use std::fs;

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::*;
use crate::scratch::Scratch;

pub(in crate::data) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tokenizer").join(name)
}

pub(in crate::data) fn open(name: &str) -> Tokenizer {
    Tokenizer::open(&folder(name)).unwrap()
}

pub(in crate::data) fn expected() -> Json {
    serde_json::from_slice(&fs::read(folder("expected.json")).unwrap()).unwrap()
}

pub(in crate::data) fn ids(value: &Json) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

#[test]
fn texts_have_the_ids_of_transformers_and_come_back_from_them() {
    for (name, known) in expected()["tokenizers"].as_object().unwrap() {
        let tokenizer = open(name);
        assert_eq!(Some(tokenizer.vocabulary() as u64), known["vocab"].as_u64(), "{name}");
        for case in known["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids(&case["ids"]), "{name} {text:?}");
            assert_eq!(tokenizer.encode_plain(text).unwrap(), ids(&case["plain"]), "{name} {text:?}");
            assert_eq!(tokenizer.decode(&ids(&case["ids"])), case["decoded"].as_str().unwrap(), "{name}");
        }
    }
}

#[test]
fn special_ids_are_those_the_configuration_names() {
    assert_eq!(open("chatml").special(), Special { end: Some(2), pad: Some(0), ..Special::default() });
    assert_eq!(open("llama3").special(), Special { begin: Some(0), end: Some(1), ..Special::default() });
    assert_eq!(open("bert").special(), Special { pad: Some(0), mask: Some(4), ..Special::default() });
    assert_eq!((open("bert").opening(), open("bert").closing()), (&[2][..], &[3][..]));
    assert_eq!((open("llama3").opening(), open("llama3").closing()), (&[0][..], &[][..]));
    assert_eq!((open("chatml").pad(), open("llama3").pad()), (0, 1));
}

#[test]
fn conversations_are_rendered_as_transformers_renders_them_and_answers_found_with_and_without_marks() {
    let expected = expected();
    for style in expected["chats"].as_array().unwrap() {
        let name = style["name"].as_str().unwrap();
        for version in ["template", "marked"] {
            let source = style[version].as_str().unwrap();
            let tokenizer = open(if name == "llama3" { "llama3" } else { "chatml" });
            if version == "template" && name != "thinking" {
                assert_eq!(tokenizer.template().unwrap().source(), source, "{name}: the file's template");
            }
            let tokenizer = tokenizer.with_template(source).unwrap();
            let template = tokenizer.template().unwrap();
            let chats = style["chats"].as_array().unwrap();
            for (chat, conversation) in chats.iter().zip(expected["conversations"].as_array().unwrap()) {
                let (messages, tools) =
                    (conversation["messages"].as_array().unwrap(), &conversation["tools"]);
                let tools = (!tools.is_null()).then_some(tools);
                let rendered = template.render_answers(messages, tools, 0).unwrap();
                assert_eq!(rendered.text, chat["text"], "{name} {version}");
                assert_eq!(
                    template.render(messages, tools, true).unwrap(),
                    chat["prompt"],
                    "{name} {version}"
                );
                let placed = tokenizer.encode_placed(&rendered.text).unwrap();
                let got: Vec<i32> = placed.iter().map(|&(id, _)| id).collect();
                assert_eq!(got, ids(&chat["ids"]), "{name} {version}");
                let within = |at: usize| rendered.answers.iter().any(|answer| answer.contains(&at));
                let mask: Vec<i32> = placed.iter().map(|&(_, (from, _))| i32::from(within(from))).collect();
                assert_eq!(mask, ids(&chat["mask"]), "{name} {version}: {}", rendered.text);
            }
        }
    }
}

#[test]
fn only_the_answers_asked_for_are_found() {
    for version in ["template", "marked"] {
        let source = expected()["chats"][0][version].as_str().unwrap().to_owned();
        let tokenizer = open("chatml").with_template(&source).unwrap();
        let messages = expected()["conversations"][2]["messages"].as_array().unwrap().clone();
        let rendered = tokenizer.template().unwrap().render_answers(&messages, None, 2).unwrap();
        let said: Vec<&str> = rendered.answers.iter().map(|answer| &rendered.text[answer.clone()]).collect();
        assert_eq!(said, ["  four \n<|im_end|>\n"], "{version}");
    }
}

#[test]
fn an_answer_that_opens_a_conversation_begins_with_its_words() {
    let tokenizer = open("chatml");
    let messages =
        [json!({"role": "assistant", "content": "hello"}), json!({"role": "user", "content": "x"})];
    let rendered = tokenizer.template().unwrap().render_answers(&messages, None, 0).unwrap();
    assert_eq!(&rendered.text[rendered.answers[0].clone()], "hello<|im_end|>\n");
}

#[test]
fn a_text_that_comes_id_by_id_is_the_text_of_all_ids_and_never_half_a_character() {
    for tokenizer in [open("chatml"), open("llama3"), Tokenizer::bytes()] {
        let text = "Grüße aus 東京, naïve façade 🚢.";
        let mut stream = tokenizer.stream();
        let parts: Vec<String> =
            tokenizer.encode(text).unwrap().into_iter().map(|id| stream.push(id)).collect();
        assert_eq!(parts.concat(), text);
        assert!(parts.len() > 10 && !parts.iter().any(|part| part.contains('\u{fffd}')), "{parts:?}");
    }
}

#[test]
fn a_folder_that_is_no_tokenizer_says_what_is_missing_or_broken() {
    let folder = Scratch::new();
    let fault = |folder: &Scratch| Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(fault(&folder).contains("has no tokenizer.json; save"), "{}", fault(&folder));
    folder.write("tokenizer.json", "{\"model\": 3}");
    assert!(fault(&folder).contains("tokenizer.json cannot be used ("), "{}", fault(&folder));
    folder.write("tokenizer.json", fs::read(super::tests::folder("chatml/tokenizer.json")).unwrap());
    folder.write("tokenizer_config.json", "{\"eos_token\": {\"content\": \"<|nobody|>\"}}");
    assert_eq!(
        fault(&folder),
        "tokenizer_config.json cannot be used (its eos_token `<|nobody|>` is not in tokenizer.json); \
         take the file that was published with the model"
    );
    folder.write("tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}");
    let said =
        |file: &str| format!("the chat template of {} cannot be used: ", folder.path().join(file).display());
    assert!(fault(&folder).starts_with(&said("tokenizer_config.json")), "{}", fault(&folder));
    folder.write("chat_template.jinja", "{{ messages | nope }}");
    assert_eq!(
        fault(&folder),
        said("chat_template.jinja")
            + "the filter `nope` is unknown (line 1 of the template); mend it there, \
               or put another chat_template.jinja beside tokenizer.json"
    );
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    folder.write("tokenizer_config.json", "not json");
    assert!(fault(&folder).contains("tokenizer_config.json cannot be used ("), "{}", fault(&folder));
}

#[test]
fn of_several_templates_conversations_with_tools_take_the_one_for_tools() {
    let folder = Scratch::new();
    folder.write("tokenizer.json", fs::read(super::tests::folder("chatml/tokenizer.json")).unwrap());
    let both = json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
    folder.write("tokenizer_config.json", json!({"chat_template": both}).to_string());
    let listed = Tokenizer::open(folder.path()).unwrap();
    let source = |tools: Option<&Json>| listed.template_for(tools).unwrap().unwrap().source();
    assert_eq!(source(Some(&json!([{"name": "f"}]))), "tools");
    assert_eq!((source(None), source(Some(&json!(null)))), ("plain", "plain"));
    // As in transformers, a template in a file of its own replaces the whole list.
    folder.write("chat_template.jinja", "file");
    let file = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(file.template_for(Some(&json!([]))).unwrap().unwrap().source(), "file");
    // Beside that file, each further template has a file.
    folder.write("additional_chat_templates/tool_use.jinja", "tools in a file");
    folder.write("additional_chat_templates/rag.jinja", "{% broken");
    let beside = Tokenizer::open(folder.path()).unwrap();
    let source = |tools: Option<&Json>| beside.template_for(tools).unwrap().unwrap().source();
    assert_eq!((source(None), source(Some(&json!([])))), ("file", "tools in a file"));
    assert_ne!(
        beside.fingerprint(),
        file.fingerprint(),
        "tokenised data of one is not taken for the other's"
    );
    // A broken template for tools is no fault for conversations without tools.
    folder.write("additional_chat_templates/tool_use.jinja", "{% broken");
    let broken = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(broken.template_for(None).unwrap().unwrap().source(), "file");
    let said = broken.template_for(Some(&json!([]))).unwrap_err().to_string();
    assert!(said.contains("additional_chat_templates/tool_use.jinja cannot be used"), "{said}");
}

#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused() {
    let tokenizer = open("chatml");
    assert_eq!(tokenizer.fits(323), Ok(()));
    assert_eq!(
        tokenizer.fits(322).unwrap_err().to_string(),
        "the tokenizer has 323 ids and the model's embedding only 322 rows; \
         use the tokenizer that was published with the model"
    );
    assert!(Tokenizer::bytes().fits(258).is_err());
}
