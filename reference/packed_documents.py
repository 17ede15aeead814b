"""Compares gradients of documents that share rows with those of the same documents in rows of their own.

    python reference/packed_documents.py target/release/plimsoll [--device cuda] [--shape s|1b|tiny]

Every document has words of its own, so the rows of the embedding's gradient that belong to its words are its gradient alone.
One step of plain SGD is taken over all documents, packed and padded; the change of the weights is the gradient. In f32 the two must
agree within 1e-4 of its length for every document. In bf16 they may be as far apart as the padded run is from its own in f32.

`1b` has two layers of the Llama-3.2-1B shape. Its heads of 64 are what cuDNN takes, so its packed rows in bf16 go through the ragged
form; on a GPU the process fails where plimsoll notes that cuDNN is missing or refuses them. `tiny` lets the script itself be tried anywhere.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_parity import llama, write_model
from safetensors import safe_open
from word_texts import losses_of, write_tokenizer

LIMIT = 1e-4
RATE = 100.0  # so that the change is large beside the rounding of the weights
EMBEDDING = "model.embed_tokens.weight"
# Length and number of documents, and the model.
SHAPES = {
    "s": (2048, 40, llama(8, 256, 8, 4, 688, 8192)),
    "1b": (2048, 40, llama(2, 2048, 32, 8, 8192, 8192)),
    "tiny": (64, 12, llama(2, 64, 4, 2, 96, 300)),
}


def write_documents(path: Path, words: list[str], length: int, count: int) -> list[list[int]]:
    """Random documents in words of their own; returns their tokens."""
    draw = random.Random(7)
    draw.shuffle(words)
    share = len(words) // count
    documents = [words[share * index : share * (index + 1)] for index in range(count)]
    with path.open("w") as file:
        for own in documents:
            text = [draw.choice(own) for _ in range(draw.randrange(length // 12, length * 2 // 3))]
            file.write(json.dumps({"text": " ".join(text)}) + "\n")
    return [[int(word[1:]) for word in own] for own in documents]


def run(arguments, work: Path, length: int, more: list) -> tuple[list[float], list[str]]:
    """The losses, and what is noted of cuDNN."""
    command = [
        arguments.binary, "train", "--model", work / "model", "--data", work / "texts.jsonl", "--device", arguments.device,
        "--seq-len", length, "--optim", "sgd", "--momentum", 0, "--lr-scheduler-type", "constant",
        "--warmup-steps", 0, "--weight-decay", 0, "--max-grad-norm", 0, "--logging-steps", 1, "--json", "--report-to", "none",
        "--data-cache", work / "cache", "--memory", arguments.memory, *more,
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: cuDNN")]
    return losses_of(done), notes


def change(work: Path, out: Path) -> dict[str, torch.Tensor]:
    """Of every weight in one step."""
    before, after = (safe_open(next(folder.glob("*.safetensors")), "pt") for folder in (work / "model", out))
    return {name: after.get_tensor(name).double() - before.get_tensor(name).double() for name in before.keys()}


def step(arguments, work: Path, length: int, packed: bool, half: bool):
    """The change of a step over all documents, the rows they took, and what is noted of cuDNN."""
    out = work / f"out-{packed}-{half}"
    form = ["--packing", str(packed).lower(), *(["--bf16"] if half else [])]
    # An epoch of single rows counts them.
    epoch = ["--global-batch", 1, "--num-train-epochs", 1, "--learning-rate", 1e-9, "--output-dir", work / f"rows-{packed}-{half}"]
    rows = len(run(arguments, work, length, [*form, *epoch])[0])
    whole = ["--global-batch", rows, "--max-steps", 1, "--learning-rate", RATE, "--output-dir", out]
    _, notes = run(arguments, work, length, [*form, *whole])
    return change(work, out), rows, notes


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", default="16GiB")
    parser.add_argument("--shape", choices=SHAPES, default="s")
    arguments = parser.parse_args()
    length, count, shape = SHAPES[arguments.shape]
    failed = 0
    with tempfile.TemporaryDirectory() as home:
        work = Path(home)
        write_model(work / "model", *shape, "cpu")
        words = write_tokenizer(work / "model", shape[1].vocab_size, False)
        documents = write_documents(work / "texts.jsonl", words, length, count)
        exact = None
        for half in [False, True]:
            (packed, rows, notes), (alone, padded, _) = (step(arguments, work, length, form, half) for form in (True, False))
            of_documents = [apart(packed[EMBEDDING][own], alone[EMBEDDING][own]) for own in documents]
            result = {"shape": arguments.shape, "bf16": half, "documents": count, "rows": [rows, padded], "worst document": max(of_documents),
                      "worst tensor": max(apart(packed[name], alone[name]) for name in alone)}
            if half:
                allowed = [apart(alone[EMBEDDING][own], exact[EMBEDDING][own]) for own in documents]
                result["bf16 from f32"] = [min(allowed), max(allowed)]
                result["ok"] = all(found <= limit for found, limit in zip(of_documents, allowed))
            else:
                exact, result["ok"] = alone, max(of_documents) <= LIMIT
            result["ok"] &= rows < padded
            if half and arguments.shape == "1b" and arguments.device != "cpu":
                result["notes of cuDNN"] = notes
                result["ok"] &= not notes
            failed += not result["ok"]
            print(json.dumps(result), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
