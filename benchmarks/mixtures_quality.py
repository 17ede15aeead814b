#!/usr/bin/env python3
"""Trains `tiny-moe` and a dense model of equal active size on the same rows with three seeds, and compares validation losses.

    cargo build --release
    python3 benchmarks/mixtures_quality.py target/release/plimsoll FOLDER > table.md

The text is the repository's own: Rust sources below `crates/`, of which every sixteenth file is only validated on. The dense
model differs from `tiny-moe` in one thing: a feed-forward network of hidden width 344 stands where two of eight experts of
width 172 work on a token. Its `config.json` is written to FOLDER. A seed draws the weights and the order of rows, and both models
get the same rows in the same order.

Records of every run stay in FOLDER, and a run whose record is there is not repeated. The curves go to
`mixtures_quality_20261116.svg` beside this script. Exit status 1 means that the mixture ended above the dense model, or that
the last tenth of the steps sent less than 1 % of a layer's tokens to one of its experts.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from own_text import ROOT, collect, parts, settings

SEEDS, STEPS, EVERY, LEAST_SHARE = (0, 1, 2), 1000, 100, 0.01
# One thread each, because two runs go side by side; the number of threads changes no bit.
COMMON = dict(threads=1, seq_len=128, global_batch=4, micro_batch=4, recompute="none", costs="modelled", learning_rate=1e-3,
              weight_decay=0.1, max_steps=STEPS, warmup_steps=STEPS // 10, logging_steps=EVERY // 10, eval_steps=EVERY,
              max_eval_samples=128)
DENSE = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", attention_bias=False, head_dim=32, hidden_act="silu",
             hidden_size=128, intermediate_size=344, max_position_embeddings=128, num_attention_heads=4, num_hidden_layers=4,
             num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False, vocab_size=512,
             rope_parameters=dict(rope_theta=10000.0, rope_type="default"))


def train(name, file, seed):
    """The records of one run."""
    kept = WORK / f"{name}-{seed}.jsonl"
    if not kept.exists():
        command = [BINARY, "train", "--settings", str(file), "--seed", str(seed), "--report-to", "none", "--json"]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        kept.write_text(done.stdout)
        print(f"{kept.stem}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return [json.loads(line) for line in kept.read_text().splitlines()]


def losses(lines):
    return {line["step"]: line["eval_loss"] for line in lines if line.get("event") == "evaluation"}


def last_shares(lines):
    """For each layer the share of each expert, as a mean over the records of the last tenth of the steps."""
    loads = [line["shares"] for line in lines if line.get("event") == "experts" and line["step"] > STEPS - STEPS // 10]
    return [[fmean(shares) for shares in zip(*layer)] for layer in zip(*loads)]


def mean(curves):
    return {step: fmean(curve[step] for curve in curves) for step in curves[0]}


def table(curves):
    steps = [step for step in sorted(curves["dense"][0]) if step in (100, 200, 400, 600, 800, 1000)]
    print("| validation loss | " + " | ".join(f"step {step}" for step in steps) + " |")
    print("|---|" + "--:|" * len(steps))
    for name, runs in curves.items():
        for label, curve in [*((f"{name}, seed {seed}", run) for seed, run in zip(SEEDS, runs)), (f"**{name}, mean**", mean(runs))]:
            print(f"| {label} | " + " | ".join(f"{curve[step]:.4f}" for step in steps) + " |")


def table_of_shares(runs):
    print("\n| share of tokens, last 100 steps | " + " | ".join(f"layer {layer}" for layer in range(len(runs[0]))) + " |")
    print("|---|" + "--:|" * len(runs[0]))
    for seed, layers in zip(SEEDS, runs):
        cells = (f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %" for shares in layers)
        print(f"| seed {seed}, least to most used expert | " + " | ".join(cells) + " |")


def svg(path, curves):
    """Validation loss over steps: a thin line for each seed, a broad one for their mean."""
    width, height, left, top = 560, 340, 50, 40
    every = [loss for runs in curves.values() for run in runs for loss in run.values()]
    low, high = min(every), max(every)
    x = lambda step: left + (width - 2 * left) * step / STEPS
    y = lambda loss: top + (height - 2 * top) * (high - loss) / (high - low)
    parts = [f'<text x="{left}" y="{top - 18}" font-size="14">Validation loss, three seeds and their mean</text>',
             f'<path d="M{left} {top}V{height - top}H{x(STEPS):.0f}" fill="none" stroke="#888"/>']
    parts += [f'<text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>' for loss in (low, (low + high) / 2, high)]
    parts += [f'<text x="{x(step):.1f}" y="{height - top + 16}" text-anchor="middle">{step}</text>' for step in (0, STEPS // 2, STEPS)]
    for number, (name, runs) in enumerate(curves.items()):
        colour = ("#1f77b4", "#d62728")[number]
        for curve, stroke in [*((run, 0.8) for run in runs), (mean(runs), 2.5)]:
            points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in sorted(curve.items()))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>')
        at = top + 14 + 16 * number
        parts.append(f'<text x="{x(STEPS) - 120:.0f}" y="{at}" fill="{colour}">{name}</text>')
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
                    f'<rect width="{width}" height="{height}" fill="white"/>' + "\n".join(parts) + "</svg>\n")


def main():
    (WORK / "dense.json").write_text(json.dumps(DENSE))
    text = WORK / "text"
    # Records that are kept must be of the same text.
    common = COMMON | (parts(text) if text.exists() else collect(text, "**/*.rs", [ROOT / "crates"], 16))
    files = {"dense": settings(WORK / "dense.toml", common | dict(config=str(WORK / "dense.json"))),
             "tiny-moe": settings(WORK / "tiny-moe.toml", common | dict(model="tiny-moe"))}
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The slower runs first, so that no core waits at the end.
        begun = {(name, seed): pool.submit(train, name, files[name], seed) for name in reversed(files) for seed in SEEDS}
    records = {name: [begun[name, seed].result() for seed in SEEDS] for name in files}
    curves = {name: [losses(lines) for lines in runs] for name, runs in records.items()}
    shares = [last_shares(lines) for lines in records["tiny-moe"]]
    table(curves)
    table_of_shares(shares)
    svg(Path(__file__).with_name("mixtures_quality_20261116.svg"), curves)
    dense, mixture = (mean(curves[name])[STEPS] for name in files)
    least = min(share for layers in shares for experts in layers for share in experts)
    print(f"\nThe mixture ends {100 * (1 - mixture / dense):.2f} % below the dense model; its least used expert has {100 * least:.1f} % of the tokens.")
    if mixture >= dense or least < LEAST_SHARE:
        raise SystemExit("the mixture is not better than the dense model, or a router has collapsed")


if __name__ == "__main__":
    BINARY, WORK = sys.argv[1], Path(sys.argv[2]).resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    main()
