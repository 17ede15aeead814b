"""Times a step of `s-moe` beside the dense `s` and beside transformers' implementations of experts, in turns.

    python benchmarks/mixtures.py target/release/plimsoll [rounds]

`s` has the products that are active in `s-moe`: 8 experts of half its hidden width, two for each token. All take 4 sequences of 256
tokens, AdamW, f32, two threads and a limit on the norm. Each is run `rounds` times, one after the other, so that a busy
machine slows all alike; the median over all steps and the least are printed.
"""

import json
import subprocess
import sys
import time

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

ROWS, LENGTH, STEPS, SKIPPED = 4, 256, 8, 2


def plimsoll(binary: str, model: str) -> list[float]:
    command = [binary, "train", "--model", model, "--global-batch", str(ROWS), "--micro-batch", str(ROWS),
               "--seq-len", str(LENGTH), "--memory", "700MiB", "--costs", "modelled", "--threads", "2",
               "--max-steps", str(STEPS), "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{\"step\"")]
    return [ROWS * LENGTH / record["tokens_per_second"] for record in records[SKIPPED:]]


def config() -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        vocab_size=8192, hidden_size=256, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        head_dim=32, intermediate_size=344, moe_intermediate_size=344, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, max_position_embeddings=2048, router_aux_loss_coef=0.01, output_router_logits=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )


def pytorch(implementation: str) -> list[float]:
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config()).train()
    model.set_experts_implementation(implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(0, 8192, (ROWS, LENGTH))
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds[SKIPPED:]


def main() -> None:
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(2)
    ways = {
        "plimsoll s": lambda: plimsoll(binary, "s"),
        "plimsoll s-moe": lambda: plimsoll(binary, "s-moe"),
        "transformers eager": lambda: pytorch("eager"),
        "transformers grouped_mm": lambda: pytorch("grouped_mm"),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name] += way()
    for name, seconds in times.items():
        ordered = sorted(seconds)
        print(f"{name:<24} median {ordered[len(ordered) // 2]:.3f} s   least {ordered[0]:.3f} s   {len(ordered)} steps")


if __name__ == "__main__":
    main()
