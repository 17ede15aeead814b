#!/usr/bin/env python3
"""Measures LoRA of rank 8 on all linear layers, plimsoll and PEFT in turn: tokens/s and the most memory of the process.

    python3 benchmarks/lora_peft.py target/release/plimsoll m > record.md

Both have random weights of the preset's shape, random data, AdamW and clipping at 1, f32, all cores, and leave the first
step out of the median. Each measurement is a process of its own. Needs torch, transformers and peft.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

#              layers  C   H  K   F     V
SHAPES = {"s": (8, 256, 8, 4, 688, 8192), "m": (12, 512, 8, 4, 1376, 16384)}
LENGTHS = {"s": 256, "m": 512}
ROWS, RANK, STEPS, SKIPPED, ROUNDS = 4, 8, 4, 1, 2
MIB = 1 << 20


def plimsoll(binary, size, *flags):
    command = [binary, "train", "--model", size, "--lora-r", str(RANK), "--global-batch", str(ROWS), "--micro-batch",
               str(ROWS), *flags, "--max-steps", str(STEPS + SKIPPED), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "loss" in line]
    end = lines[-1]
    assert end["planned_peak_bytes"] == end["measured_peak_bytes"]
    shown = " ".join(["plimsoll", *command[1:]])
    return dict(tokens_per_second=statistics.median(rates[SKIPPED:]), peak=end["process_peak_bytes"] / MIB,
                imports=0.0, raw=f"$ {shown}\n{done.stdout.splitlines()[-1]}")


def peer(size, checkpointing):
    command = [sys.executable, __file__, "peft", size, *(["checkpointing"] if checkpointing else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) | dict(raw=done.stdout.splitlines()[-1])


def peft_steps(size, checkpointing):
    """Runs in a process of its own, so that its peak is its own."""
    import peft
    import torch
    import transformers

    imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    layers, width, heads, key_heads, ffn, vocab = SHAPES[size]
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, intermediate_size=ffn, tie_word_embeddings=False, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config)
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"))
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(STEPS + SKIPPED):
        tokens = torch.randint(vocab, (ROWS, LENGTHS[size]))
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    rate = ROWS * LENGTHS[size] / statistics.median(seconds[SKIPPED:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    versions = " · ".join(f"{module.__name__} {module.__version__}" for module in (torch, transformers, peft))
    print(json.dumps(dict(
        case="checkpointing" if checkpointing else "plain", tokens_per_second=round(rate, 1), peak=round(peak, 1),
        imports=round(imports, 1), trained=sum(weight.numel() for weight in trained), threads=torch.get_num_threads(),
        versions=versions)))


def main(binary, size):
    cases = {
        "plimsoll, everything kept": lambda: plimsoll(binary, size, "--recompute", "none"),
        "PEFT": lambda: peer(size, False),
        "plimsoll, `--recompute full`": lambda: plimsoll(binary, size, "--recompute", "full"),
        "PEFT, gradient checkpointing": lambda: peer(size, True),
    }
    found = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, measure in cases.items():
            found[name].append(measure())
    print("| | tokens/s, rounds in turn | peak of the process | of which imports |\n|---|--:|--:|--:|")
    for name, rounds in found.items():
        rates = " · ".join(f"{one['tokens_per_second']:.0f}" for one in rounds)
        peak, imports = max(one["peak"] for one in rounds), rounds[0]["imports"]
        print(f"| {name} | {rates} | {peak:.1f} MiB | {f'{imports:.1f} MiB' if imports else '–'} |")
    best = {name: max(one["tokens_per_second"] for one in rounds) for name, rounds in found.items()}
    peak = {name: max(one["peak"] for one in rounds) for name, rounds in found.items()}
    above = {name: peak[name] - found[name][0]["imports"] for name in cases}
    names = list(cases)
    for ours, theirs in (names[:2], names[2:]):
        print(f"\n{ours}, against {theirs}, best round against best round: {best[ours] / best[theirs]:.2f} × the tokens/s, "
              f"{peak[ours] / peak[theirs]:.2f} × the memory ({peak[ours] / above[theirs]:.2f} × what PEFT takes above its imports).")
    print("\n```console")
    for rounds in found.values():
        print(rounds[0]["raw"])
    print("```")


if __name__ == "__main__":
    if sys.argv[1] == "peft":
        peft_steps(sys.argv[2], len(sys.argv) > 3)
    else:
        main(sys.argv[1], sys.argv[2])
