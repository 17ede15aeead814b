#!/usr/bin/env python3
"""Measures steps in f32 and with --bf16 on every instruction path, and PyTorch's own, in turn.

    python3 benchmarks/bf16_paths.py target/release/plimsoll m 2 [ROUNDS] > record.txt

The second argument is the preset, the third the number of threads. A measurement is a process of its own that takes a few
steps; the first is left out. Rounds are interleaved, and of each configuration the fastest step of all rounds counts: other
programs on the machine only make steps longer. The processor's own seconds of that process stand beside it. Both programs
have random weights of the preset's shape, random data, AdamW and clipping at 1. Needs torch and transformers.
"""

import json
import os
import subprocess
import sys
import time

#              layers  C   H  K   F     V
SHAPES = {"s": (8, 256, 8, 4, 688, 8192), "m": (12, 512, 8, 4, 1376, 16384)}
LENGTHS = {"s": 256, "m": 512}
STEPS = {"s": 6, "m": 4}
ROWS = 4
PATHS = ["avx2", "avx512", "avx512-bf16"]


def plimsoll(binary, size, threads, path, bf16):
    command = [binary, "train", "--model", size, "--global-batch", str(ROWS), "--micro-batch", str(ROWS), "--recompute",
               "none", "--memory", "4GiB", "--threads", str(threads), "--instructions", path, "--max-steps",
               str(STEPS[size]), "--costs", "modelled", "--json", *(["--bf16"] if bf16 else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    tokens = ROWS * LENGTHS[size]
    return [tokens / line["tokens_per_second"] for line in lines if "loss" in line][1:]


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
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
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
    best = {name: float("inf") for name in ways}
    for turn in range(rounds):
        for name, run in ways.items():
            before = os.times()
            steps = run()
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            best[name] = min(best[name], *steps)
            shown = " ".join(f"{step:.3f}" for step in steps)
            load = os.getloadavg()[0]
            print(f"{turn} {name:<18} steps {shown} s, {cpu:.1f} s of the processor, load {load:.1f}", flush=True)
    print(f"\npreset {size}, {threads} threads: the fastest step of {rounds} rounds")
    for name, step in best.items():
        print(f"{name:<18} {step:.3f} s  {ROWS * LENGTHS[size] / step:6.0f} tokens/s")


if __name__ == "__main__":
    if sys.argv[1] == "torch":
        torch_steps(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
