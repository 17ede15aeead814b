#!/usr/bin/env python3
"""Fine-tunes one small model with AdamW, `mezo` and `es` and compares their gains on rows that none of them trained on.

    python3 benchmarks/zeroth_order_task.py PLIMSOLL FOLDER [--device cuda] [--sweep | --fitness] > table.md

The task imitates what training without a backward pass is for: weights that know the subject already, and a small set of rows that says
what is wanted. A made-up inspector writes reports of three findings and a verdict. A base model is trained from nothing on 20,000 reports
whose verdict is one of eight words for "passed" if two findings are good, else one of eight for "failed". The task has 2,000 rows for
training and 500 for validation, all new, of a stricter inspector with fewer words: three findings must be good, and there is one
word of each kind. The loss is that of the verdict alone.

A gain is the validation loss of the base less that at the end of a run. Exit status 1 means that the mean over three seeds of
`mezo` or of `es` gained less than half of AdamW's mean. `--sweep` tries a few learning rates with a seed of its own and prints
the losses instead. `--fitness` ranks the members of `es` by loss, accuracy and exact match in turn, one seed each, and prints which part of
the verdicts of the validation rows each gets wrong, to the letter, before and after. Runs whose record is in FOLDER are not repeated.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

SEEDS = (0, 1, 2)
THINGS = "anchor ballast beacon boom capstan cleat compass davit fender gangway halyard hatch hull keel lantern mast pump rigging rudder winch".split()
FINDINGS = {
    True: "holds fast|runs true|is freshly oiled|shows no rust|answers at once|was mended well|is dry and clean|passed its trial".split("|"),
    False: "is cracked|leaks badly|sticks halfway|is eaten by rust|answers late|was patched in haste|is wet and foul|broke in its trial".split("|"),
}
VERDICTS = {True: "sound good fit sturdy able ready whole safe".split(), False: "unfit poor weak broken rotten unsafe faulty lost".split()}
PLACES = "the north quay|the old dock|berth seven|the coal pier|the outer mole|the fish market".split("|")
BASE = dict(model="tiny", seq_len=256, global_batch=64, max_steps=1500, learning_rate=1e-3, seed=7)
TASK = dict(seq_len=256, global_batch=16)
STEPS = dict(adamw=400, mezo=4000, es=4000)
WAYS = dict(
    adamw=dict(learning_rate=3e-4),
    mezo=dict(optim="mezo", zo_directions=4, zo_eps=1e-3, learning_rate=3e-4, lr_scheduler_type="linear"),
    es=dict(optim="es", population=8, zo_eps=1e-2, learning_rate=3e-3, lr_scheduler_type="linear"),
)
SWEEP = dict(mezo=(3e-4, 1e-3, 3e-3), es=(1e-3, 3e-3, 1e-2))


def report(draw, wanted):
    """A report without its verdict, and whether it passed, which takes `wanted` good findings."""
    findings = [draw.random() < 0.5 for _ in range(3)]
    parts = [f"the {thing} {draw.choice(FINDINGS[good])}" for thing, good in zip(draw.sample(THINGS, 3), findings)]
    return f"At {draw.choice(PLACES)} {', '.join(parts)}. Verdict:", sum(findings) >= wanted


def reports(draw, count, wanted, verdicts):
    for _ in range(count):
        text, passed = report(draw, wanted)
        yield text, f" {draw.choice(verdicts[passed])}."


def write_data():
    draw = random.Random(1)
    (WORK / "reports.jsonl").write_text("".join(
        json.dumps(dict(text=text + verdict)) + "\n" for text, verdict in reports(draw, 20_000, 2, VERDICTS)))
    strict = {passed: words[:1] for passed, words in VERDICTS.items()}
    for name, count in [("train", 2000), ("validation", 500)]:
        (WORK / f"{name}.jsonl").write_text("".join(
            json.dumps(dict(prompt=text, completion=verdict)) + "\n" for text, verdict in reports(draw, count, 3, strict)))


def run(name, settings):
    """The records of one run."""
    kept = WORK / f"{name}.jsonl"
    if not kept.exists():
        flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        command = [ARGS.plimsoll, "train", *flags, "--device", ARGS.device, "--report-to", "none", "--json"]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        kept.write_text(done.stdout)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return [json.loads(line) for line in kept.read_text().splitlines()]


def evaluations(name, settings):
    steps = settings["max_steps"]
    common = dict(model=WORK / "base", data=WORK / "train.jsonl", eval_data=WORK / "validation.jsonl", logging_steps=max(steps // 20, 1),
                  eval_steps=max(steps // 4, 1), output_dir=WORK / f"out-{name}", save_steps=10**6)
    lines = run(f"run-{name}", TASK | common | settings)
    return {line["step"]: line["eval_loss"] for line in lines if line.get("event") == "evaluation"}


def tuned(way, seed, **changes):
    settings = dict(max_steps=STEPS[way], seed=seed) | WAYS[way] | changes
    tag = "".join(f"-{value:g}" for value in changes.values())
    return evaluations(f"{way}-{seed}{tag}", settings)


def passes(way):
    """Forward passes of a step over its batch."""
    return dict(adamw="1 and a backward pass", mezo=2 * WAYS["mezo"]["zo_directions"], es=WAYS["es"]["population"])[way]


def sweep():
    for way, rates in SWEEP.items():
        for rate in rates:
            print(way, f"{rate:g}", tuned(way, 9, learning_rate=rate), flush=True)


def wrong_answers(model, tag):
    """The part of the validation rows whose verdict a model does not write: the fitness of a population that is not moved."""
    settings = TASK | dict(model=model, data=WORK / "validation.jsonl", global_batch=500, optim="es", population=2, zo_eps=1e-9,
                           es_fitness="exact-match", learning_rate=1e-12, max_steps=1, output_dir=WORK / f"out-errors-{tag}", save_steps=10**6)
    return run(f"errors-{tag}", settings)[0]["loss"]


def fitness():
    print("| fitness | steps | wrong answers before | after | validation loss after |\n|---|--:|--:|--:|--:|")
    before = wrong_answers(WORK / "base", "base")
    for name in ("loss", "accuracy", "exact-match"):
        tag = f"es-0-{name}"
        losses = evaluations(tag, dict(max_steps=STEPS["es"], seed=0) | WAYS["es"] | dict(es_fitness=name))
        after = wrong_answers(WORK / f"out-{tag}", name)
        print(f"| `{name}` | {STEPS['es']} | {100 * before:.1f} % | {100 * after:.1f} % | {losses[STEPS['es']]:.4f} |", flush=True)


def main():
    if not (WORK / "train.jsonl").exists():
        write_data()
    run("pretraining", BASE | dict(data=WORK / "reports.jsonl", output_dir=WORK / "base", save_steps=10**6))
    # A step that moves nothing, for the loss of the base.
    (start,) = evaluations("start", dict(max_steps=1, learning_rate=1e-12, seed=0)).values()
    if ARGS.sweep:
        print("base", start)
        return sweep()
    if ARGS.fitness:
        return fitness()
    ends = {way: [tuned(way, seed)[STEPS[way]] for seed in SEEDS] for way in WAYS}
    gains = {way: start - fmean(losses) for way, losses in ends.items()}
    print(f"Validation loss of the base model: {start:.4f}\n")
    print("| way | steps | forward passes a step | validation loss, three seeds | mean gain | of AdamW's |\n|---|--:|--:|---|--:|--:|")
    for way, losses in ends.items():
        shown = ", ".join(f"{loss:.4f}" for loss in losses)
        share = gains[way] / gains["adamw"]
        print(f"| `{way}` | {STEPS[way]} | {passes(way)} | {shown} | {gains[way]:.4f} | {100 * share:.0f} % |")
    if min(gains.values()) < 0.5 * gains["adamw"]:
        raise SystemExit("a way without a backward pass gained less than half of what AdamW gained")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--fitness", action="store_true")
    ARGS = parser.parse_args()
    WORK = ARGS.folder.resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    main()
