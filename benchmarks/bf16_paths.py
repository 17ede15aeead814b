#!/usr/bin/env python3
"""Measures steps in f32 and with --bf16 on every instruction path, and PyTorch's own, in turn.

    python3 benchmarks/bf16_paths.py target/release/plimsoll m 2 [ROUNDS] > record.txt

The second argument is the preset, the third the number of threads. A measurement is a process of its own that takes a few
steps; the first is left out. Rounds are interleaved, and of each configuration the least of all steps counts, by the clock and by
the processor's own seconds (all threads together): other programs on the machine only make steps longer, those on the clock most.
Both programs have random weights of the preset's shape, random data, AdamW and clipping at 1. Needs torch and transformers.
"""

import json
import os
import subprocess
import sys
import time

#              layers  C   H  K   F     V
SHAPES = {"s": (8, 256, 8, 4, 688, 8192), "m": (12, 512, 8, 4, 1376, 16384)}
LENGTHS = {"s": 256, "m": 512}
STEPS = {"s": 6, "m": 3}
ROWS = 4
PATHS = ["avx512-bf16", "avx512", "avx2"]


def processor_seconds(pid):
    """Of all threads of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plimsoll(binary, size, threads, path, bf16):
    command = [binary, "train", "--model", size, "--global-batch", str(ROWS), "--micro-batch", str(ROWS), "--recompute",
               "none", "--memory", "4GiB", "--threads", str(threads), "--instructions", path, "--max-steps",
               str(STEPS[size]), "--costs", "modelled", "--json", *(["--bf16"] if bf16 else [])]
    steps, before = [], None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            record = json.loads(line)
            if "loss" not in record:
                continue
            now = processor_seconds(process.pid)
            if before is not None:
                steps.append((ROWS * LENGTHS[size] / record["tokens_per_second"], now - before))
            before = now
    if process.returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
    return steps


def peer(size, threads, kind):
    done = subprocess.run([sys.executable, __file__, "torch", size, str(threads), kind], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def torch_steps(size, threads, kind):
    """Runs in a process of its own. kind: f32, autocast (f32 weights, bf16 products) or pure (everything bf16)."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layers, width, heads, key_heads, ffn, vocab = SHAPES[size]
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, use_cache=False,
        num_key_value_heads=key_heads, intermediate_size=ffn, tie_word_embeddings=False, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).train()
    model = model.to(torch.bfloat16) if kind == "pure" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(0, vocab, (ROWS, LENGTHS[size]))
    seconds = []
    for _ in range(STEPS[size]):
        begin = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    print(json.dumps(seconds[1:]))


def main():
    binary, size, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    ways = {}
    for path in PATHS:
        for bf16 in [False, True]:
            name = f"{path}, {'bf16' if bf16 else 'f32'}"
            ways[name] = lambda path=path, bf16=bf16: plimsoll(binary, size, threads, path, bf16)
    for kind in ["f32", "autocast", "pure"]:
        ways[f"torch, {kind}"] = lambda kind=kind: peer(size, threads, kind)
    best = {name: (float("inf"), float("inf")) for name in ways}
    for turn in range(rounds):
        for name, run in ways.items():
            steps = run()
            best[name] = tuple(min(kind) for kind in zip(best[name], *steps))
            shown = ", ".join(f"{clock:.2f} ({cpu:.2f})" for clock, cpu in steps)
            print(f"{turn} {name:<18} {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\npreset {size}, {threads} threads: least seconds of a step in {rounds} rounds, on the clock and of the processor")
    for name, (clock, cpu) in best.items():
        print(f"{name:<18} {clock:8.3f} {cpu:8.2f}  {ROWS * LENGTHS[size] / clock:6.0f} tokens/s")


if __name__ == "__main__":
    if sys.argv[1] == "torch":
        torch_steps(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
