//! A run describes its data before it begins: counts, samples, and the words of a template that refuses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::support::{Home, SMALL, texts};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}\
                        {% if add_generation_prompt %}assistant {% endif %}";

fn chat(answer: &str) -> String {
    let messages = json!([{"role": "user", "content": "line?"}, {"role": "assistant", "content": answer}]);
    format!("{}\n", json!({ "messages": messages }))
}

#[test]
fn samples_are_shown_with_what_is_learned_on_the_terminal_and_on_the_page() {
    let home = Home::with_model();
    home.write("model/chat_template.jinja", TEMPLATE);
    home.write("d.jsonl", chat("line") + &chat(&"line counts bytes ".repeat(20)));
    let train = "train --model model --data d.jsonl --packing false --max-steps 1";
    let (_, said) = home.done(&format!("{train} --show-samples 2 --output-dir out {SMALL}"));
    assert!(said.contains("data: 2 samples in "), "{said}");
    assert!(said.contains("1 sample is longer than --seq-len 16: "), "{said}");
    assert!(said.contains(" of these tokens lie in further rows, without the text before"), "{said}");
    assert!(said.contains("row 1, ⟦learned⟧:\n") && said.contains("row 2, ⟦learned⟧:\n"), "{said}");
    assert!(said.contains("line⟧") && !said.contains('\u{1b}'), "{said}");
    let metrics = String::from_utf8(home.read("out/metrics.jsonl")).unwrap();
    let start: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    assert_eq!(start["samples"].as_array().unwrap().len(), 2);
    assert!(start["samples"][0]["parts"].as_array().unwrap().iter().any(|part| part[1] == true));
    home.done("report out --html page.html");
    let page = String::from_utf8(home.read("page.html")).unwrap();
    assert!(page.contains(&start["samples"][0]["parts"].to_string()), "the page has no samples");
    let (_, said) = home.done(&format!("{train} {SMALL}"));
    assert!(said.contains("data: 2 samples in ") && !said.contains("learned⟧"), "{said}");
}

#[test]
fn the_words_of_a_template_that_refuses_cannot_steer_the_terminal() {
    let home = Home::with_model();
    home.write("d.jsonl", chat("line"));
    home.write("model/chat_template.jinja", "{{ raise_exception('no \\x1b[31m\\nhint: trust me') }}");
    let output = home.command(&format!("train --model model --data d.jsonl --max-steps 1 {SMALL}")).output();
    let said = texts(&output.unwrap()).1;
    assert!(said.contains("no \\u{1b}[31m\\nhint: trust me (line 1 of the template)"), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains("\nhint: trust"), "{said}");
}

#[test]
fn a_hostile_template_ends_a_run_with_one_line_inside_a_small_budget() {
    let home = Home::with_model();
    home.write("d.jsonl", chat("line"));
    let double =
        "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
    for template in [
        "{{ messages|tojson(indent=1000000000) }}".to_owned(),
        format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
        format!("{{{{ {}{} }}}}", "[".repeat(50_000), "]".repeat(50_000)),
        double.to_owned(),
    ] {
        home.write("model/chat_template.jinja", &template);
        let output = home.command(&format!("train --model model --data d.jsonl --max-steps 1 {SMALL}"));
        let output = { output }.output().unwrap();
        let said = texts(&output).1;
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn made_up_data_has_no_samples_to_show_and_the_run_says_why() {
    let home = Home::new();
    let train = format!("train --synthetic --max-steps 1 {SMALL}");
    let (_, said) = home.done(&format!("{train} --show-samples 2"));
    let why = "note: --show-samples shows nothing, since this run's ids are made up and stand for no text; give --data";
    assert!(said.contains(why), "{said}");
    assert!(!home.done(&train).1.contains("--show-samples"));
}

#[test]
fn a_filter_that_nobody_has_is_the_templates_fault_and_not_that_of_a_line() {
    let home = Home::with_model();
    home.write("d.jsonl", chat("line"));
    let train = format!("train --model model --data d.jsonl --max-steps 1 --skip-bad-lines {SMALL}");
    let nowhere = "{% for m in messages %}{{ m.content | nope }}{% endfor %}";
    let in_a_branch =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | nope }}{% endif %}{% endfor %}";
    for template in [nowhere, in_a_branch] {
        home.write("model/chat_template.jinja", template);
        home.refused(
            &train,
            "the chat template of model/chat_template.jinja cannot be used: the filter `nope` is unknown (line 1 of \
             the template); mend it there, or put another chat_template.jinja beside tokenizer.json",
        );
    }
}

#[test]
fn a_budget_that_reading_alone_crosses_is_answered_with_one_that_works() {
    let home = Home::with_model();
    home.write("d.txt", "line counts bytes ".repeat(40));
    let small = SMALL.replace(" --memory 64MiB", "");
    let train = format!("train --model model --data d.txt --max-steps 1 {small}");
    let refused = home.command(&format!("{train} --memory 2MiB")).output().unwrap();
    let said = texts(&refused).1;
    let named = said.split("`--memory ").nth(1).and_then(|rest| rest.split('`').next());
    let named = named.unwrap_or_else(|| panic!("no budget is named: {said}"));
    home.done(&format!("{train} --memory {named}"));
}
