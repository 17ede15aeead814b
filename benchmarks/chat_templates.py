"""Renders every chat template found in Python packages with transformers' Jinja2 and with plimsoll, and compares hashes.

Packages are wheels or source archives in a folder, as `chat_template_packages.py` puts them there. Templates are files that end in
`.jinja`, `.jinja2` or `.j2`, and texts in `.json` and `.py` files that look like one. Nothing of them is kept but their hashes.

Three comparisons follow: the renderings, with the reasons where both sides refuse; the answers that plimsoll finds in long
conversations against those it finds in short ones; and, for templates of which TRL has a variant with `generation` marks, the
answers that plimsoll finds in the original against the marks.

    python benchmarks/chat_template_packages.py packages
    cargo build --release -p plimsoll-train --example render_chats
    python benchmarks/chat_templates.py packages target/release/examples/render_chats
"""

import ast
import collections
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import warnings
import zipfile

from chat_template_packages import may_hold_template

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "reference"))
from chat_templates import CALLS, CHAT, LARGE_NUMBERS, NOW, NULL_ARGUMENTS, NULLS, SPECIAL, TOOLS, rendered  # noqa: E402

# Own conversations, as data sets have them; each is tried with and without tools and with and without a prompt.
CONVERSATIONS = {
    "one exchange": [{"role": "user", "content": "Hello, who are you?"}, {"role": "assistant", "content": "A model."}],
    "a system prompt": CHAT,
    "an open question": CHAT[:-1],
    "a call": CALLS,
    "calls without content": [
        {"role": "user", "content": "Both, please"},
        {"role": "assistant", "tool_calls": [
            {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"town": "Köln"}}},
            {"id": "abcdef124", "type": "function", "function": {"name": "clock", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "abcdef124", "name": "clock", "content": "12:00"},
        {"role": "assistant", "content": "Rain at noon."},
        {"role": "user", "content": "Thanks"},
    ],
    "nulls of a table": NULLS,
    "nulls in arguments": NULL_ARGUMENTS,
    "large numbers": LARGE_NUMBERS,
    "thoughts": [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "also easy"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A test."}]},
    ],
    "odd characters": [
        {"role": "user", "content": "tab\t, null \x00, quotes ' \" `, backslash \\, \u2028 line, \U0001F600 {{ x }} {% y %}\r\n"},
        {"role": "assistant", "content": "\n\n<|im_end|> </s> é\n"},
    ],
}


# Long enough that plimsoll looks for the answers in windows; some have thoughts.
LONG = [{"role": "system", "content": "Be brief."}] + [
    message
    for at in range(14)
    for message in (
        {"role": "user", "content": f"Question {at}?"},
        {"role": "assistant", "content": ("<think>\nhm\n</think>\n\n" if at % 4 == 1 else "") + f"Answer {at}."},
    )
]


MARKED = re.compile(r"{%[-+]?\s*generation\b")


def looks_like_template(text):
    return "messages" in text and "{%" in text and "%}" in text and "{{" in text


def texts_of_json(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_of_json(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of_json(item)


def texts_of_python(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def templates_of_file(name, data):
    if not may_hold_template(name, data):
        return
    ending = pathlib.PurePath(name).suffix
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if ending == ".json":
        try:
            candidates = texts_of_json(json.loads(text))
        except (ValueError, RecursionError):
            return
    else:
        candidates = texts_of_python(text) if ending == ".py" else [text]
    yield from filter(looks_like_template, candidates)


def files_of_package(path):
    if path.suffix == ".whl" or path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, archive.extractfile(member).read()


def short_name(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def asked(program, requests):
    """plimsoll's answer to each request."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ours = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in ours.rstrip("\n").split("\n")]


def of_answers(template, messages, tools=None):
    return {"template": template, "messages": messages, "tools": tools, "special": SPECIAL, "answers": True, "now": NOW}


def learned(answer):
    """The texts that are learned, or why there are none."""
    if "error" in answer:
        return answer["error"]
    text = answer["text"].encode()
    return [text[begin:end].decode() for begin, end in answer["answers"]]


def compare_lengths(templates, program):
    """Whether the answers of a long conversation, found in windows, are those of short ones, found one by one.

    Templates whose answers are not found in windows are named: they take quadratic time.
    """
    system, turns = LONG[:1], LONG[1:]
    some, last = (0, 1, 5, 10), len(turns) // 2 - 1
    shorts = [turns[2 * at:2 * at + 6] for at in some] + [turns[-6:]]
    unmarked = [template for template in templates if not MARKED.search(template)]
    tally, differing, slow = collections.Counter(), [], set()
    for opening in (system, []):
        whole = asked(program, [of_answers(template, opening + turns) for template in unmarked])
        parts = asked(program, [of_answers(template, opening + short) for template in unmarked for short in shorts])
        for at, template in enumerate(unmarked):
            long = learned(whole[at])
            short = [learned(part) for part in parts[at * len(shorts):(at + 1) * len(shorts)]]
            if isinstance(long, str):
                tally["refused: " + re.sub(r"\d+", "N", long)] += 1
                continue
            if whole[at]["by"] != "Windows":
                slow.add(template)
            wanted = [part[0] for part in short[:-1]] + [short[-1][-1]] if all(isinstance(part, list) for part in short) else None
            kind = "equal" if wanted == [long[at] for at in some] + [long[last]] else "differ"
            tally[kind] += 1
            if kind == "differ":
                differing.append((short_name(template), len(opening), wanted, long))
    print(f"answers of {2 * len(unmarked)} long conversations and of short ones:")
    for kind, count in tally.most_common():
        print(f"{count:5} {kind}")
    for case in differing:
        print("answers differ:", *case)
    print(f"answers found one by one, in quadratic time: {len(slow)} templates")
    for template in slow:
        print(" ", short_name(template), templates[template])
    return differing


def joined(ranges):
    """Ranges that touch are one."""
    out = []
    for begin, end in ranges:
        if out and out[-1][1] >= begin:
            out[-1][1] = end
        elif begin < end:
            out.append([begin, end])
    return out


def compare_marks(texts, program):
    """How the answers of an original differ from the marks of TRL's variant, where both render the same text."""
    pairs = {(texts[origin], texts[original]): origin for origin in texts
             if origin.endswith("_training.jinja") and (original := origin.replace("_training", "")) in texts}
    pairs = [(origin, original) for (_, original), origin in pairs.items()]
    chats = {"long": (LONG[:9], None), "without a system prompt": (LONG[1:9], None), "chat": (CHAT, None),
             "calls": (CALLS, TOOLS), "thoughts": (CONVERSATIONS["thoughts"], None)}
    cases = [(origin, original, name) for origin, original in pairs for name in chats]
    ours = asked(program, [of_answers(original, *chats[name]) for _, original, name in cases])
    marks = asked(program, [of_answers(texts[origin], *chats[name]) for origin, _, name in cases])
    tally, differing = collections.Counter(), []
    for (origin, _, name), mine, theirs in zip(cases, ours, marks, strict=True):
        if "error" in mine or "error" in theirs:
            tally["one refuses the conversation"] += 1
        elif mine["text"] != theirs["text"]:
            tally["the variant renders another text"] += 1
        else:
            a, b = joined(mine["answers"]), joined(theirs["answers"])
            ends = [end for _, end in a] == [end for _, end in b]
            later = ends and all(x >= y for (x, _), (y, _) in zip(a, b))
            kind = "equal" if a == b else "equal, but the marks begin before the prompt ends" if later else "differ"
            tally[kind] += 1
            if kind == "differ":
                differing.append((origin, name))
    print(f"answers of {len(pairs)} templates and the marks of TRL's variants, {len(cases)} conversations:")
    for kind, count in tally.most_common():
        print(f"{count:5} {kind}")
    for case in differing:
        print("marks differ:", *case)


def reason(error):
    """The words of a refusal without names and numbers."""
    return re.sub(r"'[^']*'|`[^`]*`|\d+", "…", error.split("\n")[0])[:100]


def main():
    folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    found, places, packages = {}, {}, collections.Counter()
    for package in sorted(folder.iterdir()):
        if package.suffix not in (".whl", ".zip", ".gz", ".bz2", ".xz"):
            continue
        for name, data in files_of_package(package):
            for template in templates_of_file(name, data):
                packages[package.name] += 1
                found.setdefault(template, f"{package.name}: {name}")
                places[f"{package.name}: {name}"] = template
    requests, wanted = [], []
    for template, origin in found.items():
        for name, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for prompt in (False, True):
                    requests.append({"template": template, "messages": messages, "tools": tools,
                                     "add_generation_prompt": prompt, "special": SPECIAL, "now": NOW})
                    wanted.append((origin, f"{name}{', tools' if tools else ''}{', prompt' if prompt else ''}"))
    tally, refusals, reasons, differing = collections.Counter(), collections.Counter(), collections.defaultdict(set), []
    for request, (origin, case), mine in zip(requests, wanted, asked(program, requests), strict=True):
        theirs = rendered(request["template"], request["messages"], request["tools"],
                          request["add_generation_prompt"], False)
        if "error" in theirs or "error" in mine:
            kind = "both refuse" if "error" in theirs and "error" in mine else (
                "only Jinja2 refuses" if "error" in theirs else "only plimsoll refuses")
        else:
            hashes = {short_name(side["text"]) for side in (theirs, mine)}
            kind = "equal" if len(hashes) == 1 else "differ"
        tally[kind] += 1
        if kind == "both refuse":
            reasons[reason(theirs["why"])].add(origin)
            refusals[reason(theirs["why"])] += 1
        elif kind != "equal":
            differing.append((kind, origin, short_name(request["template"]), case, theirs, mine))
    for name, count in sorted(packages.items()):
        print(f"{count:5} {name}")
    print(f"{len(found)} templates, {len(requests)} renderings:", dict(tally))
    for kind, origin, template, case, theirs, mine in differing:
        why = theirs.get("why") or mine.get("error") or ""
        print(f"{kind}: {template} ({origin}), {case}: {why}")
        if kind == "differ" and "-v" in sys.argv:
            print("  theirs", repr(theirs["text"])[:2000])
            print("  ours  ", repr(mine["text"])[:2000])
    print("why both refuse, in Jinja2's words:")
    for words, count in refusals.most_common():
        print(f"{count:5} of {len(reasons[words]):3} templates: {words}")
    differing += compare_lengths(found, program)
    compare_marks(places, program)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
