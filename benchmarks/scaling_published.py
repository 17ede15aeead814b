"""Compares predicted scaling with published figures: tokens a second and GPU on many GPUs over those on fewer.

    python benchmarks/scaling_published.py target/release/plimsoll [stage]

Links come from data sheets and from what the authors say of their cluster, and were written down before the first comparison: NVLink of an A100 (600 GB/s both
ways together, so 300 each way) and an H100 (900, so 450), and the network card of each GPU. Latencies are 5 µs within a node and 10 µs between.
Micro-batch, length, precision and recompute are those of the authors, or the nearest that plimsoll has.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

A100_40 = ["--device", "cuda:a100-40", "--rank-link", "300GB/s,5us", "--node-link", "200Gb/s,10us", "--ranks-per-node", "8"]
A100_80 = ["--device", "cuda:a100-80", *A100_40[2:]]
H200 = ["--device", "cuda:h200", "--rank-link", "450GB/s,5us", "--node-link", "400Gb/s,10us", "--ranks-per-node", "8"]
H100 = ["--device", "cuda:h100", "--rank-link", "450GB/s,5us", "--node-link", "400Gb/s,10us", "--ranks-per-node", "8"]


def gpt(width: int, layers: int, heads: int) -> dict:
    """A GPT-2 of some size. MosaicML's MPT differs in ALiBi and absent biases alone."""
    return {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 2048,
            "vocab_size": 50368, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@dataclass
class Case:
    """Published tokens (or TFLOP) a second of each GPU by the number of GPUs; the first is the base."""

    name: str
    cluster: list[str]
    model: dict | str
    length: int
    rows: int
    recompute: str
    gradients: str
    published: dict[int, float]


TITAN = "torchtitan, Llama 3.1 8B, 2 × 8192"
FOUNDRY = "llm-foundry, MPT"
# TFLOP/s of each GPU, measured in pixels of the bars of figure 5b: 250 TFLOP/s are 203 pixels.
AZURE = {1: {128: 94.2, 256: 80.7, 512: 70.8, 1024: 48.6}, 2: {128: 127.5, 256: 116.4, 512: 107.8, 1024: 80.7},
         4: {128: 168.1, 256: 161.9, 512: 153.3, 1024: 133.6}, 8: {128: 180.4, 256: 176.7, 512: 175.5, 1024: 164.4},
         16: {128: 192.7, 256: 201.4, 512: 195.2, 1024: 190.3}}
CASES = [
    Case(f"{TITAN}, eager", H100, "llama-3.1-8b", 8192, 2, "full", "f32", {8: 5762, 128: 5605}),
    Case(f"{TITAN}, compiled", H100, "llama-3.1-8b", 8192, 2, "full", "f32", {8: 6667, 128: 6514}),
    Case(f"{TITAN}, compiled, float8 (planned in bf16)", H100, "llama-3.1-8b", 8192, 2, "full", "f32", {8: 8532, 128: 8380}),
    Case(f"{TITAN}, compiled, float8 (planned in bf16), Trainy", H200, "llama-3.1-8b", 8192, 2, "full", "f32", {32: 10938, 64: 10753}),
    Case(f"{FOUNDRY} 7b, 18 × 2048", A100_40, gpt(4096, 32, 32), 2048, 18, "full", "bf16", {32: 3725, 64: 3665, 128: 3623}),
    Case(f"{FOUNDRY} 13b, 16 × 2048", A100_40, gpt(5120, 40, 40), 2048, 16, "full", "bf16", {64: 1976, 128: 1972}),
    Case(f"{FOUNDRY} 3b, 6 × 2048", A100_40, gpt(2560, 32, 20), 2048, 6, "none", "bf16", {32: 9914, 64: 9736, 128: 9538}),
    Case(f"{FOUNDRY} 1b, 10 × 2048", A100_40, gpt(2048, 24, 16), 2048, 10, "none", "bf16", {32: 15555, 64: 19001, 128: 18647}),
    Case(f"{FOUNDRY} 760m, 12 × 2048", A100_40, gpt(1536, 24, 12), 2048, 12, "none", "bf16",
         {16: 29607, 32: 29648, 64: 29344, 128: 28940}),
    Case(f"{FOUNDRY} 350m, 18 × 2048", A100_40, gpt(1024, 24, 16), 2048, 18, "none", "bf16",
         {16: 55413, 32: 53811, 64: 52689, 128: 51934}),
    Case(f"{FOUNDRY} 125m, 26 × 2048", A100_40, gpt(768, 12, 12), 2048, 26, "none", "bf16",
         {16: 130535, 32: 127122, 64: 125234, 128: 123936}),
    *(Case(f"DeepSpeed, GPT 175B, {rows} × 1024, TFLOP/s", A100_80, gpt(12288, 96, 96), 1024, rows, "full", "bf16", published)
      for rows, published in AZURE.items()),
]


def planned(binary: str, case: Case, stage: str, folder: Path) -> dict[int, dict]:
    """The plan's table by the number of ranks."""
    model = ["--model", case.model]
    if isinstance(case.model, dict):
        config = folder / "config.json"
        config.write_text(json.dumps(case.model))
        model = ["--config", str(config)]
    most = max(case.published)
    command = [binary, "plan", *model, *case.cluster, "--bf16", "true", "--gradients-dtype", case.gradients, "--seq-len", str(case.length),
               "--micro-batch", str(case.rows), "--gradient-accumulation-steps", "1", "--recompute", case.recompute, "--zero-stage", stage,
               "--ranks", str(most), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(case.name, "is not planned:", done.stderr.strip().splitlines()[-1])
        return {}
    return {row["ranks"]: row for row in json.loads(done.stdout)["scaling"] if row["fits"]}


def rows_of(case: Case, planned: dict[int, dict]) -> list[str]:
    """A row of the record for every number of GPUs but the base."""
    base, rows = min(case.published), []
    for ranks, rate in case.published.items():
        if ranks == base or base not in planned or ranks not in planned:
            continue
        own = case.length * case.rows / planned[ranks]["step_seconds"]
        predicted = 100 * planned[base]["step_seconds"] / planned[ranks]["step_seconds"]
        published = 100 * rate / case.published[base]
        rows.append(f"| {case.name} | {case.recompute} | {case.cluster[5].split(',')[0]} | {base} → {ranks} | {rate:,} | {own:,.0f} | "
                    f"{published:.1f} % | {predicted:.1f} % | {predicted - published:+.1f} |")
    return rows


def main() -> None:
    binary, stage = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "3"
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for row in rows_of(case, planned(binary, case, stage, Path(folder))):
                print(row, flush=True)


if __name__ == "__main__":
    main()
