"""Writes testdata/chat/cases.jsonl: templates that cover Jinja2's constructs, as transformers renders them.

Each line is a JSON object with the template, its messages, tools and special tokens, and either the `text` that
transformers rendered or `error: true` where it refused. Where the template has `generation` marks, `answers` holds their
byte ranges. `now` is the second that templates are told, where they ask.

    python reference/chat_templates.py
"""

import datetime
import json
import os
import pathlib
import time
from unittest import mock

from transformers.utils.chat_template_utils import render_jinja_template

# plimsoll speaks UTC; Python asks the system for the seconds of `%s`.
os.environ["TZ"] = "UTC"
time.tzset()

OUT = pathlib.Path(__file__).parent.parent / "testdata" / "chat" / "cases.jsonl"

CHAT = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "  What's 2 + 2? <b>é</b> "},
    {"role": "assistant", "content": "Four.", "reasoning_content": "2 + 2 = 4"},
    {"role": "user", "content": "And \"three\" \\ 'times'?"},
    {"role": "assistant", "content": "Six \U0001F600"},
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a town",
            "parameters": {
                "type": "object",
                "properties": {
                    "town": {"type": "string", "description": "Größe <b>"},
                    "days": {"type": "integer", "enum": [1, 2, 3], "default": None},
                    "exact": {"type": "boolean", "default": True},
                },
                "required": ["town"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "", "parameters": {}}},
]

CALLS = [
    {"role": "user", "content": "The weather in Köln?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {
                    "name": "weather",
                    "arguments": {"town": "Köln", "days": 2, "share": 1e-07, "big": 9223372036854775808, "one": 1.0,
                                  "huge": 1e16, "tiny": 0.0001, "off": False, "none": None, "list": [1, [2.5, "x"]]},
                },
            }
        ],
    },
    {"role": "tool", "name": "weather", "tool_call_id": "call_1", "content": "{\"rain\": true}"},
    {"role": "assistant", "content": "It rains."},
]

# A table of structs gives every key, and many are null.
NULLS = [
    {"role": "user", "content": "Hi", "name": None, "tool_calls": None, "tool_call_id": None},
    {"role": "assistant", "content": "Hello", "name": None, "tool_calls": None, "tool_call_id": None},
]

# A table of structs gives the arguments of one call the keys of all others; whole numbers may have any length.
NULL_ARGUMENTS = [
    {"role": "user", "content": "Both, please", "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"town": "Köln", "at": None}}},
        {"id": "abcdef124", "type": "function", "function": {"name": "clock", "arguments": {"town": None, "at": None}}}]},
    {"role": "assistant", "content": "Rain at noon.", "tool_calls": None},
]
LARGE_NUMBERS = [
    {"role": "user", "content": "Count", "id": 18446744073709551616},
    {"role": "assistant", "content": "Done", "tool_calls": [{"id": "abcdef125", "type": "function", "function": {
        "name": "count", "arguments": {"from": -9223372036854775809, "to": 18446744073709551615,
                                       "all": 170141183460469231731687303715884105727, "share": 1e-07}}}]},
]

# Each letter that the C library knows, also without padding; and seconds in which they have one digit or two, around the
# turns of years that begin with each day of the week, and in leap years.
FIELDS = "AaBbCcDdeFGgHhIjklMmnPpRrSsTtUuVWwXxYy"
NOW = 1763424000
MOMENTS = [NOW, 0, 951827696, 1735689599, 1735689600, 1104537599, 1104537600, 1230768000, 1262304000 + 43200,
           1293840000 + 3723, 1325376000, 1356998400, 1388534400 + 46859, 1420070400, 1451606400, 1483228800, 1514764799,
           1577836800, 4102444800, 4133980799]

# Each is a template, or a pair of one and the conversation it is for.
CASES = {
    # Text, tags and white space
    "plain text": "just text",
    "empty": "",
    "line ends of Windows": "a\r\n{% if true %}\r\n  b\r\n{% endif %}\r\nc\r\n{{ 'x\r\ny' }}",
    "line ends of old Macs": "a\r{% if true %}\rb\r{% endif %}\rc\r",
    "one trailing line break is dropped": "a\n\n",
    "trailing line break of a block": "a{% if true %}b{% endif %}\n\n",
    "blocks take their line": "a\n  {% if true %}  \n    b\n  {% endif %}  \nc",
    "minus": "a \n {%- if true -%} \n b \n {%- endif -%} \n c {{- ' d ' -}} e",
    "plus": "  {%+ if true +%}\n  b\n  {%+ endif +%}\n c",
    "variables keep their line": "a\n  {{ 'x' }}\n  b",
    "comments": "a\n  {# one #}\nb {#- two -#} c {# {% if %} {{ #} d\n{#+ x +#}\ne",
    "comment at the start": "  {# x #}  \ny",
    "raw": "{% raw %}\n {{ not }} {% this %} {% endraw %}\nx {%- raw -%} \n{# y #} {%- endraw -%} \n z",
    "tabs before blocks": "x\n\t {% set a = 1 %}\n\t{{ a }}",
    "block after a variable on a line": "{{ 1 }}  {% if true %}x{% endif %}",
    "two blocks on a line": "  {% if true %}{% if true %}x{% endif %}\n{% endif %}\ny",
    "vertical white space": "a\u00a0\u2003{%- if true %}\x0b\x0cb{% endif %}",
    # Literals
    "strings": r"""{{ 'a\'b' }}{{ "c\"d" }}{{ 'e\nf\tg\\h\x41\u00e9\U0001F600\101\q' }}{{ 'a' 'b' "c" }}{{ 'é\é' }}""",
    "numbers": "{{ 1 }} {{ 1_000 }} {{ 0x1F }} {{ 0o17 }} {{ 0b101 }} {{ 1.5 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 2E+2 }} {{ 1_0.2_5 }}",
    "constants": "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ [true, none, 'a', 1.0] }}",
    "lists and dictionaries": "{{ [] }} {{ [1, 'two', [3.0]] }} {{ {} }} {{ {'a': 1, 2: 'b', none: [true], 1.5: ()} }} {{ (1,) }} {{ (1, 2) }} {{ () }}",
    "tuples without brackets": "{{ 1, 2 }}{% set x = 1, 'a' %}{{ x }}{{ x[1] }}",
    "quotes in lists": """{{ ["it's", 'say "x"', "both ' and \\"", 'é', '\\n', '\\x00', '\\u200b', '\\u00ad', '\\\\'] }}""",
    "trailing commas": "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1, 2,) }}",
    # Operators
    "arithmetic": "{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 6 / 3 }} {{ 1.5 + 1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 3 ** 2 }}",
    "signs": "{{ -1 }} {{ +1 }} {{ --1 }} {{ - -1 }} {{ -1|abs }} {{ -(1 + 2) }} {{ not true }} {{ not not 1 }} {{ -true }}",
    "booleans are numbers": "{{ true + true }} {{ true * 3 }} {{ true == 1 }} {{ 1.0 == 1 }} {{ false < true }}",
    "joining": "{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'x' * -1 }}. {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }}",
    "comparison": "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 2 >= 2 }} {{ 3 <= 2 }} {{ none == none }} {{ [1] == [1.0] }} {{ {'a': 1} == {'a': 1} }} {{ (1,) == [1] }} {{ x == y }} {{ x == none }}",
    "logic": "{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or [] or none }} {{ not '' and 1 }} {{ true or false and false }}",
    "in": "{{ 'b' in 'abc' }} {{ 1 in [1, 2] }} {{ 3 not in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 'x' in undefined_name }} {{ 2 in range(5) }} {{ 'a' in 'b' 'a' }} {{ ('a', 1) in {'a': 1}.items() }}",
    "conditions": "{{ 'a' if true else 'b' }} {{ 'a' if false }}|{{ 'a' if false else 'b' if false else 'c' }} {{ ('x' if 1 else 'y') ~ 'z' }} {{ 'a' if '' else 'b' }}",
    "precedence": "{{ 'a' + 2 ~ 3 }} {{ 'a' ~ 'b' == 'ab' }} {{ not 1 == 2 }} {{ 1 if 1 == 1 and 2 in [2] else 0 }} {{ 2 * 3 ~ 4 }} {{ -2 ** 2 }} {{ 'a' ~ 'b' | upper }}",
    "slices": "{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ [1,2,3,4][::2] }} {{ [1,2,3,4][3:0:-1] }} {{ [1,2,3][5:] }} {{ (1,2,3)[:-1] }} {{ 'é😀x'[1] }} {{ 'abc'[-1] }} {{ range(10)[2:8:3] | list }} {{ 'abc'[10:] }}.",
    "attributes and items": "{{ {'a': {'b': 1}}.a.b }} {{ {'a': 1}['a'] }} {{ [1, 2].0 }} {{ [[1, 2]].0.1 }} {{ {'items': 5}['items'] }} {{ {1: 'x'}[1] }} {{ 'abc'['upper']() }} {{ {'a': none}.a }} {{ {}.x }}|{{ [1][5] }}|{{ none.x }}|",
    "percent formatting": "{{ '%s and %d' % ('a', 3) }} {{ '%5.2f|%-5s|%05d|%+d|%x|%X|%o|%e|%g|%%' % (3.14159, 'ab', 42, 7, 255, 255, 8, 12345.678, 0.0001) }} {{ '%(a)s' % {'a': 1} }} {{ '%s' % 'x' }} {{ '%r' % 'x' }} {{ '%c%c' % ('a', 98) }} {{ '%s' % [1, 2] }} {{ '%.3s' % 'abcdef' }} {{ '%*d' % (5, 3) }} {{ '%g' % 1e20 }} {{ '%g' % 100000.0 }}",
    "brace formatting": "{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:_}|{:_x}|{:x}|{:%}|{:+d}|{:*^7}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 12345678, 1048575, 255, 0.25, 3, 'm') }} {{ '{{}}'.format() }} {{ '{0[a]} {1.real}'.format({'a': 1}, 2) if false else '' }} {{ '{!r}'.format('x') }} {{ '{:e}'.format(1234.5) }} {{ '{:{}}'.format('a', 4) }}|",
    # Numbers and how they print
    "floats": "{{ 1e-07 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e100 }} {{ -0.0 }} {{ 1e22 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 1e400 }} {{ 100.0 }}",
    "large whole numbers": "{{ 9223372036854775808 }} {{ 18446744073709551616 * 2 }} {{ 2 ** 100 }} {{ -2 ** 64 }} {{ 10 ** 20 // 3 }}",
    "numbers of data": ("{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{{ messages[1].tool_calls[0].function.arguments | tojson }}", CALLS),
    "rounding": "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42|round }} {{ 1234.567|round(-2) }} {{ 1.21|round(1, 'ceil') }} {{ 1.29|round(1, 'floor') }} {{ 0.5|round|int }} {{ 2.4|round(0, 'ceil') }}",
    "conversion": "{{ '42'|int }} {{ ' 7 '|int }} {{ '3.9'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 'ff'|int(base=16) }} {{ 3.9|int }} {{ none|int(2) }} {{ true|int }} {{ '1.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 2|float }} {{ 3|string ~ 'a' }} {{ '1_000'|int }} {{ '0x1f'|int(base=16) }} {{ '-3'|int }}",
    "abs, sum, min, max": "{{ -3|abs }} {{ (-2.5)|abs }} {{ [1, 2, 3]|sum }} {{ [1.5, 2]|sum(start=10) }} {{ [{'v': 1}, {'v': 2}]|sum(attribute='v') }} {{ [3, 1, 2]|min }} {{ ['b', 'A']|max }} {{ []|min }}| {{ ['b', 'A']|min(case_sensitive=true) }} {{ [{'v': 3}, {'v': 1}]|min(attribute='v') }}",
    # Undefined
    "undefined prints nothing": "[{{ nothing }}] [{{ messages[0].nothing }}] [{{ nothing is defined }}] [{{ nothing is undefined }}] [{{ not nothing }}] {% if nothing %}x{% else %}y{% endif %}{% for x in nothing %}z{% endfor %}[{{ nothing|length }}][{{ nothing|list }}][{{ nothing|default('d') }}][{{ nothing|join }}][{{ [nothing] }}][{{ nothing ~ 'a' }}]",
    "undefined attribute of undefined": "{{ nothing.x }}",
    "undefined is not added": "{{ nothing + 'a' }}",
    "undefined is not called": "{{ nothing() }}",
    "undefined is not JSON": "{{ nothing|tojson }}",
    "undefined is not ordered": "{{ nothing < 1 }}",
    "none and default": "{{ none|default('x') }} {{ none|default('x', true) }} {{ ''|d('x', boolean=true) }} {{ 0|default(5) }} {{ false|default('x', true) }}",
    # Tests
    "tests": "{% for x in [1, 1.5, 'a', '', true, none, [], {}, (), nothing] %}{{ [x is string, x is number, x is integer, x is float, x is boolean, x is mapping, x is sequence, x is iterable, x is none, x is true, x is false, x is defined, x is callable] }}\n{% endfor %}",
    "tests with values": "{{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 3 is odd }} {{ 3 is even }} {{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 2 is ge 3 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ true is sameas 1 }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 'Ab' is upper }} {{ 2 is greaterthan 1 }} {{ 2 is equalto(2) }}",
    "not tests": "{{ 1 is not string }} {{ not 1 is string }} {{ 'a' is string and 1 is number }} {{ 'x' if 1 is string else 'y' }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}",
    "tests of values that iterate": "{{ range(3) is iterable }} {{ {}.items() is iterable }} {{ {}.keys() is sequence }} {{ ([]|map('upper')) is iterable }} {{ loop is defined }} {{ raise_exception is callable }} {{ namespace() is mapping }}",
    # Filters
    "cases": "{{ 'hello World'|upper }} {{ 'HeLLo'|lower }} {{ 'hELLO wORLD'|capitalize }} {{ \"it's a-small (world) [x]\"|title }} {{ 'ß'|upper }} {{ 'éa'|capitalize }}",
    "trim and replace": "[{{ '  a b \\n'|trim }}] [{{ 'xxaxx'|trim('x') }}] {{ 'aaa'|replace('a', 'b') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ 123|replace(2, 'x') }} [{{ '\\u00a0a\\u3000'|trim }}]",
    "indent": "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(2, blank=true) }}|{{ 'a\\nb'|indent('> ') }}|{{ 'a\\nb\\n'|indent(width=1, first=True) }}|",
    "length and count": "{{ 'é😀'|length }} {{ [1, 2]|count }} {{ {'a': 1}|length }} {{ messages|length }} {{ ''|length }} {{ range(7)|length }}",
    "first and last": "{{ [1, 2, 3]|first }} {{ [1, 2, 3]|last }} {{ 'abc'|first }} {{ 'abc'|last }} [{{ []|first }}] {{ {'a': 1, 'b': 2}|last }} {{ messages|first|length }}",
    "join": "{{ [1, 2, 'a', none, true]|join(', ') }} {{ 'abc'|join('-') }} {{ [{'n': 'x'}, {'n': 'y'}]|join('/', attribute='n') }} {{ []|join(',') }} {{ messages|join(' ', attribute='role') }} {{ [1]|join }} {{ {'a': 1, 'b': 2}|join(',') }}",
    "sort and reverse": "{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ [1, 3, 2]|sort(reverse=true) }} {{ [{'a': 2, 'b': 1}, {'a': 1, 'b': 2}]|sort(attribute='a') }} {{ 'abc'|reverse }} {{ [1, 2]|reverse|list }} {{ [{'a': 1, 'b': 'y'}, {'a': 1, 'b': 'x'}]|sort(attribute='a,b') }}",
    "dictsort": "{{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'a': 2}|dictsort(reverse=true) }} {% for k, v in {'z': 1, 'y': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}",
    "items": "{% for k, v in {'a': 1, 'b': 2}|items %}{{ k }}={{ v }};{% endfor %}{% for k, v in nothing|items %}x{% endfor %}{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items()|list }}",
    "map": "{{ ['a', 'b']|map('upper')|list }} {{ messages|map(attribute='role')|join(',') }} {{ [{'a': {'b': 1}}, {}]|map(attribute='a.b', default='x')|list if false else '' }} {{ [{'a': 1}, {}]|map(attribute='a', default='x')|list }} {{ ['1', '2']|map('int')|sum }} {{ [[1, 2], [3, 4]]|map(attribute=1)|list }} {{ ['a']|map('replace', 'a', 'b')|first }} {{ []|map('upper')|list }} {{ ['x ', ' y']|map('trim')|map('upper')|join }}",
    "select and reject": "{{ [1, 0, 2]|select|list }} {{ [1, 2, 3]|select('odd')|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ [1, 2, 3]|select('gt', 1)|list }} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute='role')|list }} {{ messages|rejectattr('role', 'eq', 'user')|list|length }} {{ messages|selectattr('reasoning_content')|list|length }} {{ messages|selectattr('reasoning_content', 'defined')|list|length }} {{ ['a', none]|reject('none')|list }} {{ messages|selectattr('role', 'in', ['system', 'user'])|list|length }} {{ (messages|selectattr('role', '==', 'user')|first).role }}",
    "unique, batch, slice, groupby": "{{ [1, 2, 1]|unique|list }} {{ ['a', 'A', 'b']|unique|list }} {{ [1, 2, 3]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(3)|list }} {{ [1, 2, 3]|slice(2, 0)|list }} {% for g in messages|groupby('role') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}{% for role, list in messages|groupby('role') %}{{ role }}{{ list|length }}{% endfor %}",
    "streams are taken once": "{% set s = [1, 2]|map('string') %}{{ s|list }}{{ s|list }}{% set t = []|select %}{% if t %}yes{% else %}no{% endif %}",
    "a stream has no length": "{{ [1]|map('string')|length }}",
    "wordwrap": "{{ 'the quick brown fox jumps over the lazy dog'|wordwrap(10) }}|{{ 'a well-known fact--or so it seems--of re-use and co-op e-mail x-ray'|wordwrap(8) }}|{{ 'abcdefghijklmnop-qrst uvw'|wordwrap(6) }}|{{ 'abcdefghijklmnop-qrst uvw'|wordwrap(6, false) }}|{{ 'one-two-three'|wordwrap(5, true, '<br>', false) }}|{{ 'a\\n\\n  b  c   d\\r\\ne '|wordwrap(3) }}|{{ ''|wordwrap }}|{{ 'x --- y -- z----w, \\'q\\'--r'|wordwrap(4) }}|{{ '   lead and trail   '|wordwrap(6) }}|{{ '---------- a1-b2 ab-c1 ab-cd-ef'|wordwrap(4) }}|{{ 'é–ü — größer-kleiner'|wordwrap(7, wrapstring='/') }}|{{ 'word ' * 30 }}|{{ ('word ' * 30)|wordwrap }}",
    "wordwrap refuses no width": "{{ 'a'|wordwrap(0) }}",
    "striptags": "{{ '<p>a  <b>b</b>\\n c</p> &amp; &lt;d&gt; &eacute;&#233;&#xe9; &copy2004 &#128; &#0; &#1; &#55296; <!-- x > y --> e <unclosed'|striptags }}|{{ 'a &ampfoo &zz9 & b < c'|striptags }}|{{ 3|striptags }}|{{ ('<i>x</i>'|safe)|striptags }}|{{ '<!-- open <b>x</b>'|striptags }}|",
    "urlize": "{{ 'see https://example.com/a?b=c&d, (www.example.org) or example.net. mail me@example.com or mailto:you@example.org! http://1.2.3.4:80/x http://[::1]/ example.dev <https://a.bc> www.x (https://en.example.org/wiki/X_(y)) @a@b.com HTTP://UP.COM x.com:123456 ftp://a.b https://xn--ab.xn--p1ai/'|urlize }}|{{ 'https://example.com/long/path'|urlize(10, true, target='_blank') }}|{{ 'https://a.com b'|urlize(rel='z a') }}|{{ 'tel:123 ftp://x'|urlize(extra_schemes=['tel:', 'ftp://']) }}|{{ 3|urlize }}|{{ ('<https://a.com>'|safe)|urlize }}",
    "pprint": "{{ messages|pprint }}|{{ {'b': 1, 'a': [1, 2]}|pprint }}|{{ 'short'|pprint }}|{{ ('word ' * 30)|pprint }}|{{ [('word ' * 30), 'x']|pprint }}|{{ {'key': 'line\\n' * 20}|pprint }}|{{ ((1, 2), ('a' * 90,))|pprint }}|{{ {'a' * 30: {'b' * 30: ['c' * 30, 'd' * 30]}, 2: 3}|pprint if false else '' }}|{{ {'a' * 30: {'z' * 30: ['c' * 30, 'd' * 30], 'b': none}}|pprint }}|{{ range(3)|pprint }}|{{ nothing|pprint }}|{{ (range(40)|list)|pprint }}|{{ 'x' * 100 }}{{ ('x' * 100)|pprint }}|{{ [[], {}, ('y' * 80)]|pprint }}",
    "list and string": "{{ 'abc'|list }} {{ {'a': 1}|list }} {{ range(3)|list }} {{ (1, 2)|list }} {{ 1|string }}{{ [1]|string }}{{ none|string }}",
    "escape and safe": "{{ '<a href=\"x\">&\\'</a>'|escape }} {{ '<b>'|e|e }} {{ '<b>'|safe }} {{ ('<b>'|safe) + '<i>' }} {{ '<i>' + ('<b>'|safe) }} {{ '<b>'|forceescape }} {{ ('<b>'|safe) ~ '<i>' }}",
    "truncate and words": "{{ 'hello big wide world'|truncate(10) }} {{ 'hello big wide world'|truncate(10, true) }} {{ 'hello big wide'|truncate(11, false, '!', 0) }} {{ 'hello world'|truncate(10) }} {{ 'a b  c_d é'|wordcount }} [{{ 'ab'|center(6) }}]",
    "urlencode": "{{ 'a b/ä&?=~'|urlencode }} {{ {'a b': 1, 'c': 'é/'}|urlencode }} {{ [('x', 1)]|urlencode }}",
    "filesizeformat": "{{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ 1500000|filesizeformat }} {{ 2048|filesizeformat(true) }}",
    "format filter": "{{ '%s-%s'|format('a', 1) }} {{ '%(x)s'|format(x=2) }}",
    "xmlattr": "<a{{ {'b': 1, 'c': none, 'd': '<'}|xmlattr }}>",
    "attr": "[{{ {'a': 1}|attr('a') }}]",
    "chained filters": "{{ ' Hello '|trim|upper|replace('L', 'x')|length }} {{ ('a' ~ 'b')|upper }}{{ 'a'|upper ~ 'b'|upper }}",
    "unknown filter": "{{ 'a'|nope }}",
    "unknown test": "{{ 'a' is nope }}",
    # tojson
    "tojson": "{{ {'a': [1, 2.0, true, none, 'é\"\\\\/\\n\\t\\x01\\x7f<>&']}|tojson }} {{ []|tojson }} {{ {}|tojson }} {{ 'x'|tojson }} {{ {1: 2, true: 3, none: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }} {{ 1e-07|tojson }} {{ 1e400|tojson }}",
    "tojson options": "{{ {'b': 1, 'a': [2]}|tojson(indent=2) }}{{ {'b': 1, 'a': {}}|tojson(indent=4, sort_keys=true) }}{{ {'b': 1, 'a': 2}|tojson(separators=(',', ':')) }}{{ 'é😀'|tojson(ensure_ascii=true) }}{{ [1]|tojson(indent=0) }}{{ [1, [2]]|tojson(indent='\\t') }}{{ {'a': [1]}|tojson(true, 1) }}",
    "tojson of tools": "{% for tool in tools %}{{ tool|tojson }}\n{{ tool|tojson(indent=4) }}{% endfor %}{{ tools|tojson }}",
    "tojson of a stream": "{{ [1]|map('string')|tojson }}",
    # Methods of texts
    "strip and split": "[{{ ' a '.strip() }}][{{ 'xax'.strip('x') }}][{{ 'xxa'.lstrip('x') }}][{{ 'axx'.rstrip('x') }}] {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }} {{ ' a b c '.split(None, 1) }} {{ 'a\\nb\\n'.splitlines(true) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "search in texts": "{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('x') }} {{ 'abc'.index('b') }} {{ 'banana'.count('an') }} {{ 'éabc'.find('b') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abcabc'.find('c', 3) }} {{ 'abc'.count('') }}",
    "changed texts": "{{ 'aXb'.lower() }} {{ 'aXb'.upper() }} {{ 'heLLo wORLD'.title() }} {{ 'heLLo'.capitalize() }} {{ 'aB'.swapcase() }} {{ 'a-b'.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} [{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '*') }}] [{{ 'ab'.center(5, '.') }}] {{ '-'.join(['a', 'b']) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} [{{ 'a\\tb'.expandtabs(4) }}] {{ \"they're bill's\".title() }} {{ 'STRASSE ß'.casefold() }}",
    "questions to texts": "{{ 'abc'.isalpha() }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ '1.2'.isdigit() }} {{ ' \\n'.isspace() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ 'Ab Cd'.istitle() }} {{ ''.isalpha() }} {{ 'a b'.isidentifier() }} {{ 'é'.isascii() }} {{ '12'.isnumeric() }} {{ '²'.isdecimal() }}",
    "methods of dictionaries": "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %} {{ {'a': 1}.copy() }}",
    "methods of lists": "{{ [1, 2, 1].index(2) }} {{ [1, 2, 1].count(1) }} {{ (1, 2).index(2) }}",
    "lists do not change": "{% set x = [] %}{{ x.append(1) }}",
    "dictionaries do not change": "{% set x = {} %}{% set _ = x.update({'a': 1}) %}",
    "private attributes": "[{{ ''.__class__ }}]",
    "private attributes are not used": "{{ ''.__class__.__mro__ }}",
    # Statements
    "if": "{% if false %}a{% elif 0 %}b{% elif 'x' %}c{% else %}d{% endif %}{% if not true %}e{% else %}f{% endif %}",
    "for": "{% for x in [1, 2, 3] %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}{% for x in [] %}a{% else %}empty{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'ab' %}{{ c }};{% endfor %}",
    "loop": "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}|{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('x', 'y') }}{{ loop.changed(x == 'a') }}\n{% endfor %}",
    "loop conditions": "{% for x in range(10) if x % 2 == 0 %}{{ x }}{{ loop.index }}{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}{% for x in [1] if x > 5 %}a{% else %}none{% endfor %}",
    "loop condition sees the body": "{% set ns = namespace(n=0) %}{% for x in range(10) if ns.n < 3 %}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}",
    "loop unpacking": "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for (a, b) in {'k': 'v'}.items() %}{{ a }}{{ b }}{% endfor %}",
    "wrong unpacking": "{% for a, b in [1] %}x{% endfor %}",
    "nested loops": "{% for x in 'ab' %}{% set outer = loop %}{% for y in [1, 2] %}{{ outer.index }}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "break and continue": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}{% for x in [1] %}{% break %}{% else %}not empty{% endfor %}",
    "recursive loops": "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': [{'v': 3}]}]}, {'v': 4}] recursive %}{{ loop.depth }}:{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
    "loop scope": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% for i in [1] %}{% set inner = 1 %}{% endfor %}[{{ inner }}]",
    "set": "{% set a = 1 %}{% set b, c = 2, [3] %}{{ a }}{{ b }}{{ c }}{% set a = a + 1 %}{{ a }}{% set d = namespace(x=1, y='z') %}{% set d.x = d.x + 1 %}{{ d.x }}{{ d.y }}{{ d.z }}",
    "set blocks": "{% set a %}x{{ 1 }}\n y{% endset %}[{{ a }}]{% set b | upper | trim %} hi {% endset %}[{{ b }}]{{ a is string }}{% set ns = namespace() %}{% set ns.t %}in{% endset %}{{ ns.t }}",
    "namespaces": "{% set ns = namespace(a=0, l=[]) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.a }}{{ ns.l }}{{ ns.missing is defined }}{{ ns['a'] }}{% set n2 = namespace({'q': 1}, w=2) %}{{ n2.q }}{{ n2.w }}{{ ns }}",
    "only namespaces are assigned to": "{% set d = {} %}{% set d.x = 1 %}",
    "with": "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}[{{ a }}{{ c }}]{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{% with %}x{% endwith %}",
    "macros": "{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{{ m(1)|upper }}{% macro n() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ n(1, 2, x=3) }}{{ m.name }}",
    "macros see their surroundings": "{% set x = 1 %}{% macro m() %}{{ x }}{{ y }}{% set x = 7 %}{{ x }}{% endmacro %}{% set x = 2 %}{% set y = 3 %}{{ m() }}{{ x }}{% macro d(a, b=a) %}{{ b }}{% endmacro %}{{ d(4) }}",
    "macros call themselves": "{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "macros see messages": "{% macro m(i) %}{{ messages[i].role }}{% endmacro %}{% for i in range(2) %}{{ m(i) }}{% endfor %}",
    "a macro refuses arguments": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "a macro refuses names": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "attributes of macros": "{% macro m(a, b='x', c=none) %}{{ kwargs }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}{{ m.explicit_caller }}[{{ m.defaults }}]{{ m }}{% macro n() %}{{ caller.name }}{{ caller.arguments }}{{ caller }}{{ varargs }}{% endmacro %}{{ n.caller }}{{ n.arguments }}{% call(x) n() %}{% endcall %}",
    "lipsum is there": "{{ lipsum is defined }}{{ lipsum is callable }}",
    "letters that begin words": "{{ 'ǆ ǅ Ǆ ǉa ǋ ǳ'.title() }} {{ 'ǆa'.capitalize() }} {{ 'ŉ ა ᾀ ᾈ ᾳ ᾲ ᾷ ﬁn ß ΑΣ ΣΑΣΑ'.title() }} {{ 'ǅ Ǆ ǆ aB'.swapcase() }} {{ 'ǆ ab'|title }} {{ 'ǅa'.istitle() }}",
    "powers": "{{ (-8) ** 3.0 }} {{ (-2.0) ** -1 }} {{ 2 ** 0.5 }} {{ 0.0 ** 0 }} {{ (-8) ** 2 }}",
    "a power that is too large": "{{ 10.0 ** 400 }}",
    "call blocks": "{% macro m(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call m('a') %}in {{ 1 }}{% endcall %}{% macro l(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(x, i) l('ab') %}{{ i }}{{ x }} {% endcall %}",
    "filter blocks": "{% filter upper %}a{{ 'b' }}{% set x = 1 %}{% endfilter %}[{{ x }}]{% filter replace('a', 'b')|trim %} aaa {% endfilter %}",
    "blocks": "{% set x = 1 %}{% block a %}in {{ x }}{% endblock %}{% block b scoped %}b{% endblock b %}",
    "autoescape": "{% autoescape false %}<{{ '<' }}>{% endautoescape %}",
    "print": "{% print 'a', 1 %}|",
    "cycler and joiner": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner(', ') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %}",
    "dict and range": "{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {{ range(3) }} {{ dict([('k', 'v')]) }}",
    "calls with spread arguments": "{% macro m(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}{{ m(1, *[2]) }}{{ '{}{}'.format(*'ab') }}",
    "raise_exception": "a{{ raise_exception('no \x1b[31m') }}b",
    "raise_exception that is not reached": "{% if messages[0].role != 'system' %}{{ raise_exception('x') }}{% endif %}ok",
    "unknown tag": "{% nope %}",
    "unknown filter in a branch": "{% if false %}{{ x|nope }}{% else %}ok{% endif %}{{ 1|nope if false }}{{ 'a' if true else x is nope }}",
    "unknown filter in a branch that is taken": "{% if true %}{{ x|nope }}{% endif %}",
    "unknown filter in a condition": "{% if 1|nope %}{% endif %}",
    "unknown filter in a loop that is not entered": "{% for x in [] %}{{ x|nope }}{% endfor %}ok",
    "unknown filter in a loop inside a branch": "{% if false %}{% for x in [] %}{{ x|nope }}{% endfor %}{% endif %}ok",
    "unknown filter in the items of a loop inside a branch": "{% if false %}{% for x in y|nope %}{% endfor %}{% endif %}ok",
    "unknown filter in a macro that is not called": "{% macro f(x) %}{{ x|nope }}{% endmacro %}ok",
    "unknown filter in a call inside a branch": "{% if false %}{% call f(1|nope) %}{% endcall %}{% endif %}ok",
    "unknown filter in a block of text inside a branch": "{% if false %}{% filter nope %}x{% endfilter %}{% endif %}ok",
    "unknown filter in a set block inside a branch": "{% if false %}{% set x | nope %}x{% endset %}{% endif %}ok",
    "unknown filter in a with inside a branch": "{% if false %}{% with a = 1|nope %}{% endwith %}{% endif %}ok",
    "unknown filter behind a name": "{% if false %}{{ [1]|map('nope')|list }}{% endif %}ok",
    "unknown test in a branch": "{{ (1 is nope) if false else 'ok' }}",
    "unknown function": "{{ nope() }}",
    "unknown function that is not reached": "{% for x in [] %}{{ nope() }}{% endfor %}{{ true or nope() }}{% if nope is defined %}{{ nope() }}{% endif %}{% if false %}{{ nope() }}{% endif %}",
    "a required block": "{% block x required %}{% endblock %}",
    "a required block that is not reached": "{% if false %}{% block x required %} {# y #} {% endblock %}{% endif %}ok",
    "a required block with text": "{% block x required %}a{% endblock %}",
    "dates": "".join(f"{{{{ strftime_now('{field}=%{field};') }}}}" for field in FIELDS) + "{{ strftime_now('%z[%Z]%f %% é %') }}",
    "dates without padding": "".join(f"{{{{ strftime_now('{field}=%-{field};') }}}}" for field in FIELDS),
    "unclosed block": "{% if true %}",
    "unclosed variable": "{{ 1 ",
    "wrong nesting": "{% if true %}{% for x in [] %}{% endif %}{% endfor %}",
    "include": "{% include 'x' %}",
    "tests by sign": "{{ [1, 2, 3]|select('>', 1)|list }} {{ [1, 2, 3]|select('>=', 2)|list }} {{ [1, 2, 3]|reject('<', 2)|list }} {{ [1, 2, 3]|select('<=', 2)|list }} {{ [1, 2]|select('!=', 1)|list }} {{ 1 is lessthan 2 }} {{ 1 is le 1 }}",
    "escaped": "{{ '<'|escape is escaped }} {{ '<' is escaped }} {{ ('<'|safe) is escaped }}",
    "parts of numbers": "{{ (5).real }} {{ (-5).imag }} {{ (7).numerator }} {{ (7).denominator }} {{ true.real }} {{ false.imag }} {{ (1.5).real }} {{ (1.5).imag }} {{ (1.5).numerator is defined }} {{ (2**70).real }}",
    # Texts marked as safe: `repr` in a list shows whether the mark is still there.
    "safe texts in operators": "{% set s = '<b>'|safe %}{{ [s + '<', '<' + s, s + s, s * 2, 2 * s, s ~ '<', s[0], s[-1], s[1:], s[::-1], s['upper'](), s|string, s|e, s|forceescape] }}",
    "safe texts added to data": "{{ [messages[1].content|safe + messages[1].content, messages[1].content + '&amp;'|safe, messages[1].content|e] }}",
    "a safe text and a number are not added": "{{ 'a'|safe + 1 }}",
    "safe texts in methods that change letters": "{% set s = ' <b>aB\tc</b> '|safe %}{{ [s.upper(), s.lower(), s.capitalize(), s.title(), s.swapcase(), s.casefold(), s.strip(), s.lstrip(), s.rstrip('> '), s.expandtabs(2), s.zfill(20), s.removeprefix(' <'), s.removesuffix('x')] }}",
    "safe texts in methods that divide": "{% set s = 'a<b<c\nd'|safe %}{{ [s.split('<'), s.rsplit('<', 1), s.split(), s.splitlines(), s.splitlines(true), s.partition('<'), s.rpartition('x'), s.find('<'), s.count('<'), s.startswith('a'), s.isalpha()] }}",
    "safe texts in methods that put in": "{% set s = 'a-b'|safe %}{{ [s.replace('-', '<'), s.replace('-', '<'|safe), s.replace('-', '<', 1), s.center(9, '*'), s.ljust(5), s.rjust(5, '.'), s.join(['<', '<'|safe, 1]), ','.join(['<'|safe]), 'x'.replace('x', '<'|safe), s.join('<>')] }}",
    "a safe text is not filled with what is escaped": "{{ ('a'|safe).center(5, '<') }}",
    "a text is filled with one character": "{{ 'a'.center(5, 'ab') }}",
    "methods of safe texts alone": "{% set s = '<b>a &amp; &lt;b&gt;</b>  c'|safe %}{{ [s.striptags(), s.unescape(), s.escape('<'), s.escape(s), s.escape(1)] }}{{ ''.striptags is defined }}{{ 'a'.unescape is defined }}",
    "safe texts as formats with percent": "{% set s = '<%s>'|safe %}{{ [s % '<', s % ('<',), s % s, s % 1, s % [['<']], '%r'|safe % '<', '%d %5.1f|%i'|safe % ('7', '2.55', 3.9), '%(a)s %(b)d'|safe % {'a': '<', 'b': 2}, '%.2s|%6s|%-6s'|safe % ('<', '<', 'a'), '%%'|safe % (), '<%s>' % s, '%s'|safe % [1, '<']] }}",
    "safe texts as formats take no width": "{{ '%*d'|safe % (5, 3) }}",
    "safe texts as formats take no character": "{{ '%c'|safe % ('a',) }}",
    "safe texts as formats take no other base": "{{ '%x'|safe % 255 }}",
    "safe texts as formats have too many values": "{{ '%s'|safe % (1, 2) }}",
    "lists have values for no field": "{{ 'a' % [1, 2] }}{{ 'b' % [] }}",
    "safe texts as formats with braces": "{% set s = '<{}>'|safe %}{{ [s.format('<'), s.format(s), s.format(1), s.format(['<']), ('{:>3}|{!r}|{a[b]}|{:.1f}'|safe).format('<', '<', 1.25, a={'b': '&'}), ('{x}'|safe).format_map({'x': '<'}), ('{!s}'|safe).format(s), '{}'.format(s), '{:>8}'.format(s), ('{:{}}'|safe).format('<', 4)] }}",
    "a safe text in a safe format is not padded": "{{ ('{:>8}'|safe).format('<'|safe) }}",
    "safe texts in filters of texts": "{% set s = ' <b>a b</b> '|safe %}{{ [s|upper, s|lower, s|capitalize, s|title, s|trim, s|trim('> '), s|center(20), s|replace('a', '<'), 'a'|replace('a', s), s|wordcount, s|urlencode, s|striptags, s|format, '<%s>'|safe|format('<'), '<%(x)s>'|safe|format(x='<'), s|string, s|safe, s|pprint, s|tojson, s|length] }}",
    "safe texts indented": "{% set s = 'a<\n<b\n\nc'|safe %}{{ [s|indent(2), s|indent(2, true), s|indent(1, false, true), s|indent('<'), s|indent('<', true), 'a<\n<b'|indent('<'|safe), 'a<\n<b'|indent('<'|safe, true), 'a<\n\n<b'|indent('<'|safe, false, true), 'a<'|indent('<'|safe), ''|safe|indent] }}",
    "safe texts cut and wrapped": "{% set s = '<b>one two three four five</b>'|safe %}{{ [s|truncate(12), s|truncate(12, true), s|truncate(12, true, '<'), s|truncate(12, true, '<'|safe), 'one two < three four'|truncate(12, true, '<'|safe), s|truncate(99), s|wordwrap(9), s|wordwrap(9, wrapstring='<'|safe), 'a < b'|wordwrap(3, wrapstring='<'|safe), 'a'|wordwrap(3, wrapstring='<'|safe)] }}",
    "safe texts in filters of lists": "{% set s = '<b>'|safe %}{{ [s|first, s|last, s|reverse, s|list, s|join('-'), [s, '<']|join('<'), [s, '<']|join(s), [s]|first, [s, 'a']|sort, [s, '<B>']|unique|list, [s]|max, s|batch(2)|list, [s]|map('upper')|list, ['<']|map('e')|list, {s: s}, {'<b>': 1}[s], s|default('x')] }}{% for c in s %}{{ [c] }}{% endfor %}",
    "safe texts in HTML": "{% set s = '<b>'|safe %}{{ [{'a': s, 'b': '<', 'c': 1}|xmlattr, ('www.a.com <'|safe)|urlize, 'www.a.com'|urlize(target=s), 'www.a.com'|urlize(target='<')] }}",
    "safe texts stay in variables": "{% set s = '<b>'|safe %}{% set t = s %}{% set ns = namespace(x=s) %}{% macro m(x) %}{{ x }}{% endmacro %}{% set block %}{{ s }}{% endset %}{% set c = cycler(s, '<') %}{% set j = joiner(s) %}{{ j() }}{{ [t, ns.x, m(s), block, c.next(), j(), s if true, s or 'x', (s, )[0], {'k': s}.k, dict(k=s)['k']] }}",
    "further methods of texts": "{{ 'abcabc'.rindex('b') }} {{ 'a'.isprintable() }} {{ '\\n'.isprintable() }} {{ '{a}-{b}'.format_map({'a': 1, 'b': 'x'}) }}",
    "a part that is not there": "{{ 'abc'.rindex('x') }}",
    "places in texts beyond their ends": "{{ 'abc'.find('', 5, 2) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abc'.find('c', 2, 1) }} {{ ''.find('b', 1, 2) }} {{ 'abc'.rfind('') }} {{ 'aéb'.rfind('b', -1) }} {{ 'abc'.count('', 2, 1) }} {{ 'abc'.count('', 4) }} {{ 'abc'.count('', 3) }} {{ 'abc'.startswith('', 4) }} {{ 'abc'.startswith('', 3) }} {{ 'abc'.endswith('', 2, 1) }} {{ 'abc'.startswith(('x', ''), 9) }}",
    "a part in no text": "{{ ''.index('b') }}",
    "ranges printed and compared": "{{ range(5, 0, -2) }} {{ range(3)[1:] }} {{ range(10)[::-3] }} {{ range(5)[7:] }} {{ range(0, 10, 3) }} {{ range(3, 1) }} {{ range(5, 0, -2) == range(5, -1, -2) }} {{ range(3) == range(0, 3, 1) }} {{ range(0, 1, 3) == range(1) }} {{ range(2, 2) == range(0) }} {{ range(3) == range(4) }}",
    "short lists are not truncated": "{% set x = [1, 2] %}{{ x|truncate }}{{ {'a': 1}|truncate(3) }}{{ range(3)|truncate }}[{{ nothing|truncate }}]{{ ['a', 'b']|truncate(3, end='') }}",
    "a number is not truncated": "{{ 5|truncate }}",
    "a long list is not truncated": "{{ range(20)|list|truncate(5) }}",
    "pairs in addresses": "{{ [(1, 2)]|urlencode }} {{ ['ab']|urlencode }} {{ [[1, 'é']]|urlencode }} {{ range(0)|urlencode }}",
    "a range has no pairs": "{{ range(2)|urlencode }}",
    "a missing attribute is not grouped by": "{{ messages|groupby('nothing') }}",
    "one item is grouped by a missing attribute": "{% for key, list in messages[:1]|groupby('nothing') %}[{{ key }}]{{ list|length }}{% endfor %}",
    "nulls are not grouped by": "{{ [{'a': none}, {'a': none}]|groupby('a') }}",
    "nulls are not sorted by": "{{ {'a': none, 'b': none}|dictsort(by='value') }}",
    "one null is sorted by": "{{ {'a': none}|dictsort(by='value') }}",
    "a list is not looked for in a dictionary": "{{ [1] in {} }}",
    "a list is not looked for among keys": "{{ [1] in {'a': 1}.keys() }}",
    "a list is looked for among values": "{{ [1] in {'a': [1]}.values() }} {% set d = {'a': 1} %}{{ d[[1]] is defined }}",
    "a list is no name of a filter": "{{ [1] is filter }}",
    "digits of other scripts": "{{ '١٢'|int }} {{ '１２'|int + 1 }} {{ '१.५'|float }} {{ '%d' % '٣'|int }} {{ '²'|int }} {{ ['١٢'.isdecimal(), '²'.isdecimal(), '²'.isdigit(), '½'.isdigit(), '½'.isnumeric(), '①'.isdigit(), '𝟗'.isdecimal(), '𝟗'|int] }}",
    "underscores in numbers": "{{ '1_0'|float }} {{ '1__0'|float }} {{ '1_.5'|float }} {{ '1_0e1_0'|float }} {{ '_1'|float }}",
    "texts compared without case": "{{ 'Σας'.casefold() }} {{ 'Straße'.casefold() }} {{ 'ẞ'.casefold() }} {{ 'ﬁ ŉ İ ı ǅ'.casefold() }} {{ 'ᏸꭰᎠ'.casefold() }}",
    "odd floats": "{{ 1.5 is odd }} {{ 3.0 is odd }} {{ -1 is odd }} {{ 2.5 is even }} {{ true is odd }} {{ 1e-7 is odd }}",
    "a number is no name of an attribute": "{{ {1: 'i'}|xmlattr }}",
    "null is no name of an attribute": "{{ {none: 'i'}|xmlattr }}",
    "an attribute without a value": "{{ {1: none, 'a': 2}|xmlattr }}",
    "an infinite number is not whole": "{{ 'inf'|float|int }}",
    "a text with an infinite number is not whole": "{{ '1e400'|int }} {{ 'nan'|int(3) }} {{ 'inf'|int }}",
    "a dictionary is no name of a test": "{{ messages[0] is test }}",
    **{f"changing a list by {name}": "{% set x = [2, 1] %}{{ x." + call + " }}{{ x }}" for name, call in {
        "append": "append(3)", "clear": "clear()", "extend": "extend([3])", "insert": "insert(0, 3)", "pop": "pop()",
        "remove": "remove(1)", "reverse": "reverse()", "sort": "sort()"}.items()},
    **{f"changing a dictionary by {name}": "{% set x = {'a': 1} %}{{ x." + call + " }}{{ x }}" for name, call in {
        "clear": "clear()", "pop": "pop('a')", "popitem": "popitem()", "setdefault": "setdefault('b', 1)",
        "update": "update({'b': 1})"}.items()},
    "tags of extensions": "{% do 1 %}",
    "translated text": "{% trans %}a{% endtrans %}",
    "inheritance": "{% extends 'x' %}",
    "import": "{% import 'x' as y %}",
    "import of a name": "{% from 'x' import y %}",
    "include that may be missing": "{% include 'x' ignore missing %}ok",
    "break outside a loop": "{% break %}",
    "division by zero": "{{ 1 / 0 }}",
    "texts and numbers are not added": "{{ 'a' + 1 }}",
    "key that is a list": "{{ {[1]: 2} }}",
    # Marks
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}</a>{% endgeneration %}\n{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "generation takes its line": "{% for m in messages %}\n{%- if m.role == 'assistant' %}\n  {% generation %}\n{{ m.content }}\n  {% endgeneration %}\nx\n{% endif %}{% endfor %}",
    "generation has a scope": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}{%- generation -%} y {%- endgeneration -%} z",
    # Templates as models have them
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m.content | trim + ' [/INST]' if m.role == 'user' else m.content + eos_token }}{% endfor %}{{ unk_token }}",
    "tools or none": "{%- if tools is iterable and tools | length > 0 %}has{% else %}none{% endif %}{% if tools %}T{% endif %}{% if tools is not none %}N{% endif %}{% if not tools is defined %}U{% endif %}{{ documents }}",
    "nulls of a table": ("{% for m in messages %}{{ m.role }}:{% if m.tool_calls is defined and m.tool_calls %}calls{% endif %}{% if m.name %}{{ m.name }}{% endif %}{{ m.tool_calls is none }}{{ 'name' in m }}{{ m.content }}{{ m|tojson }}\n{% endfor %}", NULLS),
    "nulls in the arguments of a table": ("{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{{ v is none }} {% endfor %}{{ c.function.arguments|tojson }}{% endfor %}{{ m.content }}{{ m|tojson }}\n{% endfor %}", NULL_ARGUMENTS),
    "whole numbers beyond 64 bits": ("{% for m in messages %}{{ m.id }} {% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }} {{ v|tojson }} {{ v is integer }} {{ v is number }} {% endfor %}{{ c|tojson }}{{ c.function.arguments }}{% endfor %}{{ m.id == 18446744073709551616 }}{% endfor %}", LARGE_NUMBERS),
    "calls": ("{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v|tojson if v is not string else v }}{{ ', ' if not loop.last }}{% endfor %}){{ c.function.arguments }}{{ c.function|tojson }}{% endfor %}{% elif m.content is string %}{{ m.content }}{% endif %}{% endfor %}", CALLS),
    "reasoning has all names": "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.keys()|list }}{% endfor %}",
    "content in parts": ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% elif p['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endif %}{% endfor %}", [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}]}, {"role": "assistant", "content": "ok"}]),
    "last user query": "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}{{ ns.last_query_index }}",
    "alternation": "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 1) %}{{ loop.index0 }}{% endif %}{% endfor %}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ loop_messages|length }}{{ system_message }}",
}

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    """A clock that stands still at `second`."""

    second = NOW

    @classmethod
    def now(cls):
        return cls.fromtimestamp(cls.second)


def rendered(template, messages, tools, prompt, marked, now=NOW):
    Clock.second = now
    try:
        with mock.patch("transformers.utils.chat_template_utils.datetime", Clock):
            texts, ranges = render_jinja_template(
                [messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
                return_assistant_tokens_mask=marked, **SPECIAL)
    except Exception as error:  # whatever refuses a template or a conversation
        return {"error": True, "why": f"{type(error).__name__}: {error}"}
    answer = {"text": texts[0]}
    if marked:
        offset = lambda at: len(texts[0][:at].encode())
        answer["answers"] = [[offset(a), offset(b)] for a, b in ranges[0]]
    return answer


def main():
    lines = []
    for name, case in CASES.items():
        template, messages = case if isinstance(case, tuple) else (case, CHAT)
        for variant, tools, prompt in [("", None, False), (" with tools", TOOLS, True), (" with no tool", [], True)]:
            if variant and "tools" not in template and "add_generation_prompt" not in template:
                continue
            marked = "generation" in name and not variant
            request = {"name": name + variant, "template": template, "messages": messages, "tools": tools,
                       "add_generation_prompt": prompt, "special": SPECIAL}
            if "strftime_now" not in template:
                lines.append(request | rendered(template, messages, tools, prompt, marked))
                continue
            for now in MOMENTS:
                lines.append(request | {"now": now} | rendered(template, messages, tools, prompt, marked, now))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    refused = sum("error" in line for line in lines)
    print(f"{len(lines)} cases, {refused} of them refused, in {OUT}")


if __name__ == "__main__":
    main()
