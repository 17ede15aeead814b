#!/usr/bin/env python3
"""Ten times the layers in the activation memory of one: what it costs, three ways.

    python3 benchmarks/deeper.py target/release/plimsoll > record.md

The shallow model is trained with everything kept; its activation bytes, plus the state of the deep model, are the
deep model's budget. Extra time is over the deep model without a budget. Needs nothing but Python's own library.
"""

import json
import statistics
import subprocess
import sys

STEPS = 5
MIB = 1 << 20
SHALLOW, DEEP = 4, 40


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def plan(layers, *more):
    return run("plan", *FIT, "--layers", str(layers), *more, "--json")[0]


def seconds(layers, *more):
    lines = run("train", *FIT, "--layers", str(layers), *more, "--max-steps", str(STEPS), "--json")
    steps = [line for line in lines if "step" in line and "loss" in line]
    end = lines[-1]
    assert end["planned_peak_bytes"] == end["measured_peak_bytes"]
    return statistics.median(s["tokens"] / s["tokens_per_second"] for s in steps[1:]), [s["loss"] for s in steps]


def main():
    pinned = ["--micro-batch", "16"]
    run("bench", "ops", *FIT, "--layers", str(SHALLOW))
    shallow = plan(SHALLOW, *pinned, "--recompute", "none")
    activations = shallow["by_purpose"]["activations"] + shallow["by_purpose"]["workspace"]
    deep = plan(DEEP, *pinned, "--recompute", "none")
    state = sum(deep["by_purpose"][purpose] for purpose in ("weights", "gradients", "optimizer"))
    budget = f"{state + activations + deep['outside_bytes']}B"
    base, losses = seconds(DEEP, *pinned, "--recompute", "none")
    print(f"{DEEP} layers in the activation memory of {SHALLOW}: {activations / MIB:.0f} MiB beside {state / MIB:.0f} MiB of state.\n")
    print("| | predicted | bound | measured | same bits |\n|---|--:|--:|--:|:-:|")
    print(f"| no budget ({deep['arena_bytes'] / MIB:.0f} MiB) | 0 | 0 | 0 ({base:.2f} s) | – |")
    ways = {
        "recompute alone, micro-batch 16": [*pinned, "--memory", budget],
        "whole blocks rebuilt (`full`)": [*pinned, "--recompute", "full"],
        "micro-batch free": ["--memory", budget],
        "with disk offload, micro-batch 16": [*pinned, "--memory", budget, "--offload", "disk"],
    }
    for name, settings in ways.items():
        planned = plan(DEEP, *settings)
        # The machine's speed drifts, so each way is measured between two runs without a budget.
        before, _ = seconds(DEEP, *pinned, "--recompute", "none")
        took, own = seconds(DEEP, *settings)
        after, _ = seconds(DEEP, *pinned, "--recompute", "none")
        base = (before + after) / 2
        extra = lambda value, of: f"{100 * (value / of - 1):+.1f} %"
        # What was fixed is not bound by what a budget allows.
        bounded = "--memory" in settings
        predicted = deep["predicted_step_seconds"]
        print(
            f"| {name} | {extra(planned['predicted_step_seconds'], predicted)} "
            f"| {extra(planned['lower_bound_step_seconds'], predicted) if bounded else '–'} | {extra(took, base)} "
            f"| {'yes' if own == losses else 'no'} |"
        )


if __name__ == "__main__":
    BINARY = sys.argv[1]
    FIT = ["--model", "tiny", "--global-batch", "16"]
    main()
