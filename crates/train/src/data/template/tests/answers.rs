//! Finding answers in a rendering, for templates that write turn by turn and for those that do not.

use super::*;
use crate::reading;

/// Templates of seven kinds. In order: `ChatML`; one that drops the thoughts of all answers but the last; one that puts
/// the system prompt into the first turn and refuses roles that do not alternate; one that writes a mark after the
/// last message; one that always ends with the start of an answer; one that drops thoughts and writes a mark after
/// the last message; and one that numbers the rounds.
const STYLES: [&str; 7] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}\
     {% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}\
     {% if '</think>' in m.content and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1].strip() }}\
     {% else %}{{ m.content }}{% endif %}{% else %}{{ m.content }}{% endif %}</{{ m.role }}>\n{% endfor %}\
     {% if add_generation_prompt %}<assistant>{% endif %}",
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}\
     {% else %}{% set rest = messages %}{% endif %}{% for m in rest %}\
     {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
     {% if m.role == 'user' %}[INST] {% if loop.first and system %}<<SYS>>{{ system }}<</SYS>>{% endif %}\
     {{ m.content.strip() }} [/INST]{% else %} {{ m.content.strip() }} </s>{% endif %}{% endfor %}",
    CLOSES,
    PROMPTS,
    "{% for m in messages %}<|{{ m.role }}|>{% if loop.last %}{{ m.content }}{% else %}\
     {{ m.content.split('</think>')[-1].strip() }}{% endif %}<|end|>{% endfor %}\
     {% if add_generation_prompt %}<|assistant|>{% else %}<|endoftext|>{% endif %}",
    "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index0 // 2 + 1 }}]\n\nq: {{ m.content }}\n\na: \
     {% else %}{{ m.content }}\n\n{% endif %}{% endfor %}",
];

const CLOSES: &str = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}";

const PROMPTS: &str = "<s>{% for m in messages %}<|h|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}\
    {{ '<|h|>assistant\n' }}";

fn exchanges(count: usize) -> Vec<Json> {
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    for at in 0..count {
        messages.push(json!({"role": "user", "content": format!("question {at}")}));
        let thought = if at % 3 == 0 { "<think>hm\n</think>\n" } else { "" };
        messages.push(json!({"role": "assistant", "content": format!("{thought}answer {at} é")}));
    }
    messages
}

fn texts(rendered: Rendered) -> (String, Vec<Range<usize>>) {
    (rendered.text, rendered.answers)
}

#[test]
fn windows_find_the_answers_that_the_careful_way_finds() {
    for (style, source) in STYLES.into_iter().enumerate() {
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        for count in [9, 10, 13, 30] {
            let mut messages = exchanges(count);
            for (from, last) in [(0, messages.len()), (7, messages.len()), (0, messages.len() - 1)] {
                messages.truncate(last);
                let conversation = Conversation::new(&messages, None, None).unwrap();
                let search = Search::new(&template, &conversation);
                let found = search.answers(from).unwrap();
                assert_eq!(
                    texts(found),
                    texts(search.carefully(from).unwrap()),
                    "style {style}, {count} exchanges"
                );
            }
        }
    }
}

#[test]
fn a_long_round_of_calls_is_found_by_windows_too() {
    let mut messages = vec![json!({"role": "user", "content": "go"})];
    for at in 0..60 {
        messages.push(json!({"role": "assistant", "content": format!("<think>t{at}</think>call {at}")}));
        messages.push(json!({"role": "tool", "content": format!("result {at}")}));
    }
    messages.push(json!({"role": "assistant", "content": "done"}));
    for source in &STYLES[..2] {
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        let conversation = Conversation::new(&messages, None, None).unwrap();
        let search = Search::new(&template, &conversation);
        let found = search.answers(0).unwrap();
        let (rendered, length) = (search.rendered(), found.text.len());
        assert_eq!(found.by, FoundBy::Windows);
        assert_eq!(texts(found), texts(search.carefully(0).unwrap()));
        assert!(rendered < 40 * length as u64, "{rendered} of {length}");
    }
}

#[test]
fn the_work_of_finding_answers_grows_with_the_conversation_and_not_with_its_square() {
    for source in STYLES {
        let template = ChatTemplate::new(source, Vec::new()).unwrap();
        let times = |count: usize| {
            let conversation = Conversation::new(&exchanges(count), None, None).unwrap();
            let search = Search::new(&template, &conversation);
            let found = search.answers(0).unwrap();
            assert_eq!((found.answers.len(), found.by), (count, FoundBy::Windows));
            search.rendered() as f64 / found.text.len() as f64
        };
        let (short, long) = (times(100), times(2_000));
        assert!(short < 40.0 && long < 1.25 * short, "renderings of the whole: {short}, {long}");
    }
}

#[test]
fn a_template_that_looks_at_the_whole_is_asked_carefully() {
    // The letter before each answer depends on the number of messages before it, in a way no window sees.
    let source = "{% for m in messages %}{{ 'abcdefghijk'[loop.index0 % 11] }}{{ m.role }}:{{ m.content }};{% endfor %}\
                  {% if add_generation_prompt %}{{ 'abcdefghijk'[(messages | length) % 11] }}assistant:{% endif %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    let conversation = Conversation::new(&exchanges(20), None, None).unwrap();
    let search = Search::new(&template, &conversation);
    let found = search.answers(0).unwrap();
    assert_eq!(found.by, FoundBy::OneByOne);
    assert_eq!(texts(found), texts(search.carefully(0).unwrap()));
}

#[test]
fn a_search_that_takes_too_long_is_given_up_with_advice_and_reports_that_it_gets_on() {
    let source = "{% for m in messages %}{{ 'abcdefghijk'[loop.index0 % 11] }}{{ m.content }};{% endfor %}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    let conversation = Conversation::new(&exchanges(300), None, None).unwrap();
    let steps = reading::steps();
    let fault = Search::limited(&template, &conversation, 100_000).answers(0).unwrap_err();
    assert!(reading::steps() >= steps + 10);
    assert_eq!(
        fault.to_string(),
        "the conversation is too long to be rendered turn by turn; add {% generation %} marks to the chat template, or \
         divide the conversation"
    );
    assert!(Search::new(&template, &conversation).answers(0).is_ok());
}

/// A rendering with its answers in double brackets.
fn shown(template: &ChatTemplate, messages: &[Json], from: usize) -> Result<String, RenderFault> {
    let conversation = Conversation::new(messages, None, None).unwrap();
    let Rendered { text, answers, .. } = template.answers(&conversation, from)?;
    let (mut shown, mut told) = (String::new(), 0);
    for answer in answers {
        shown.extend([&text[told..answer.start], "[[", &text[answer.clone()], "]]"]);
        told = answer.end;
    }
    Ok(shown + &text[told..])
}

fn chat(turns: &[&str]) -> Vec<Json> {
    let roles = ["user", "assistant"].into_iter().cycle();
    turns.iter().zip(roles).map(|(turn, role)| json!({"role": role, "content": turn})).collect()
}

fn compiled(source: &str) -> ChatTemplate {
    let special = vec![("bos_token".into(), "<s>".into()), ("eos_token".into(), "<|endoftext|>".into())];
    ChatTemplate::new(source, special).unwrap()
}

#[test]
fn an_end_behind_the_last_turn_alone_belongs_to_the_last_answer() {
    let template = compiled(CLOSES);
    assert_eq!(
        shown(&template, &chat(&["a", "b", "c", "d"]), 0).unwrap(),
        "<|user|>\na<|end|>\n<|assistant|>\n[[b<|end|>\n]]<|user|>\nc<|end|>\n<|assistant|>\n[[d<|end|>\n<|endoftext|>]]"
    );
    // The same, where the thoughts of earlier answers are dropped too.
    let template = compiled(STYLES[5]);
    assert_eq!(
        shown(&template, &chat(&["a", "<think>x</think>b", "c", "<think>y</think>d"]), 0).unwrap(),
        "<|user|>a<|end|><|assistant|>[[b<|end|>]]<|user|>c<|end|><|assistant|>[[<think>y</think>d<|end|><|endoftext|>]]"
    );
}

#[test]
fn a_prompt_that_is_always_written_is_never_learned() {
    let template = compiled(PROMPTS);
    let wanted = "<s><|h|>user\na<|end|>\n<|h|>assistant\n[[b<|end|>\n]]<|h|>user\nc<|end|>\n\
                  <|h|>assistant\n[[d<|end|>\n]]<|h|>assistant\n";
    assert_eq!(shown(&template, &chat(&["a", "b", "c", "d"]), 0).unwrap(), wanted);
    let one = "<s><|h|>user\na<|end|>\n<|h|>assistant\n[[b<|end|>\n]]<|h|>assistant\n";
    assert_eq!(shown(&template, &chat(&["a", "b"]), 0).unwrap(), one);
}

#[test]
fn words_that_move_once_more_turns_follow_are_not_taken_for_an_answer() {
    // Tools stand before the last turn of the user, so every earlier rendering differs from the whole at its begin.
    let template = compiled(
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}\
         {% endif %}{% endfor %}{% for m in messages %}{% if loop.index0 == ns.last %}[TOOLS]t[/TOOLS]{% endif %}\
         {% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    );
    assert_eq!(
        shown(&template, &chat(&["a", "b", "c", "d"]), 0).unwrap(),
        "[INST]a[/INST][[b</s>]][TOOLS]t[/TOOLS][INST]c[/INST][[d</s>]]"
    );
}

#[test]
fn a_prompt_that_the_whole_lacks_leaves_the_content_whole() {
    let template = compiled(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}\
         {% if add_generation_prompt %}<assistant><think>{% endif %}",
    );
    assert_eq!(
        shown(&template, &chat(&["a", "<b>", "c", "<think>d"]), 0).unwrap(),
        "<user>a</end><assistant>[[<b></end>]]<user>c</end><assistant><think>[[d</end>]]"
    );
    // An answer that opens the conversation begins with its content, even if the same words occur elsewhere.
    let template = compiled("b is said. {% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}");
    let opens = [json!({"role": "assistant", "content": "b"}), json!({"role": "user", "content": "c"})];
    assert_eq!(shown(&template, &opens, 0).unwrap(), "b is said. <assistant>[[b|]]<user>c|");
}

#[test]
fn a_template_whose_answers_cannot_be_told_is_refused_by_its_name() {
    let source = "{{ messages[-1].content | upper }}{{ messages | length }}{{ messages[0].content }}";
    let fault = shown(&compiled(source), &chat(&["a", "b", "c", "d"]), 0).unwrap_err();
    assert_eq!(fault, RenderFault::Answers { message: 1 });
    assert!(fault.to_string().starts_with("the chat template writes message 2 differently"), "{fault}");
}

#[test]
fn of_marked_answers_those_of_the_prompt_are_left_out_however_many_marks_they_have() {
    let template = compiled(
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\
         -{% generation %}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let turns = chat(&["a", "b", "c", "d"]);
    let all = "<user>a<assistant>[[b]]-[[!]]<user>c<assistant>[[d]]-[[!]]";
    assert_eq!(shown(&template, &turns, 0).unwrap(), all);
    assert_eq!(shown(&template, &turns, 3).unwrap(), "<user>a<assistant>b-!<user>c<assistant>[[d]]-[[!]]");
}
