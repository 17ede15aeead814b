"""Times a step of `s` on two ranks of one thread beside one rank of two threads, in turns.

    python benchmarks/rank_overhead.py target/release/plimsoll [rounds]

All take the same 4 sequences of 256 tokens a step, AdamW, f32, a limit on the norm, and nothing recomputed; two ranks have 2 sequences each. A round
is one run of each way, in an order that turns round, so that a busy machine slows all alike. The ratio of a round compares the medians of its steps;
the median over the rounds is the result. The load of the machine before each round is printed beside it: with more than two
threads that want to run, the ratio says more about the others than about ranks.
"""

import json
import os
import statistics
import subprocess
import sys

LENGTH, STEPS, SKIPPED = 256, 10, 2
ALONE = ("--ranks", "1", "--micro-batch", "4")
WAYS = {
    "one rank": ALONE,
    "two ranks, stage 0": ("--ranks", "2", "--micro-batch", "2", "--zero-stage", "0"),
    "two ranks, stage 1": ("--ranks", "2", "--micro-batch", "2", "--zero-stage", "1"),
    "two ranks, stage 2": ("--ranks", "2", "--micro-batch", "2", "--zero-stage", "2"),
    "two ranks, stage 3": ("--ranks", "2", "--micro-batch", "2", "--zero-stage", "3"),
}


def seconds(binary: str, way: tuple[str, ...]) -> float:
    """The median time of a step."""
    command = [binary, "train", "--model", "s", "--seq-len", str(LENGTH), "--global-batch", "4", "--threads", "2",
               "--recompute", "none", "--memory", "700MiB", "--costs", "modelled", "--max-steps", str(STEPS), "--json", *way]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines if line.startswith('{"step"')]
    return statistics.median(record["tokens"] / record["tokens_per_second"] for record in records[SKIPPED:])


def main() -> None:
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    names, ratios = list(WAYS), {name: [] for name in WAYS}
    for number in range(rounds):
        load, turned = os.getloadavg()[0], names[number % len(names):] + names[:number % len(names)]
        taken = {name: seconds(binary, WAYS[name]) for name in turned}
        for name in names:
            ratios[name].append(taken[name] / taken["one rank"])
        print(f"round {number + 1}, load {load:.2f}: "
              + ", ".join(f"{name} {1000 * taken[name]:.0f} ms" for name in names), flush=True)
    for name in names[1:]:
        print(f"{name}: {statistics.median(ratios[name]):.3f} x ({min(ratios[name]):.3f} to {max(ratios[name]):.3f})")


if __name__ == "__main__":
    main()
