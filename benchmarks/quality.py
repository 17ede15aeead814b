#!/usr/bin/env python3
"""Trains the same model on the same rows with PyTorch and with plimsoll, and compares validation losses.

    cargo build --release --example rows -p plimsoll
    python3 benchmarks/quality.py target/release/plimsoll target/release/examples/rows FOLDER > table.md

The text is the repository's own: Rust sources below `crates/`, of which every sixteenth file is only validated on. The
example `rows` writes down initial weights and rows; transformers' `LlamaForCausalLM` and PEFT train from them in f32 with
`torch.optim.AdamW`, `clip_grad_norm_` and transformers' own learning rates. Documents of one row are kept apart by a
mask of four axes. LoRA starts from what the full run wrote and learns the repository's Markdown.

Losses of every line stay in FOLDER; a line that is there is not run again. The curves go to `quality_20261115.svg`
beside this script. Needs torch, transformers and peft.
"""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import peft
import torch
import transformers

from own_text import ROOT, collect, settings

STEPS, LORA_STEPS, EVERY = 1000, 300, 100
ALLOWED, ALLOWED_8BIT = 0.2, 1.0  # per cent, of PyTorch's last validation loss
# One thread each, because several lines run at once; the number of threads changes no bit of plimsoll's.
COMMON = dict(threads=1, seed=0, seq_len=128, global_batch=8, learning_rate=1e-3, weight_decay=0.1,
              max_eval_samples=256)
MODEL = COMMON | dict(model="tiny", max_steps=STEPS, warmup_steps=100, eval_steps=EVERY)


def plimsoll(name, file, *flags):
    """Validation losses by step, and the command."""
    output = [] if "--output-dir" in flags else ["--report-to", "none"]
    command = [BINARY, "train", "--settings", str(file), *flags, *output, "--json"]
    shown = " ".join(["plimsoll", *command[1:]]).replace(f"{WORK}/", "")
    kept = WORK / f"{name}.jsonl"
    if not kept.exists():
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{shown}\n{done.stderr}")
        kept.write_text(done.stdout)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    losses = {line["step"]: line["eval_loss"] for line in lines if line.get("event") == "evaluation"}
    end = next(line for line in lines if line.get("event") == "end")
    return losses, f"{shown}   # process peak {end['process_peak_bytes'] / 2**20:.1f} MiB"


def least_budget(file):
    """The least whole MiB a run can have."""
    def fits(mib):
        command = [BINARY, "plan", "--settings", str(file), "--memory", f"{mib}MiB", "--json"]
        return subprocess.run(command, capture_output=True).returncode == 0
    return next(mib for mib in range(1, 1 << 20) if fits(mib))


class Rows:
    """Rows as the example wrote them: tokens, targets and document starts."""

    def __init__(self, folder):
        shape = json.loads((folder / "rows.json").read_text())
        read = lambda name: torch.from_numpy(
            numpy.fromfile(folder / name, "<i4").reshape(-1, 3, shape["seq_len"]).astype("int64"))
        self.steps = torch.split(read("train.i32"), shape["rows"])
        self.validation = read("validation.i32")


def summed_loss(model, rows):
    tokens, targets, starts = rows.unbind(1)  # (B, T)
    place = torch.arange(tokens.shape[1])
    # Position t reads position s of its own document and not what lies ahead.
    seen = (place[None, None, :] <= place[None, :, None]) & (place[None, None, :] >= starts[:, :, None])  # (B, T, T)
    logits = model(input_ids=tokens, attention_mask=seen[:, None], position_ids=place - starts).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def counted(rows):
    return int((rows[:, 1] != -100).sum())


@torch.no_grad()
def validate(model, rows):
    return sum(summed_loss(model, part).item() for part in rows.split(32)) / counted(rows)


def pytorch(name, model, rows, steps, every):
    kept = WORK / f"{name}.json"
    if kept.exists():
        return {int(step): loss for step, loss in json.loads(kept.read_text()).items()}
    started = time.monotonic()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [dict(params=[weight for weight in trained if (weight.ndim >= 2) == decays], weight_decay=rate)
              for decays, rate in ((True, COMMON["weight_decay"]), (False, 0.0))]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=COMMON["learning_rate"], betas=(0.9, 0.95), eps=1e-8)
    schedule = transformers.get_scheduler("cosine", optimizer, num_warmup_steps=steps // 10, num_training_steps=steps)
    losses = {}
    for step, batch in enumerate(rows.steps, start=1):
        optimizer.zero_grad()
        (summed_loss(model, batch) / counted(batch)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % every == 0:
            losses[step] = validate(model, rows.validation)
            print(f"{name} {step}: {losses[step]:.5f}  {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    kept.write_text(json.dumps(losses))
    return losses


def written(name, file):
    folder = WORK / name
    if not (folder / "rows.json").exists():
        subprocess.run([ROWS, file, folder], check=True)
    return folder, Rows(folder)


def full(lines):
    file = settings(WORK / "text.toml", MODEL | collect(WORK / "text", "**/*.rs", [ROOT / "crates"], 16))
    folder, rows = written("rows", file)
    tight = least_budget(file)
    cases = [
        ("everything kept", ["--micro-batch", "8", "--recompute", "none", "--output-dir", str(WORK / "trained")]),
        ("accumulation, 4 × 2", ["--micro-batch", "2", "--recompute", "none"]),
        ("recompute full", ["--micro-batch", "8", "--recompute", "full"]),
        (f"the least budget, {tight} MiB", ["--memory", f"{tight}MiB"]),
        ("8-bit AdamW", ["--micro-batch", "8", "--recompute", "none", "--optim", "adamw_8bit"]),
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        key = lambda name: re.sub(r"[^a-z0-9]+", "-", name.lower())
        runs = [(name, pool.submit(plimsoll, key(name), file, *flags)) for name, flags in cases]
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "initial", dtype=torch.float32)
        lines.append(("PyTorch", pytorch("pytorch", model, rows, STEPS, EVERY), None))
        lines.extend((name, *run.result()) for name, run in runs)


def lora(lines):
    every = LORA_STEPS // 10
    text = collect(WORK / "prose", "**/*.md", [ROOT], 6)
    values = COMMON | text | dict(model=str(WORK / "trained"), max_steps=LORA_STEPS, warmup_steps=LORA_STEPS // 10,
                                  eval_steps=every, lora_r=8, lora_alpha=16.0, data_cache=str(WORK / "cache"))
    file = settings(WORK / "prose.toml", values)
    folder, rows = written("rows-lora", file)
    base = transformers.LlamaForCausalLM.from_pretrained(WORK / "trained", dtype=torch.float32)
    before = validate(base, rows.validation)
    model = peft.PeftModel.from_pretrained(base, folder / "initial", is_trainable=True)
    lines.append(("LoRA, PEFT", pytorch("peft", model, rows, LORA_STEPS, every), None))
    lines.append(("LoRA", *plimsoll("lora", file, "--micro-batch", "8", "--recompute", "none")))
    return before


def table(lines):
    """One column per evaluation; the first line is what the others are held against."""
    reference = lines[0][1]
    steps = sorted(reference)
    shown = [step for step in steps if steps.index(step) in (0, 1, 3, 5, 7, 9)]
    print("| | " + " | ".join(f"step {step}" for step in shown) + " | last, against the first line | largest on the way |")
    print("|---|" + "--:|" * (len(shown) + 2))
    apart = {}
    for name, losses, _ in lines:
        ratio = {step: 100 * (losses[step] / reference[step] - 1) for step in steps}
        apart[name] = ratio[steps[-1]]
        largest = max(ratio.values(), key=abs)
        print(f"| {name} | " + " | ".join(f"{losses[step]:.5f}" for step in shown)
              + f" | {ratio[steps[-1]]:+.5f} % | {largest:+.5f} % |")
    return apart


def svg(path, panels):
    """Two panels of curves, validation loss over steps."""
    colours = ["#222", "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e"]
    width, height, left, top = 460, 320, 50, 40
    parts = []
    for panel, (title, lines) in enumerate(panels):
        x0 = panel * (width + 40) + left
        every = [loss for _, losses, _ in lines for loss in losses.values()]
        low, high, last = min(every), max(every), max(lines[0][1])
        x = lambda step: x0 + (width - left) * step / last
        y = lambda loss: top + (height - 2 * top) * (high - loss) / (high - low)
        parts.append(f'<text x="{x0}" y="{top - 18}" font-size="14">{title}</text>')
        parts.append(f'<path d="M{x0} {top}V{height - top}H{x(last):.0f}" fill="none" stroke="#888"/>')
        for value in (low, (low + high) / 2, high):
            parts.append(f'<text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
        for step in (0, last // 2, last):
            parts.append(f'<text x="{x(step):.1f}" y="{height - top + 16}" text-anchor="middle">{step}</text>')
        for number, (name, losses, _) in enumerate(lines):
            points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in sorted(losses.items()))
            # The first line is broad and pale: where curves lie on each other it shines through from below.
            broad, thin = 'stroke-width="7" stroke-opacity="0.25"', f'stroke-width="1.5" stroke-dasharray="{4 + 2 * number} {2 * number}"'
            style = thin if number else broad
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[number]}" {style}/>')
            at = top + 14 + 16 * number
            parts.append(f'<line x1="{x(last) - 190:.0f}" x2="{x(last) - 165:.0f}" y1="{at}" y2="{at}" stroke="{colours[number]}" {style}/>')
            parts.append(f'<text x="{x(last) - 160:.0f}" y="{at + 4}">{name}</text>')
    whole = len(panels) * (width + 40) + left
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" font-family="sans-serif" '
                    f'font-size="11"><rect width="{whole}" height="{height}" fill="white"/>' + "\n".join(parts) + "</svg>\n")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    lines, adapted = [], []
    full(lines)
    apart = table(lines)
    before = lora(adapted)
    print(f"\nLoRA; before its first step the loss is {before:.5f}:\n")
    apart |= table(adapted)
    svg(Path(__file__).with_name("quality_20261115.svg"),
        [("Validation loss, full training", lines), ("Validation loss, LoRA", adapted)])
    print("\n```console")
    for _, _, command in lines + adapted:
        if command:
            print(f"$ {command}")
    print("```")
    versions = " · ".join(f"{module.__name__} {module.__version__}" for module in (torch, transformers, peft))
    print(f"\nPython {sys.version.split()[0]} · {versions}")
    allowed = lambda name: ALLOWED_8BIT if name == "8-bit AdamW" else ALLOWED
    missed = [name for name, per_cent in apart.items() if abs(per_cent) > allowed(name)]
    if missed:
        raise SystemExit(f"too far apart: {', '.join(missed)}")


if __name__ == "__main__":
    BINARY, ROWS, WORK = sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve()
    WORK.mkdir(parents=True, exist_ok=True)
    main()
