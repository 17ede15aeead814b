"""Writes testdata/tokenizer/: three small tokenizers as the hub stores them, and what transformers makes of them.

    python reference/tokenizer.py [folder]        (folder: testdata/tokenizer beside this one)

    chatml/         byte-level BPE, chat template in `tokenizer_config.json`, no token opens a text (like Qwen)
    llama3/         byte-level BPE, chat template in `chat_template.jinja`, a token opens every text
    bert/           WordPiece with [CLS] and [SEP]
    expected.json   texts with their ids; conversations rendered by each template, with ids and the mask of what the
                    assistant said, as `apply_chat_template(..., return_assistant_tokens_mask=True)` gives it

A mask needs `{% generation %}` marks, which the templates of most models lack. So `expected.json` holds each template
twice, with the marks and without: whoever finds the assistant's turns without them must find the same tokens.
`thinking` drops the thoughts of earlier turns, so that what it writes for a conversation does not begin with what it
writes for the first half.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "A ship carries its line on the hull: load it to the mark and no deeper.",
    "The planner counts bytes; the engine keeps to them.\n\nNothing grows after the start.",
    "Grüße aus Köln, 東京 und Осло: naïve façade, 3.14 – 42 %.",
    "  spaces   and\ttabs\nlines\r\n\r\nand more",
    "def f(x):\n    return x * 2\n",
    "",
]

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content + '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('the role ' + message['role'] + ' is unknown') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] | trim }}{{ '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'].strip() + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {%- if loop.index0 > ns.last %}
                {{- '<think>\\n' + message.thoughts | default('') + '\\n</think>\\n' }}
            {%- endif %}
            {{- message.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

TOOLS = [{"type": "function", "function": {"name": "depth", "parameters": {"unit": "m", "at": ["Köln", 1, None, True]}}}]

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "How deep?"}, {"role": "assistant", "content": "To the mark."}]},
    {
        "messages": [
            {"role": "system", "content": "You load ships."},
            {"role": "user", "content": "Grüße!\n"},
            {"role": "assistant", "content": "Grüße. 東京?"},
            {"role": "user", "content": "No deeper than\n\nthe line?"},
            {"role": "assistant", "content": "No <deeper> & \"no\" less.", "thoughts": "count bytes"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "  four \n"},
            {"role": "user", "content": "five"},
        ]
    },
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "tools": TOOLS},
]


def byte_level(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320 + len(special),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2 + ["<|user assistant system"], trainer)
    return tokenizer


def chatml() -> PreTrainedTokenizerFast:
    tokenizer = byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=unmarked(CHATML)
    )


def llama3() -> PreTrainedTokenizerFast:
    begin = "<|begin_of_text|>"
    tokenizer = byte_level([begin, "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"])
    opening = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), opening])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token="<|eot_id|>", chat_template=unmarked(LLAMA3)
    )


def bert() -> PreTrainedTokenizerFast:
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def unmarked(template: str) -> str:
    lines = template.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() not in ("{%- generation %}", "{%- endgeneration %}"))


def rendered(tokenizer: PreTrainedTokenizerFast, template: str, conversation: dict) -> dict:
    messages, tools = conversation["messages"], conversation.get("tools")

    def apply(**options):
        return tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, **options)

    whole = apply(tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return {
        "text": apply(tokenize=False),
        "prompt": apply(tokenize=False, add_generation_prompt=True),
        "ids": whole["input_ids"],
        "mask": whole["assistant_masks"],
    }


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here / "testdata" / "tokenizer"
    expected = {"conversations": CONVERSATIONS, "tokenizers": {}, "chats": []}
    made = {"chatml": chatml(), "llama3": llama3(), "bert": bert()}
    for name, tokenizer in made.items():
        # `chatml` is stored as older versions did it, with the template inside the configuration.
        tokenizer.save_pretrained(folder / name, save_jinja_files=name != "chatml")
        expected["tokenizers"][name] = {
            "vocab": len(tokenizer),
            "texts": [
                {
                    "text": text,
                    "ids": tokenizer(text)["input_ids"],
                    "plain": tokenizer(text, add_special_tokens=False)["input_ids"],
                    "decoded": tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True),
                }
                for text in TEXTS
            ],
        }
    for name, template in [("chatml", CHATML), ("llama3", LLAMA3), ("thinking", THINKING)]:
        tokenizer = made["llama3" if name == "llama3" else "chatml"]
        chats = [rendered(tokenizer, template, conversation) for conversation in CONVERSATIONS]
        plain = [rendered_text(tokenizer, unmarked(template), conversation) for conversation in CONVERSATIONS]
        assert plain == [chat["text"] for chat in chats], f"{name}: the marks change the text"
        expected["chats"].append({"name": name, "marked": template, "template": unmarked(template), "chats": chats})
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")


def rendered_text(tokenizer: PreTrainedTokenizerFast, template: str, conversation: dict) -> str:
    return tokenizer.apply_chat_template(
        conversation["messages"], tools=conversation.get("tools"), chat_template=template, tokenize=False
    )


if __name__ == "__main__":
    main()
