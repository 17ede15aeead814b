//! Renders chats for a comparison with Jinja2: one JSON object a line on standard input, with `template`, `messages`, and
//! optionally `tools`, `add_generation_prompt`, `special`, `now` (in seconds) and `answers`; one a line on standard output, with
//! `text` or `error`, and where they were asked for with `answers` as pairs of byte offsets and how they were found as `by`.
//!
//! `reference/chat_templates.py` and `benchmarks/chat_templates.py` drive it.
#![allow(clippy::print_stdout, reason = "the other side of a pipe")]

use std::io::{self, BufRead as _, Write as _};

use plimsoll_train::data::{ChatTemplate, exact_json};
use serde_json::{Value as Json, json};

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let request = exact_json(&line?)?;
        let answer = rendered(&request).unwrap_or_else(|error| json!({ "error": error }));
        writeln!(out, "{answer}")?;
    }
    out.flush()
}

fn rendered(request: &Json) -> Result<Json, String> {
    let source = request["template"].as_str().unwrap_or_default();
    let special = request["special"].as_object().into_iter().flatten();
    let special = special.filter_map(|(name, token)| Some((name.clone(), token.as_str()?.to_owned())));
    let template = ChatTemplate::new(source, special.collect())?;
    let template = match request["now"].as_u64() {
        Some(now) => template.at(now),
        None => template,
    };
    let none = Vec::new();
    let messages = request["messages"].as_array().unwrap_or(&none);
    let tools = Some(&request["tools"]).filter(|tools| !tools.is_null());
    if request["answers"] == true {
        let rendered = template.render_answers(messages, tools, 0)?;
        let answers: Vec<[usize; 2]> =
            rendered.answers.iter().map(|range| [range.start, range.end]).collect();
        let by = format!("{:?}", rendered.by);
        return Ok(json!({ "text": rendered.text, "answers": answers, "by": by }));
    }
    let text = template.render(messages, tools, request["add_generation_prompt"] == true)?;
    Ok(json!({ "text": text }))
}
