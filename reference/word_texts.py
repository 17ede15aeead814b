"""Texts of made-up words and tokenizers that give each word a token, for scripts that train beside plimsoll."""

import json
import subprocess
import tempfile
from pathlib import Path

import tokenizers
import transformers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing


def write_tokenizer(folder: Path, vocab: int, encoder: bool) -> list[str]:
    """A token for each word; returns words that are no special tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if encoder else ["<pad>", "</s>", "<unk>"]
    words = special + [f"w{number}" for number in range(len(special), vocab)]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(WordLevel(ids, unk_token="[UNK]" if encoder else "<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if encoder:
        around = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
        names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    else:
        names = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return words[len(special):]


def losses_of(done: subprocess.CompletedProcess) -> list[float]:
    """Losses of the steps of a run with `--json`."""
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, done.args))}\n{done.stderr}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [record["loss"] for record in records if "event" not in record]


def first_losses(command: list[str], steps: int) -> list[float]:
    """Losses of that many steps of a run with `--json`, which is ended then: what it would save may take longer than they do."""
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as run:
        losses = []
        for line in run.stdout:
            record = json.loads(line) if line.startswith("{") else {"event": "text"}
            losses += [] if "event" in record else [record["loss"]]
            if len(losses) == steps:
                run.kill()
                return losses
        said.seek(0)
        raise SystemExit(f"{' '.join(command)}\n{said.read()}")
