use serde_json::json;

use super::*;

#[test]
fn python_methods_slices_and_loop_controls_work_as_templates_use_them() {
    let template = ChatTemplate::new(
        "{%- for m in messages[::-1] %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role.upper() }}\
         {% for k, v in m.items() %}[{{ k }}={{ v }}]{% endfor %}{{ m.get('x', 'none') }}{% endfor %}\
         {{ messages | tojson(indent=2) }}{{ '<&>' }}{{ messages[1:] | length }}",
        Vec::new(),
    );
    let messages = [json!({"role": "a", "content": "b"}), json!({"role": "user", "z": [], "content": "é<"})];
    assert_eq!(
        template.unwrap().render(&messages, None, false).unwrap(),
        "USER[role=user][z=[]][content=é<]none[\n  {\n    \"role\": \"a\",\n    \"content\": \"b\"\n  },\n  {\n    \
         \"role\": \"user\",\n    \"z\": [],\n    \"content\": \"é<\"\n  }\n]<&>1"
    );
}

#[test]
fn a_refusal_and_a_mistake_come_with_their_words_and_line() {
    let template = ChatTemplate::new("\n{{ raise_exception('roles must take turns') }}", Vec::new()).unwrap();
    assert_eq!(
        template.render(&[], None, false).unwrap_err(),
        "roles must take turns (line 2 of the template)"
    );
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    let fault = ChatTemplate::new(endless, Vec::new()).unwrap().render(&[], None, false).unwrap_err();
    assert!(
        fault.starts_with("the template is not done after 33554432 instructions; look for a loop"),
        "{fault}"
    );
    let fault = ChatTemplate::new("{% for %}", Vec::new()).unwrap_err();
    assert!(fault.ends_with("(line 1 of the template)"), "{fault}");
}

#[test]
fn an_unknown_name_is_refused_when_the_template_is_loaded_except_in_branches() {
    let refused = [
        ("\n{{ messages | nope }}", "the filter `nope` is unknown (line 2 of the template)"),
        (
            "{% for m in messages %}{{ m is nope }}{% endfor %}",
            "the test `nope` is unknown (line 1 of the template)",
        ),
        (
            "{% macro f(x) %}{{ x | nope }}{% endmacro %}",
            "the filter `nope` is unknown (line 1 of the template)",
        ),
        ("{% macro f(x=1 | nope) %}{% endmacro %}", "the filter `nope` is unknown (line 1 of the template)"),
        ("{% filter nope %}x{% endfilter %}", "the filter `nope` is unknown (line 1 of the template)"),
        ("{% set x | nope %}x{% endset %}", "the filter `nope` is unknown (line 1 of the template)"),
        // A loop inside a branch is strict again, as in Jinja2.
        ("{% if x %}{% for y in [] %}{{ y | nope }}{% endfor %}{% endif %}", "the filter `nope` is unknown"),
        ("{{ [nope()] }}", "the function `nope` is unknown (line 1 of the template)"),
        ("{{ [] | random }}", "the filter `random` draws another item each time"),
    ];
    for (source, wanted) in refused {
        let fault = ChatTemplate::new(source, Vec::new()).unwrap_err();
        assert!(fault.starts_with(wanted), "{source}: {fault}");
    }
    let accepted = [
        "{% if false %}{{ x | nope }}{{ x is nope }}{% endif %}",
        "{{ 1 | nope if false }}",
        "{% if nope is defined %}{{ nope() }}{% endif %}",
        "{% for m in [] %}{{ nope() }}{% endfor %}{{ true or nope() }}",
        "{{ later() if false }}{% macro later() %}{% endmacro %}{{ later() }}",
    ];
    for source in accepted {
        assert!(render(source, &[], None).is_ok(), "{source}: {:?}", render(source, &[], None));
    }
}

#[test]
fn a_power_that_is_complex_and_texts_that_differ_each_time_are_refused_in_words() {
    let fault = |source: &str| render(source, &[], None).unwrap_err();
    assert!(fault("{{ (-8) ** (1/3) }}").starts_with("-8.0 ** 0.3333333333333333 is a complex number"));
    assert!(fault("{{ lipsum() }}").starts_with("`lipsum` writes another text each time"));
    assert!(fault("{% if true %}{{ [1] | random }}{% endif %}").starts_with("the filter `random` draws"));
    let name = "{{ '&hearts;' | striptags }}";
    assert!(fault(name).starts_with("`striptags` does not know the character `&hearts;`"), "{}", fault(name));
}

fn render(source: &str, messages: &[Json], tools: Option<&Json>) -> Result<String, String> {
    ChatTemplate::new(source, Vec::new())?.render(messages, tools, false)
}

#[test]
fn tools_are_the_same_as_a_list_and_as_json_text() {
    let source = "{% for tool in tools %}{{ tool | tojson }};{{ tool.function.parameters.type }}{% endfor %}";
    let parameters = json!({"type": "object"});
    let tool =
        |parameters: Json| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let wanted =
        r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}};object"#;
    let ways = [
        json!([tool(parameters.clone())]),
        json!(json!([tool(parameters.clone())]).to_string()),
        json!([tool(parameters.clone()).to_string()]),
        json!([tool(json!(parameters.to_string()))]),
        json!([{"type": "function", "function": json!({"name": "f", "parameters": parameters}).to_string()}]),
    ];
    for tools in &ways {
        assert_eq!(render(source, &[], Some(tools)).unwrap(), wanted, "{tools}");
    }
    let none = "{{ tools is none }}";
    for tools in [json!(""), json!("null"), Json::Null] {
        assert_eq!(render(none, &[], Some(&tools)).unwrap(), "True");
    }
    let fault = |tools: Json| render(none, &[], Some(&tools)).unwrap_err();
    assert_eq!(
        fault(json!("[{")),
        "`tools` is a text that is not JSON (EOF while parsing an object, at column 2)"
    );
    assert_eq!(fault(json!("{}")), "`tools` is a text with an object in JSON, not a list");
    assert_eq!(fault(json!([3])), "tool 1 of `tools` is a number, not an object");
    for broken in [json!({"function": "{"}), json!({"function": {"parameters": "{"}})] {
        assert!(fault(json!([broken])).contains("is a text that is not JSON (EOF"), "{broken}");
    }
}

#[test]
fn arguments_in_json_text_serve_templates_that_print_them_and_templates_that_look_inside() {
    let call = |arguments: Json| json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
    let text = call(json!(r#"{"b":1,"a":"x"}"#));
    let object = call(json!({"b": 1, "a": "x"}));
    let arguments =
        |with: &str| format!("{{% set a = messages[0].tool_calls[0].function.arguments %}}{with}");
    let show =
        |message: &Json, with: &str| render(&arguments(with), std::slice::from_ref(message), None).unwrap();
    // The arguments are a text for a template that treats them as text.
    assert_eq!(
        show(&text, "{{ a }}{{ '<' + a }}{{ a is string }}"),
        r#"{"b":1,"a":"x"}<{"b":1,"a":"x"}True"#
    );
    // Arguments are parsed values for a template that looks inside them.
    let inside = "{{ a | tojson }}{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}{% for k in a %}{{ k }}{% endfor %}\
                  {{ a.b + 1 }}{{ a['a'] }}{{ a is mapping }}{{ 'b' in a }}{{ a | length }}{{ (a | dictsort)[0] }}";
    assert_eq!(show(&text, inside), show(&object, inside));
    assert!(show(&text, "{{ a | tojson }}") == r#"{"b": 1, "a": "x"}"#);
    // Most templates accept both a text and a parsed value.
    let both = "{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}";
    assert_eq!(show(&text, both), r#"{"b":1,"a":"x"}"#);
    assert_eq!(show(&object, both), r#"{"b": 1, "a": "x"}"#);
    // Text that is no JSON stays text, and calls themselves may be JSON text.
    assert_eq!(show(&call(json!("free text")), "{{ a | tojson }}"), "\"free text\"");
    let calls = json!({"role": "assistant", "tool_calls": object["tool_calls"].to_string()});
    assert_eq!(show(&calls, "{{ a.b }}"), "1");
    // Words of a tool or a user are never taken for more than text.
    let words = json!({"role": "tool", "content": "{\"a\": 1}"});
    assert_eq!(render("{{ messages[0].content | tojson }}", &[words], None).unwrap(), r#""{\"a\": 1}""#);
}

/// Calls as templates for Qwen write them.
const CALLS: &str = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}\
    {% if c.function %}{% set c = c.function %}{% endif %}<call>{{ c.name }}({{ c.arguments | tojson }})</call>\
    {% endfor %}{% endif %}{% if m.function_call %}<{{ m.function_call.name }}>{% endif %}{% endfor %}";

fn with(field: &str, value: &Json) -> Result<String, String> {
    render(CALLS, &[json!({"role": "assistant", "content": "x", field: value})], None)
}

#[test]
fn calls_are_the_same_as_lists_and_objects_and_as_json_text() {
    let function = json!({"name": "f", "arguments": {"b": 1}});
    let call = json!({"type": "function", "function": function});
    let in_text = json!({"type": "function", "function": function.to_string()});
    let ways = [
        json!([call]),
        json!(json!([call]).to_string()),
        json!(call.to_string()),
        json!([call.to_string()]),
        call,
        json!([in_text]),
        json!(json!([in_text]).to_string()),
        json!([function]),
    ];
    for calls in ways {
        assert_eq!(with("tool_calls", &calls).unwrap(), "<call>f({\"b\": 1})</call>", "{calls}");
    }
    for call in [json!({"name": "f"}), json!(r#"{"name": "f"}"#)] {
        assert_eq!(with("function_call", &call).unwrap(), "<f>");
    }
    for field in ["tool_calls", "function_call"] {
        for none in [json!(""), json!(" \n"), json!("null"), Json::Null] {
            assert_eq!(with(field, &none).unwrap(), "");
        }
    }
    // A function may be no more than a name.
    let named = [json!({"role": "assistant", "tool_calls": [{"function": "f"}]})];
    assert_eq!(render("{{ messages[0].tool_calls[0].function }}", &named, None).unwrap(), "f");
}

#[test]
fn calls_in_a_text_that_is_no_json_are_refused_and_not_rendered_letter_by_letter() {
    let eof = "is a text that is not JSON (EOF while parsing an object, at column";
    let cases = [
        ("tool_calls", json!("[{"), format!("`tool_calls` {eof} 2)")),
        ("tool_calls", json!(["{"]), format!("`tool_calls` {eof} 1)")),
        ("tool_calls", json!([{"function": "{"}]), format!("`function` {eof} 1)")),
        ("function_call", json!("{"), format!("`function_call` {eof} 1)")),
        ("tool_calls", json!("3"), "`tool_calls` is a text with a number in JSON, not a list".into()),
        ("tool_calls", json!([null]), "call 1 of `tool_calls` is null, not an object".into()),
        (
            "tool_calls",
            json!([{"function": "[]"}]),
            "`function` is a text with a list in JSON, not an object".into(),
        ),
        ("function_call", json!("[]"), "`function_call` is a text with a list in JSON, not an object".into()),
    ];
    for (field, value, wanted) in cases {
        assert_eq!(with(field, &value).unwrap_err(), wanted, "{field}: {value}");
    }
}

#[test]
fn whole_numbers_of_data_beyond_64_bits_are_printed_and_reckoned_with_as_in_python() {
    let data = r#"{"n": 36893488147419103232, "m": -170141183460469231731687303715884105728}"#;
    let source = "{% set c = messages[0].content %}{{ c.n }} {{ c.n + 1 }} {{ c.n // 3 }} {{ c | tojson }}";
    let content = super::super::exact_json::parse(data).unwrap();
    let rendered = render(source, &[json!({"role": "user", "content": content})], None);
    let python = "36893488147419103232 36893488147419103233 12297829382473034410 ";
    assert_eq!(rendered.unwrap(), format!("{python}{data}"));
    // The same data as a text of JSON, in the arguments of a call.
    let call = json!({"function": {"name": "f", "arguments": data}});
    let source = "{{ messages[0].tool_calls[0].function.arguments.n }}";
    let rendered = render(source, &[json!({"role": "assistant", "content": "", "tool_calls": [call]})], None);
    assert_eq!(rendered.unwrap(), "36893488147419103232");
    // A longer one is refused: as a float it would be rendered with other digits than in Python, without any error.
    for number in ["170141183460469231731687303715884105728".to_owned(), format!("-{}", "9".repeat(400))] {
        let content = super::super::exact_json::parse(&format!("{{\"n\": {number}}}")).unwrap();
        let said =
            render("{{ messages[0].content.n }}", &[json!({"role": "user", "content": content})], None);
        let digits = number.trim_start_matches('-').len();
        let expected = format!(
            "a whole number of {digits} digits is longer than the 128 bits that chat templates take here; store it as a text"
        );
        assert_eq!(said.unwrap_err(), expected);
    }
}

#[test]
fn further_variables_come_with_the_sample() {
    let template = ChatTemplate::new("{{ enable_thinking }}{{ messages | length }}", Vec::new()).unwrap();
    let render = |more: Json| -> Result<String, String> {
        let conversation = Conversation::new(&[json!({"role": "assistant"})], None, Some(&more))?;
        let rendered = template.run(&conversation, conversation.all(), false);
        rendered.map(|rendered| rendered.text).map_err(|fault| fault.to_string())
    };
    assert_eq!(render(json!({"enable_thinking": false})).unwrap(), "False1");
    assert_eq!(render(json!("{\"enable_thinking\": false, \"messages\": []}")).unwrap(), "False1");
    assert_eq!(render(json!("")).unwrap(), "1");
    assert_eq!(render(json!(3)).unwrap_err(), "`chat_template_kwargs` is a number, not an object");
}

/// Runs on a thread with the stack that threads usually have.
fn refused(source: String, messages: Vec<Json>) -> String {
    let run = move || {
        let template = match ChatTemplate::new(&source, Vec::new()) {
            Ok(template) => template,
            Err(why) => return why,
        };
        template.render(&messages, None, false).err().unwrap_or_else(|| "it is not refused".into())
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap()
}

#[test]
fn a_hostile_template_is_refused_before_it_takes_the_stack_or_the_memory() {
    let chat = || vec![json!({"role": "user", "content": "x"})];
    let growth = "holds more than";
    let cases = [
        ("{{ messages|tojson(indent=1000000000) }}".to_owned(), growth),
        ("{{ messages|tojson(indent=2 ** 100) }}".into(), growth),
        (format!("{{{{ {}1 }}}}", "-".repeat(20_000)), "nests more than"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(20_000)), "nests more than"),
        (format!("{{{{ {}{} }}}}", "[".repeat(50_000), "]".repeat(50_000)), "nests more than"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)), "nests more than"),
        (format!("{{{{ x{}{} }}}}", "[x".repeat(50_000), "]".repeat(50_000)), "nests more than"),
        (format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(20_000)), "nests more than"),
        (format!("{}x", "{% if 1 %}".repeat(20_000)), "nests more than"),
        ("x".repeat((1 << 18) + 1), "262144 are the most"),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".into(),
            growth,
        ),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".into(),
            growth,
        ),
        (
            "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".into(),
            growth,
        ),
        ("{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}".into(), growth),
        ("{{ 'x' * 10 ** 18 }}".into(), growth),
        ("{{ [0] * 10 ** 18 }}".into(), growth),
        ("{{ 'x'.center(10 ** 15) }}".into(), growth),
        ("{{ '%1000000000000s' % 1 }}".into(), growth),
        ("{{ '{:1000000000000}'.format(1) }}".into(), growth),
        ("{% set a = 'x' * 100000 %}{{ a.replace('x', a) }}".into(), growth),
        ("{% set a = 'x' * 100000 %}{{ a.join(a) }}".into(), growth),
        ("{% set a = 'x' * 100000 %}{{ a|list|map('replace', 'x', a)|join }}".into(), growth),
        ("{{ 'a\\n' * 10000 | indent(10000) }}".into(), ""),
        ("{{ ('a\\n' * 10000) | indent(10000) }}".into(), growth),
        ("{{ 'x'|batch(10 ** 15, 'y')|list }}".into(), ""),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}".into(), growth),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".into(), "not done after"),
        (
            "{% set a = 'x' * 1000000 %}{% for i in range(100000) %}{% set b = a|upper %}{% endfor %}".into(),
            "not done after",
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}".into(),
            "128 deep",
        ),
        (
            "{% set ns = namespace(x={}) %}{% for i in range(50000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}".into(),
            "128 deep",
        ),
        (
            "{% set ns = namespace() %}{% for i in range(50000) %}{% set ns.x = [u]|map('default', ns.x) %}{% endfor %}".into(),
            "128 deep",
        ),
        ("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}".into(), "holds itself"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(), "too deeply"),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(), "too deeply"),
        ("{% macro m(f) %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}".into(), "too deeply"),
        (
            "{% set ns = namespace() %}{% for i in range(100000) %}{% set p = ns.f %}{% macro g() %}{{ p }}{% endmacro %}\
             {% set ns.f = g %}{% endfor %}".into(),
            growth,
        ),
        (
            "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.n = namespace(p=ns.n) %}{% endfor %}".into(),
            growth,
        ),
        ("{{ 10 ** 100 }}".into(), "beyond 128 bits"),
        ("{{ range(10 ** 10) }}".into(), "more than 100000"),
        ("{{ '%.999999f' % 1 }}".into(), "400 digits"),
    ];
    let mut wrong = Vec::new();
    for (source, words) in cases {
        let start: String = source.chars().take(60).collect();
        let why = refused(source, chat());
        if !why.contains(words) {
            wrong.push(format!("{start}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn data_that_nests_deeply_is_refused() {
    let mut content = json!("x");
    for _ in 0..110 {
        content = json!([content]);
    }
    let why = refused("{{ messages }}".into(), vec![json!({"role": "user", "content": content})]);
    assert_eq!(why, "lists and objects lie more than 100 deep inside each other");
}

mod answers;
