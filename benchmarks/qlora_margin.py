#!/usr/bin/env python3
"""Trains LoRA over a base in floats, in 8 bits and in 4 bits, and compares their losses on rows that none of them trained on.

    python3 benchmarks/qlora_margin.py PLIMSOLL FOLDER [--device cuda] [--steps 300] [--base-steps 1500] [--quick] > table.md

Base and task are those of `zeroth_order_task.py`: 2,000 rows for training, 500 for validation, and the loss is that of the verdict.
The base is as small as there, but its rows are whole blocks of 4-bit codes: every linear layer can be quantised. A gain is the
validation loss of the base in floats less that at the end of a run.

The margin was stated before the first run: the mean gain over three seeds, over 4 and over 8 bits, is at least 97 % of LoRA's
over floats. Exit status 1 means that it is not. `--quick` is for a CPU: a base of 400 steps of 8 sequences, and 4 rows of 136
tokens a step. Runs whose record is in FOLDER are not repeated.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import zeroth_order_task as task

MARGIN = 0.97
CONFIG = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=320, hidden_size=128, intermediate_size=384,
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-5,
    rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu", attention_bias=False, mlp_bias=False,
)
BASES = {"floats": {}, "8 bits": dict(load_in_8bit="true"), "4 bits": dict(load_in_4bit="true")}
LORA = dict(lora_r=8, learning_rate=2e-3, lr_scheduler_type="linear")


def end(name, seed):
    """The validation loss at the end of a run."""
    settings = LORA | BASES[name] | dict(max_steps=ARGS.steps, eval_steps=ARGS.steps, seed=seed)
    return task.evaluations(f"{name.replace(' ', '-')}-{seed}", settings)[ARGS.steps]


def main():
    if not (task.WORK / "train.jsonl").exists():
        task.write_data()
    (task.WORK / "config.json").write_text(json.dumps(CONFIG))
    base = {key: value for key, value in task.BASE.items() if key != "model"} | dict(
        config=task.WORK / "config.json", max_steps=ARGS.base_steps, data=task.WORK / "reports.jsonl",
        output_dir=task.WORK / "base", save_steps=10**6)
    task.run("pretraining", base)
    # A step that moves nothing, for the loss of the base.
    (start,) = task.evaluations("start", dict(max_steps=1, learning_rate=1e-12, seed=0)).values()
    print(f"Validation loss of the base in floats: {start:.4f}\n")
    print("| base | validation loss, three seeds | mean gain | of LoRA's over floats |\n|---|---|--:|--:|")
    ends = [{name: end(name, seed) for name in BASES} for seed in task.SEEDS]
    gains = {}
    for name in BASES:
        losses = [of_seed[name] for of_seed in ends]
        gains[name] = start - fmean(losses)
        shown = ", ".join(f"{loss:.4f}" for loss in losses)
        print(f"| {name} | {shown} | {gains[name]:.4f} | {100 * gains[name] / gains['floats']:.1f} % |", flush=True)
    if min(gains.values()) < MARGIN * gains["floats"]:
        raise SystemExit(f"a base in few bits gained less than {100 * MARGIN:.0f} % of what LoRA over floats gained")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--base-steps", type=int, default=1500)
    parser.add_argument("--quick", action="store_true")
    ARGS = task.ARGS = parser.parse_args()
    if ARGS.quick:
        ARGS.base_steps, task.BASE["global_batch"] = 400, 8
        task.TASK |= dict(seq_len=136, global_batch=4)
    task.WORK = ARGS.folder.resolve()
    task.WORK.mkdir(parents=True, exist_ok=True)
    main()
