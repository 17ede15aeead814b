#!/usr/bin/env python3
"""Ten times the layers in the activation memory of one: what it costs, several ways.

    python3 benchmarks/deeper.py target/release/plimsoll [--model s --seq-len 256] [--threads 4] > record.md

The shallow model is trained with everything kept; its activation bytes, plus the state of the deep model, are the
deep model's budget. Extra time is over the deep model without a budget. Other work of the machine only ever slows a
step down, so every way is trained in each of several rounds and its fastest step counts. A picture of predicted time
against memory goes beside the script (`deeper.svg`). Needs nothing but Python's own library.
"""

import json
import subprocess
import sys
from pathlib import Path

ROUNDS, STEPS = 3, 3
MIB = 1 << 20
SHALLOW, DEEP = 4, 40
PINNED = ["--micro-batch", "16"]
DISK = ["--offload", "disk"]


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def plan(layers, *more):
    return run("plan", *FIT, "--layers", str(layers), *more, "--json")[0]


def train(*more):
    lines = run("train", *FIT, "--layers", str(DEEP), *more, "--max-steps", str(STEPS), "--json")
    steps = [line for line in lines if "step" in line and "loss" in line]
    end = lines[-1]
    assert end["planned_peak_bytes"] == end["measured_peak_bytes"]
    return min(s["tokens"] / s["tokens_per_second"] for s in steps[1:]), [s["loss"] for s in steps]


def main():
    train(*PINNED, "--recompute", "none")  # a machine that stood still is slow at first
    run("bench", "ops", *FIT, "--layers", str(SHALLOW), *DISK)
    shallow = plan(SHALLOW, *PINNED, "--recompute", "none")
    activations = shallow["by_purpose"]["activations"] + shallow["by_purpose"]["workspace"]
    deep = plan(DEEP, *PINNED, "--recompute", "none")
    state = sum(deep["by_purpose"][purpose] for purpose in ("weights", "gradients", "optimizer")) + deep["outside_bytes"]
    budget = ["--memory", f"{state + activations}B"]
    ways = {
        "recompute alone, micro-batch 16": [*PINNED, *budget],
        "whole blocks rebuilt (`full`), micro-batch 16": [*PINNED, "--recompute", "full"],
        "micro-batch free": budget,
        "with disk offload, micro-batch 16": [*PINNED, *budget, *DISK],
        "with disk offload, micro-batch free": [*budget, *DISK],
    }
    plans = {name: plan(DEEP, *settings) for name, settings in ways.items()}
    nothing = [*PINNED, "--recompute", "none"]
    base, took, same = [], {name: [] for name in ways}, {name: True for name in ways}
    for number in range(1, ROUNDS + 1):
        fastest, losses = train(*nothing)
        base.append(fastest)
        print(f"round {number} of {ROUNDS}: {fastest:.2f} s without a budget", file=sys.stderr)
        for name, settings in ways.items():
            fastest, own = train(*settings)
            took[name].append(fastest)
            print(f"  {fastest:.2f} s {name}", file=sys.stderr)
            same[name] &= own == losses
    ratios = {name: min(seconds) / min(base) for name, seconds in took.items()}

    extra = lambda ratio: f"{100 * (ratio - 1):+.1f} %"
    seconds = deep["predicted_step_seconds"]
    print(f"{DEEP} layers in the activation memory of {SHALLOW}: {activations / MIB:.0f} MiB beside {state / MIB:.0f} MiB of")
    print(f"state and fixed costs; without a budget {deep['arena_bytes'] / MIB:.0f} MiB, {seconds:.2f} s a step predicted,")
    print(f"{min(base):.2f} s measured. Fastest step of each round, in seconds: {listed(base)}.\n")
    print("| | arena | predicted | bound | measured | seconds of each round | same bits |\n|---|--:|--:|--:|--:|---|:-:|")
    for name, settings in ways.items():
        planned = plans[name]
        # The lower bound is that of a budget; a strategy fixed by hand has none.
        bound = extra(planned["lower_bound_step_seconds"] / seconds) if "--memory" in settings else "–"
        print(
            f"| {name} ({planned['micro_batch']} × {planned['accumulation']}) | {planned['arena_bytes'] / MIB:.0f} MiB "
            f"| {extra(planned['predicted_step_seconds'] / seconds)} | {bound} | {extra(ratios[name])} "
            f"| {listed(took[name])} | {'yes' if same[name] else 'no'} |"
        )
    points = {name: (plans[name]["arena_bytes"], ratios[name]) for name in ways}
    picture(curves(deep, state, activations), points, seconds)


def listed(seconds):
    return ", ".join(f"{value:.2f}" for value in seconds)


def curves(deep, state, activations):
    """Predicted step seconds at budgets from less than the shallow model's activations to everything."""
    whole = deep["arena_bytes"] + deep["outside_bytes"] - state
    budgets = [state + int(activations * 0.7 * (whole / activations / 0.7) ** (i / 7)) for i in range(8)]
    kinds = {"recompute alone": PINNED, "micro-batch free": [], "with disk offload": [*PINNED, *DISK]}
    drawn = {}
    for name, settings in kinds.items():
        drawn[name] = []
        for budget in budgets:
            try:
                planned = plan(DEEP, *settings, "--memory", f"{budget}B")
            except SystemExit:
                continue
            drawn[name].append((planned["arena_bytes"], planned["predicted_step_seconds"]))
    return drawn


def picture(curves, points, base):
    colours = {"recompute alone": "#2563eb", "micro-batch free": "#059669", "with disk offload": "#9333ea"}
    every = [arena for line in curves.values() for arena, _ in line]
    left, right = min(every), max(every)
    high = max([t / base for line in curves.values() for _, t in line] + [ratio for _, ratio in points.values()]) * 1.02
    x = lambda arena: 60 + 500 * (arena - left) / (right - left)
    y = lambda ratio: 260 - 220 * (ratio - 0.95) / (high - 0.95)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 310" font-family="sans-serif" font-size="12">',
        '<rect width="640" height="310" fill="#fff"/>',
        '<path d="M60 20V260H590" fill="none" stroke="#888"/>',
    ]
    for percent in range(0, 100, 10):
        ratio = 1 + percent / 100
        if ratio < high:
            parts.append(f'<text x="52" y="{y(ratio) + 4:.0f}" text-anchor="end" fill="#555">+{percent} %</text>')
            parts.append(f'<path d="M60 {y(ratio):.1f}H590" stroke="#eee"/>')
    for row, (name, line) in enumerate(curves.items()):
        at = " ".join(f"{x(arena):.1f},{y(time / base):.1f}" for arena, time in line)
        parts.append(f'<polyline points="{at}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts.append(f'<text x="580" y="{34 + 16 * row}" text-anchor="end" fill="{colours[name]}">{name}</text>')
    for name, (arena, ratio) in points.items():
        kind = next((kind for kind in reversed(colours) if kind in name), None)
        colour = colours.get(kind, "#d97706")
        parts.append(f'<circle cx="{x(arena):.1f}" cy="{y(ratio):.1f}" r="4" fill="{colour}"/>')
        if kind is None:
            parts.append(f'<text x="{x(arena) + 8:.1f}" y="{y(ratio) + 4:.1f}" fill="{colour}">full</text>')
    for arena in (left, (left + right) / 2, right):
        parts.append(f'<text x="{x(arena):.0f}" y="278" text-anchor="middle" fill="#555">{arena / MIB:.0f} MiB</text>')
    parts.append(
        f'<text x="60" y="300" fill="#333">{DEEP} layers: arena against extra step time. Lines: predicted; points: measured.</text>'
    )
    parts.append("</svg>")
    Path(__file__).with_name("deeper.svg").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    BINARY = sys.argv[1]
    model = [] if "--model" in sys.argv else ["--model", "tiny", "--seq-len", "512"]
    FIT = [*model, "--global-batch", "16", *sys.argv[2:]]
    main()
