//! Chat templates that write, nest or recurse without end.

use super::*;

const FILE: &str = "model/chat_template.jinja";
const CHAT: &str = r#"{"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]}"#;

/// A template must be refused for a prompt and for data.
fn refuses(what: &str, template: &str) {
    let home = Home::with_model();
    home.write(FILE, template);
    home.write("chat.jsonl", format!("{CHAT}\n").repeat(8));
    refused(&home, what, &TRAIN.replace("text.txt", "chat.jsonl"), FILE);
    // A prompt has one template, whose file need not be said.
    refused(&home, what, &format!("{GENERATE} --chat"), "template");
}

#[test]
fn an_indent_of_a_billion_spaces_is_refused() {
    refuses("an indent of a billion", "{{ messages|tojson(indent=1000000000) }}");
}

#[test]
fn twenty_thousand_signs_before_a_number_are_refused() {
    refuses("20,000 signs", &format!("{{{{ {}1 }}}}", "-".repeat(20_000)));
}

#[test]
fn fifty_thousand_lists_in_each_other_are_refused() {
    refuses("a deep list", &format!("{{{{ {} }}}}", deep("[", "1", "]", 50_000)));
}

#[test]
fn a_text_that_doubles_forty_times_is_refused() {
    let doubled = "{% set x = namespace(t='ab') %}{% for i in range(40) %}{% set x.t = x.t ~ x.t %}{% endfor %}{{ x.t }}";
    refuses("a text that doubles", doubled);
}
