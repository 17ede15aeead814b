"""Times steps of transformers' OLMoE (1B active, 7B in all, random weights) on one GPU: the peer of a mixture trained by plimsoll.

    python benchmarks/mixtures_gpu.py IMPLEMENTATION [MICRO ACCUMULATION LENGTH [LAYERS]]

IMPLEMENTATION is `grouped_mm`, `batched_mm` or `eager`, with `+ckpt` behind it for recomputed layers. Weights, gradients and moments
are bf16. One JSON line: tokens a second, and the most memory PyTorch held.
"""

import json
import sys
import time

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

WARM, STEPS = 2, 4


def model(layers: int, length: int, implementation: str) -> OlmoeForCausalLM:
    config = OlmoeConfig(
        vocab_size=50_304, hidden_size=2048, intermediate_size=1024, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=16, num_experts=64, num_experts_per_tok=8, norm_topk_prob=False, router_aux_loss_coef=0.01,
        output_router_logits=True, max_position_embeddings=length, use_cache=False, attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        made = OlmoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    made.set_experts_implementation(implementation)
    return made.train()


def main() -> None:
    implementation, _, recompute = sys.argv[1].partition("+")
    micro, accumulation, length = (int(number) for number in (sys.argv[2:5] or (8, 4, 2048)))
    layers = int(sys.argv[5]) if len(sys.argv) > 5 else 16
    torch.manual_seed(0)
    made = model(layers, length, implementation)
    if recompute:
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, 50_304, (accumulation, micro, length), device="cuda")
    seconds = []
    for _ in range(WARM + STEPS):
        begin = time.perf_counter()
        for rows in ids:
            (made(input_ids=rows, labels=rows).loss / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    best = sorted(seconds[WARM:])[STEPS // 2]
    print(json.dumps({
        "implementation": sys.argv[1], "layers": layers, "rows": [micro, accumulation, length],
        "tokens_per_second": round(ids.numel() / best), "peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2),
    }))


if __name__ == "__main__":
    main()
