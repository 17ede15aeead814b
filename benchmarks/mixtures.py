"""Times a step of `s-moe` beside the dense `s` and beside transformers' implementations of experts, in turns.

    python benchmarks/mixtures.py target/release/plimsoll [rounds [WAY…]]        WAY: eager, grouped_mm, batched_mm; all of them unless named

`s` has the products that are active in `s-moe`: 8 experts of half its hidden width, two for each token. All take 4 sequences of 256
tokens, AdamW, f32, two threads and a limit on the norm. Each is run `rounds` times in a process of its own, one after the other, so
that a busy machine slows all alike. Each run is a line on standard error as it ends. Printed is the table of the record: median and
least over all steps, times relative to `s-moe`, and the most memory that a process held.

`batched_mm` copies the weights of its expert for each of the 2,048 copies of tokens, and keeps them for the backward pass: 2 GiB in
each of 8 layers. It runs with all sequences at once where that fits, and with one at a time.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

ROWS, LENGTH, STEPS, SKIPPED = 4, 256, 8, 2
# Implementation of transformers, and sequences that it takes at once.
WAYS = [("eager", ROWS), ("grouped_mm", ROWS), ("batched_mm", ROWS), ("batched_mm", 1)]


def plimsoll(binary: str, model: str) -> dict[str, object]:
    command = [binary, "train", "--model", model, "--global-batch", str(ROWS), "--micro-batch", str(ROWS),
               "--seq-len", str(LENGTH), "--memory", "700MiB", "--costs", "modelled", "--threads", "2",
               "--max-steps", str(STEPS), "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    steps = [record for record in records if "tokens_per_second" in record and "step" in record and "event" not in record]
    peak = max((record.get("process_peak_bytes", 0) for record in records), default=0)
    return {"seconds": [ROWS * LENGTH / step["tokens_per_second"] for step in steps[SKIPPED:]], "peak": peak}


def pytorch(implementation: str, rows: int) -> dict[str, object]:
    """The same in a process of its own, which may hold nine tenths of the memory that is free."""
    command = [sys.executable, __file__, "--way", implementation, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return {"seconds": [], "why": "not enough memory" if "allocate" in why or why == "killed" else why[:80]}
    return json.loads(done.stdout)


def way(implementation: str, rows: int) -> dict[str, object]:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=8192, hidden_size=256, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        head_dim=32, intermediate_size=344, moe_intermediate_size=344, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, max_position_embeddings=2048, router_aux_loss_coef=0.01, output_router_logits=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )).train()
    model.set_experts_implementation(implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(0, 8192, (ROWS, LENGTH))
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for part in ids.split(rows):
            (model(input_ids=part, labels=part).loss * (rows / ROWS)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds[SKIPPED:], "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def free_bytes() -> int:
    with open("/proc/meminfo") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def limited(implementation: str, rows: int) -> None:
    import torch  # noqa: F401  its libraries are no memory of the step

    with open("/proc/self/statm") as text:
        mapped = int(text.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = mapped + free_bytes() * 9 // 10
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print(json.dumps(way(implementation, rows)))


def table(results: dict[str, list[dict[str, object]]]) -> str:
    lines = ["| | median, s | least, s | median over `s-moe` | steps | process peak |", "|---|--:|--:|--:|--:|--:|"]
    of_moe = statistics.median(second for run in results["plimsoll `s-moe`"] for second in run["seconds"])
    for name, runs in results.items():
        seconds = [second for run in runs for second in run["seconds"]]
        if not seconds:
            lines.append(f"| {name} | {runs[0]['why']} | | | 0 | |")
            continue
        median, peak = statistics.median(seconds), max(run.get("peak", 0) for run in runs)
        held = f"{peak / 2**20:.0f} MiB" if peak else "–"
        lines.append(f"| {name} | {median:.3f} | {min(seconds):.3f} | {median / of_moe:.2f} | {len(seconds)} | {held} |")
    return "\n".join(lines)


def versions() -> str:
    import torch
    import transformers

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return (f"commit {commit or 'unknown'} · {platform.machine()}, {os.cpu_count()} cores · Python {platform.python_version()} · "
            f"torch {torch.__version__} · transformers {transformers.__version__}")


def main() -> None:
    if sys.argv[1] == "--way":
        return limited(sys.argv[2], int(sys.argv[3]))
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ways = {f"plimsoll `{model}`": lambda model=model: plimsoll(binary, model) for model in ("s", "s-moe")}
    for implementation, rows in WAYS:
        if sys.argv[3:] and implementation not in sys.argv[3:]:
            continue
        name = f"transformers `{implementation}`" + ("" if rows == ROWS else f", {rows} sequence at a time")
        ways[name] = lambda implementation=implementation, rows=rows: pytorch(implementation, rows)
    before, results = os.getloadavg(), {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            results[name].append(run())
            print(name, results[name][-1], file=sys.stderr, flush=True)
    print(f"{versions()} · {rounds} rounds in turns · load {before[0]:.1f} before\n\n{table(results)}")


if __name__ == "__main__":
    main()
