"""Renders every chat template found in Python packages with transformers' Jinja2 and with plimsoll, and compares hashes.

Packages are wheels or source archives in a folder, as `pip download --no-deps` puts them there. Templates are files that end in
`.jinja`, `.jinja2` or `.j2`, and texts in `.json` and `.py` files that look like one. Nothing of them is kept but their hashes.

    pip download --no-deps -d packages trl transformers ...
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

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "reference"))
from chat_templates import CALLS, CHAT, NULLS, SPECIAL, TOOLS, rendered  # noqa: E402

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
    ending = pathlib.PurePath(name).suffix
    if ending not in (".jinja", ".jinja2", ".j2", ".json", ".py") or len(data) > 1 << 24:
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if "messages" not in text or "{%" not in text:
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


def timeless(request, text):
    """Both sides ask the clock, some seconds apart."""
    return re.sub(r"\d\d:\d\d:\d\d", "TIME", text) if "strftime_now" in request["template"] else text


def short(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def careful_answers(template, messages):
    """Byte ranges of what the assistant says, found with Jinja2 by rendering up to every answer; None where that fails."""

    def text(part, prompt=False):
        answer = rendered(template, part, None, prompt, False)
        if "error" in answer:
            raise ValueError
        return answer["text"]

    def common(a, b):
        return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    try:
        whole, ranges = text(messages), []
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin, end = common(text(messages[:at], True), whole), len(whole)
            if at + 1 < len(messages):
                closed, turn = text(messages[: at + 1]), {"role": "user", "content": ""}
                if not whole.startswith(closed):
                    one, two = text(messages[: at + 1] + [turn]), text(messages[: at + 1] + [turn] * 2)
                    closed = one[: max(0, 2 * len(one) - len(two))]
                if not whole.startswith(closed):
                    return None
                end = len(closed)
            if begin > end or ranges and ranges[-1][1] > begin:
                return None
            ranges.append((begin, end))
    except ValueError:
        return None
    return [[len(whole[:a].encode()), len(whole[:b].encode())] for a, b in ranges]


def compare_answers(templates, program):
    """Whether windows find the answers of long conversations that the careful way finds."""
    unmarked = [template for template in templates if not re.search(r"{%[-+]?\s*generation\b", template)]
    chats = {"with a system prompt": LONG, "without": LONG[1:]}
    requests = [{"template": template, "messages": chat, "special": SPECIAL, "answers": True}
                for template in unmarked for chat in chats.values()]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ours = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
    tally, differing = collections.Counter(), []
    for request, line in zip(requests, ours.rstrip("\n").split("\n"), strict=True):
        mine = json.loads(line).get("answers")
        theirs = careful_answers(request["template"], request["messages"])
        kind = "equal" if mine == theirs else "differ"
        tally["both refuse" if mine is None and theirs is None else kind] += 1
        if kind == "differ":
            differing.append((short(request["template"]), len(request["messages"]), theirs, mine))
    print(f"answers of {len(requests)} long conversations:", dict(tally))
    for case in differing:
        print("answers differ:", *case)
    return differing


def main():
    folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    found, packages = {}, collections.Counter()
    for package in sorted(folder.iterdir()):
        if package.suffix not in (".whl", ".zip", ".gz", ".bz2", ".xz"):
            continue
        for name, data in files_of_package(package):
            for template in templates_of_file(name, data):
                packages[package.name] += 1
                found.setdefault(template, f"{package.name}: {name}")
    requests, wanted = [], []
    for template, origin in found.items():
        for name, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for prompt in (False, True):
                    requests.append({"template": template, "messages": messages, "tools": tools,
                                     "add_generation_prompt": prompt, "special": SPECIAL})
                    wanted.append((origin, f"{name}{', tools' if tools else ''}{', prompt' if prompt else ''}"))
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ours = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout.rstrip("\n").split("\n")
    tally, differing = collections.Counter(), []
    for request, (origin, case), line in zip(requests, wanted, ours, strict=True):
        theirs = rendered(request["template"], request["messages"], request["tools"],
                          request["add_generation_prompt"], False)
        mine = json.loads(line)
        if "error" in theirs or "error" in mine:
            kind = "both refuse" if "error" in theirs and "error" in mine else (
                "only Jinja2 refuses" if "error" in theirs else "only plimsoll refuses")
        else:
            hashes = {short(timeless(request, side["text"])) for side in (theirs, mine)}
            kind = "equal" if len(hashes) == 1 else "differ"
        tally[kind] += 1
        if kind not in ("equal", "both refuse"):
            differing.append((kind, origin, short(request["template"]), case, theirs, mine))
    for name, count in sorted(packages.items()):
        print(f"{count:5} {name}")
    print(f"{len(found)} templates, {len(requests)} renderings:", dict(tally))
    for kind, origin, template, case, theirs, mine in differing:
        why = theirs.get("why") or mine.get("error") or ""
        print(f"{kind}: {template} ({origin}), {case}: {why}")
        if kind == "differ" and "-v" in sys.argv:
            print("  theirs", repr(theirs["text"])[:2000])
            print("  ours  ", repr(mine["text"])[:2000])
    differing += compare_answers(found, program)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
