"""Writes the names of the arguments of transformers' Trainer, each of which plimsoll has or has an answer to."""

import dataclasses
from pathlib import Path

import transformers

OUT = Path(__file__).parent.parent / "testdata" / "training_arguments.txt"

names = sorted(field.name for field in dataclasses.fields(transformers.TrainingArguments))
head = f"# Fields of transformers.TrainingArguments {transformers.__version__}, by reference/training_arguments.py\n"
OUT.write_text(head + "".join(f"{name}\n" for name in names))
