#!/usr/bin/env python3
"""Finds the smallest random subspace that reaches 90 % of full training's gain on the task of `zeroth_order_task.py`.

    python3 benchmarks/intrinsic_dimension.py PLIMSOLL FOLDER [--device cuda] [--steps 400] [--base-steps 1500] [--target 0.9] [--seed 0]

The base model and the rows are those of that script, whose FOLDER serves this one too. The curve is printed by
`plimsoll intrinsic` and drawn in FOLDER/intrinsic-SEED/intrinsic.html; runs that are over are not repeated.
"""

import argparse
import subprocess
from pathlib import Path

import zeroth_order_task as task


def main():
    if not (task.WORK / "train.jsonl").exists():
        task.write_data()
    base = task.BASE | dict(data=task.WORK / "reports.jsonl", output_dir=task.WORK / "base", save_steps=10**6)
    task.run("pretraining", base | dict(max_steps=ARGS.base_steps))
    settings = task.TASK | dict(
        model=task.WORK / "base",
        data=task.WORK / "train.jsonl",
        eval_data=task.WORK / "validation.jsonl",
        output_dir=task.WORK / f"intrinsic-{ARGS.seed}",
        max_steps=ARGS.steps,
        learning_rate=3e-4,
        subspace_learning_rate=3e-3,
        lr_scheduler_type="linear",
        target=ARGS.target,
        seed=ARGS.seed,
        save_steps=10**6,
        report_to="none",
        device=ARGS.device,
    )
    flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    subprocess.run([ARGS.plimsoll, "intrinsic", *flags], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--base-steps", type=int, default=1500)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    ARGS = task.ARGS = parser.parse_args()
    task.WORK = ARGS.folder.resolve()
    task.WORK.mkdir(parents=True, exist_ok=True)
    main()
