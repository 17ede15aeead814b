#!/usr/bin/env python3
"""Trains models at eight budgets each and compares measured step times with predicted ones.

    python3 benchmarks/budgets.py target/release/plimsoll s gpt2 [--threads 4] > record.md

Per model: times of ops are measured (`bench ops`), budgets are spread evenly from the smallest that works to what
no budget takes, and each is trained with the micro-batch pinned and with it left free. The classic strategies run beside
them. The record goes to standard output, a picture beside the script (`budgets_MODEL.svg`). Needs nothing but Python's own
library.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

STEPS = 4
MIB = 1 << 20
BERT_WORDS = "testdata/tokenizer/bert"
# Presets as they are, and shapes of well-known models with fewer layers, so that a run takes minutes.
MODELS = {
    "s": [],
    "m": [],
    "gpt2": ["--layers", "6", "--seq-len", "128"],
    "bert-base": ["--layers", "6", "--seq-len", "128", "--data", "README.md", "--tokenizer", BERT_WORDS],
}


def plimsoll(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def plan(fit, *more):
    code, out, err = plimsoll("plan", *fit, *more, "--json")
    return (json.loads(out), "") if code == 0 else (None, err)


def train(fit, *more):
    """Fastest of the steps after the first (what else the machine does only slows one down), losses, and the end."""
    code, out, err = plimsoll("train", *fit, *more, "--json", "--max-steps", str(STEPS))
    if code != 0:
        raise SystemExit(err)
    lines = [json.loads(line) for line in out.splitlines()]
    steps = [line for line in lines if "step" in line and "loss" in line]
    seconds = [step["tokens"] / step["tokens_per_second"] for step in steps[1:]]
    return min(seconds), [step["loss"] for step in steps], lines[-1]


def smallest(fit):
    """The least whole MiB that works: the hint names it when the budget is too small."""
    _, _, err = plimsoll("train", *fit, "--memory", "1MiB")
    return int(re.search(r"--memory (\d+)MiB", err)[1])


def measure(model, fit):
    plimsoll("bench", "ops", *fit)
    whole = plan(fit, "--recompute", "none")[0]
    most = -(-(whole["arena_bytes"] + whole["outside_bytes"]) // MIB) + 1
    least = smallest(fit)
    rows = []
    base_seconds, losses, end_of_none = train(fit, "--recompute", "none")
    rows.append(("none", None, whole, base_seconds, end_of_none, True))
    for strategy in ("sqrt", "full"):
        planned = plan(fit, "--recompute", strategy)[0]
        seconds, own, end = train(fit, "--recompute", strategy)
        rows.append((strategy, None, planned, seconds, end, own == losses))
    for step in range(8):
        mib = round(least + (most - least) * step / 7)
        planned = plan(fit, "--memory", f"{mib}MiB")[0]
        seconds, own, end = train(fit, "--memory", f"{mib}MiB")
        rows.append(("auto", mib, planned, seconds, end, own == losses))
    freely = free(fit, [row[1] for row in rows if row[1]], losses)
    # A machine that stood still is slow at first: the faster of both ends counts.
    again, _, _ = train(fit, "--recompute", "none")
    rows[0] = ("none", None, whole, min(base_seconds, again), end_of_none, True)
    return rows, (base_seconds, again), freely


def free(fit, budgets, losses):
    """The same budgets with the micro-batch left to the planner: what it chose and how far the losses are."""
    fit = fit[: fit.index("--micro-batch")]
    rows = []
    for mib in budgets:
        planned = plan(fit, "--memory", f"{mib}MiB")[0]
        seconds, own, end = train(fit, "--memory", f"{mib}MiB")
        assert end["planned_peak_bytes"] == end["measured_peak_bytes"], mib
        assert end["process_peak_bytes"] <= mib * MIB, mib
        apart = max(abs(a - b) / abs(b) for a, b in zip(own, losses))
        assert apart < 1e-5, (mib, apart)
        rows.append((mib, planned, seconds, apart))
    return rows


def free_table(base, rows):
    print("\nMicro-batch left free, same global batch; losses may differ by the order of sums:\n")
    print("| budget | micro-batch × accumulation | predicted | measured | losses apart at most |\n|--:|--:|--:|--:|--:|")
    for mib, planned, seconds, apart in rows:
        extra = lambda value, of: f"{100 * (value / of - 1):+.1f} %"
        predicted = extra(planned["predicted_step_seconds"], base[2]["predicted_step_seconds"])
        print(
            f"| {mib} MiB | {planned['micro_batch']} × {planned['accumulation']} | {predicted} "
            f"| {extra(seconds, base[3])} | {apart:.1e} |"
        )


def table(model, fit, rows, ends):
    base = rows[0]
    print(f"\n## {model}: `{' '.join(fit)}`\n")
    print("| strategy | budget | arena planned = used | process peak | predicted | measured | bound | same bits |")
    print("|---|--:|--:|--:|--:|--:|--:|:-:|")
    for strategy, mib, planned, seconds, end, same in rows:
        assert end["planned_peak_bytes"] == end["measured_peak_bytes"], (strategy, mib)
        assert mib is None or end["process_peak_bytes"] <= mib * MIB, (strategy, mib)
        extra = lambda value, of: f"{100 * (value / of - 1):+.1f} %"
        predicted = extra(planned["predicted_step_seconds"], base[2]["predicted_step_seconds"])
        bound = extra(planned["lower_bound_step_seconds"], base[2]["predicted_step_seconds"])
        print(
            f"| {strategy} | {f'{mib} MiB' if mib else '–'} | {end['measured_peak_bytes'] / MIB:.1f} MiB "
            f"| {end['process_peak_bytes'] / MIB:.1f} MiB | {predicted} | {extra(seconds, base[3])} | {bound} "
            f"| {'yes' if same else 'NO'} |"
        )
    ratio = base[3] / base[2]["predicted_step_seconds"]
    print(f"\nWithout recompute a step was predicted to take {base[2]['predicted_step_seconds']:.3f} s and took")
    print(f"{ends[0]:.3f} s at the beginning and {ends[1]:.3f} s at the end ({ratio:.2f} × the prediction).")


def picture(model, rows):
    """Step time against memory: predicted as a line, measured as points, the classics beside them.

    Budgets in which the backward pass runs twice would flatten everything else and are left to the table."""
    once = 1.6 * rows[0][2]["predicted_step_seconds"]
    rows = [row for row in rows if row[2]["predicted_step_seconds"] < once]
    arenas = [row[4]["measured_peak_bytes"] / MIB for row in rows]
    times = [row[3] / rows[0][3] for row in rows] + [
        row[2]["predicted_step_seconds"] / rows[0][2]["predicted_step_seconds"] for row in rows
    ]
    left, right, low, high = min(arenas), max(arenas), 0.95, max(times) * 1.03
    x = lambda mib: 60 + 500 * (mib - left) / (right - left)
    y = lambda time: 260 - 220 * (time - low) / (high - low)
    auto = sorted((row for row in rows if row[0] == "auto"), key=lambda row: row[4]["measured_peak_bytes"])
    base = rows[0]
    line = " ".join(
        f"{x(r[4]['measured_peak_bytes'] / MIB):.1f},{y(r[2]['predicted_step_seconds'] / base[2]['predicted_step_seconds']):.1f}"
        for r in auto
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 310" font-family="sans-serif" font-size="12">',
        '<rect width="640" height="310" fill="#fff"/>',
        '<path d="M60 20V260H590" fill="none" stroke="#888"/>',
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>',
    ]
    for time in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5):
        if low < time < high:
            parts.append(f'<text x="52" y="{y(time) + 4:.0f}" text-anchor="end" fill="#555">{time:.1f}×</text>')
            parts.append(f'<path d="M60 {y(time):.1f}H590" stroke="#eee"/>')
    for row in rows:
        mib, time = row[4]["measured_peak_bytes"] / MIB, row[3] / base[3]
        colour = "#2563eb" if row[0] == "auto" else "#d97706"
        parts.append(f'<circle cx="{x(mib):.1f}" cy="{y(time):.1f}" r="4" fill="{colour}"/>')
        if row[0] != "auto":
            parts.append(f'<text x="{x(mib):.1f}" y="{y(time) - 9:.1f}" text-anchor="middle" fill="{colour}">{row[0]}</text>')
    for mib in (left, (left + right) / 2, right):
        parts.append(f'<text x="{x(mib):.0f}" y="278" text-anchor="middle" fill="#555">{mib:.0f} MiB</text>')
    parts.append(
        f'<text x="60" y="300" fill="#333">{model}: arena against step time (none = 1). Line: predicted for auto; points: measured.</text>'
    )
    parts.append("</svg>")
    Path(__file__).with_name(f"budgets_{model.replace('.', '_')}.svg").write_text("\n".join(parts) + "\n")


def main(models, flags):
    for model in models:
        fit = ["--model", model, *MODELS[model], *flags, "--global-batch", "4", "--micro-batch", "4"]
        rows, ends, freely = measure(model, fit)
        table(model, fit, rows, ends)
        free_table(rows[0], freely)
        picture(model, rows)


if __name__ == "__main__":
    BINARY = sys.argv[1]
    given = sys.argv[2:]
    split = next((index for index, word in enumerate(given) if word.startswith("--")), len(given))
    main(given[:split], given[split:])
