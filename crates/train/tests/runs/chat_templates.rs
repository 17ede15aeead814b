//! Templates that cover Jinja2's constructs, against transformers' renderings; see `reference/chat_templates.py`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use plimsoll_train::data::{ChatTemplate, exact_json};
use serde_json::Value as Json;

fn cases() -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/chat/cases.jsonl");
    fs::read_to_string(path).unwrap().lines().map(|line| exact_json(line).unwrap()).collect()
}

fn compiled(case: &Json) -> Result<ChatTemplate, String> {
    let special = case["special"].as_object().unwrap().iter();
    let special = special.map(|(name, token)| (name.clone(), token.as_str().unwrap().to_owned()));
    let template = ChatTemplate::new(case["template"].as_str().unwrap(), special.collect())?;
    Ok(template.at(case["now"].as_u64().unwrap_or(0)))
}

fn rendered(case: &Json) -> Result<String, String> {
    let tools = Some(&case["tools"]).filter(|tools| !tools.is_null());
    let prompt = case["add_generation_prompt"] == true;
    compiled(case)?.render(case["messages"].as_array().unwrap(), tools, prompt)
}

#[test]
fn every_construct_renders_as_transformers_renders_it() {
    let cases = cases();
    assert!(cases.len() > 140, "{}", cases.len());
    for case in cases {
        let name = &case["name"];
        match (rendered(&case), case["text"].as_str()) {
            (Ok(ours), Some(theirs)) => assert_eq!(ours, theirs, "{name}"),
            (Ok(ours), None) => panic!("{name}: transformers refuses it ({}), not {ours:?}", case["why"]),
            (Err(why), Some(_)) => panic!("{name}: {why}"),
            (Err(_), None) => {}
        }
    }
}

#[test]
fn marks_of_the_template_are_where_transformers_has_them() {
    let marked: Vec<Json> = cases().into_iter().filter(|case| case["answers"].is_array()).collect();
    assert_eq!(marked.len(), 3);
    for case in marked {
        let rendered =
            compiled(&case).unwrap().render_answers(case["messages"].as_array().unwrap(), None, 0).unwrap();
        let ours: Vec<[usize; 2]> = rendered.answers.iter().map(|range| [range.start, range.end]).collect();
        assert_eq!(serde_json::json!(ours), case["answers"], "{}", case["name"]);
    }
}
