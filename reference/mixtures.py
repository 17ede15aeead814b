"""Writes testdata/hf/<name>/: tiny mixtures of experts as the hub stores them, and what transformers computes with them.

    python reference/mixtures.py [folder]        (folder: testdata/hf beside this one)

Folders and golden files are as in hf_models.py, and beside what stands there:

    aux_loss          the balance of experts that transformers adds, without its weight
    aux_losses        (10) the same before each of ten steps
    padded.…          three rows end in padding: `present` is the attention mask, and transformers leaves padding out of the
                      balance. `targets`, `loss`, `aux_loss`, and `grad.` of the routers
    margin            the least distance between the last expert chosen and the first that was not, over all tokens,
                      layers and steps: no row is near a tie, so none is left out of a comparison

Gradients are those of `loss + router_aux_loss_coef · aux_loss`; `loss` and `losses` are without the addend. transformers keeps
the experts of a layer stacked, and files hold a tensor for each: `grad.` and `final.` have the names of the files.

    mixtral       weights that add up to one, names of its own
    qwen2-moe     a shared expert with a gate, biases, weights that do not add up to one, a dense layer
    qwen3-moe     norms of heads, experts in every second layer
    olmoe         norms over all heads
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from hf_models import DECODER, VOCAB, agree, theta
from models import IGNORED, STEPS, adamw, loss_of, next_word_batch, scatter_weights
from safetensors.torch import save_file

WEIGHT = 0.02  # of the balance: large enough to be seen in every gradient of a router
PRESENT = (16, 11, 14, 8)  # tokens of each row before its padding, in the cases that have some


def configs() -> dict[str, tuple[str, transformers.PretrainedConfig]]:
    """Folder, class and configuration."""
    t = transformers
    shared = DECODER | dict(rope_parameters=theta(100.0), router_aux_loss_coef=WEIGHT, output_router_logits=False)
    qwen = shared | dict(moe_intermediate_size=20)
    return {
        "mixtral": ("MixtralForCausalLM", t.MixtralConfig(
            **shared | dict(intermediate_size=24), num_local_experts=4, num_experts_per_tok=2)),
        "qwen2-moe": ("Qwen2MoeForCausalLM", t.Qwen2MoeConfig(
            **qwen | dict(num_hidden_layers=3), num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1],
            shared_expert_intermediate_size=28, norm_topk_prob=False)),
        "qwen3-moe": ("Qwen3MoeForCausalLM", t.Qwen3MoeConfig(
            **qwen | dict(num_hidden_layers=4), num_experts=5, num_experts_per_tok=3, decoder_sparse_step=2,
            norm_topk_prob=True, head_dim=12)),
        "olmoe": ("OlmoeForCausalLM", t.OlmoeConfig(
            **shared | dict(intermediate_size=24), num_experts=8, num_experts_per_tok=2, norm_topk_prob=False)),
    }


def as_stored(name: str, tensor: torch.Tensor, mixtral: bool) -> dict[str, torch.Tensor]:
    """A parameter under the names of files: one tensor for each expert."""
    block, parts = (".block_sparse_moe.", ("w1", "w3", "w2")) if mixtral else (".mlp.", ("gate_proj", "up_proj", "down_proj"))
    if mixtral:
        name = name.replace(".mlp.", block)
    prefix, stacked, kind = name.partition(".experts.")
    if not stacked:
        return {name: tensor.clone()}
    tensors = {}
    for expert, weight in enumerate(tensor):
        halves = weight.chunk(2) if kind == "gate_up_proj" else [weight]
        names = parts[:2] if kind == "gate_up_proj" else parts[2:]
        for part, half in zip(names, halves):
            tensors[f"{prefix}.experts.{expert}.{part}.weight"] = half.clone()
    return tensors


def losses_of(model, batch, valid, mask=None):
    """The head's loss, the balance of experts, and the least margin of a choice."""
    out = model(input_ids=batch["tokens"], attention_mask=mask, output_router_logits=True)
    logits = out.logits.flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(
        logits, batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum") / valid
    chosen = model.config.num_experts_per_tok
    ordered = [layer.sort(-1, descending=True).values for layer in out.router_logits]
    margin = min((rows[:, chosen - 1] - rows[:, chosen]).min().item() for rows in ordered)
    return loss, out.aux_loss, margin


def record_padded(model, batch) -> dict[str, torch.Tensor]:
    """The same weights and tokens, where the last tokens of rows are padding, whose ids must not matter."""
    mask = (torch.arange(batch["tokens"].shape[1]) < torch.tensor(PRESENT)[:, None]).long()
    targets = torch.where(mask == 1, batch["targets"], IGNORED)
    valid = int((targets != IGNORED).sum())
    model.zero_grad()
    loss, balance, _ = losses_of(model, batch | {"targets": targets}, valid, mask)
    (loss + WEIGHT * balance).backward()
    tensors = {"present": mask.int(), "targets": targets.int(), "loss": loss.detach(), "aux_loss": balance.detach()}
    routers = [(name, weight) for name, weight in model.named_parameters() if name.endswith("mlp.gate.weight")]
    return tensors | {f"grad.{name}": weight.grad.clone() for name, weight in routers}


def record(model, batch, mixtral: bool) -> dict[str, torch.Tensor]:
    valid = int((batch["targets"] != IGNORED).sum())
    tensors = {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    out = model(input_ids=batch["tokens"])
    tensors["logits"] = out.logits[0].detach().clone()
    loss, balance, margin = losses_of(model, batch, valid)
    torch.testing.assert_close(loss, loss_of(model, batch, valid))
    (loss + WEIGHT * balance).backward()
    tensors |= {"loss": loss.detach(), "aux_loss": balance.detach()}
    for name, weight in model.named_parameters():
        tensors |= {f"grad.{stored}": part for stored, part in as_stored(name, weight.grad, mixtral).items()}

    for name, tensor in record_padded(model, batch).items():
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        tensors[f"padded.{name}"] = tensor

    optimizer = adamw(model)
    losses, balances, norms = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, balance, least = losses_of(model, batch, valid)
        (loss + WEIGHT * balance).backward()
        losses.append(loss.detach())
        balances.append(balance.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach())
        margin = min(margin, least)
        optimizer.step()
    tensors |= {"losses": torch.stack(losses), "aux_losses": torch.stack(balances), "grad_norms": torch.stack(norms)}
    tensors["margin"] = torch.tensor(margin)
    for name, weight in model.named_parameters():
        tensors |= {f"final.{stored}": part for stored, part in as_stored(name, weight.detach(), mixtral).items()}
    return tensors


def write(folder: Path, class_name: str, config: transformers.PretrainedConfig, seed: int) -> bool:
    """Writes a folder; returns whether its draw is one to judge by."""
    shutil.rmtree(folder, ignore_errors=True)
    random = torch.Generator().manual_seed(seed)
    model_class = getattr(transformers, class_name)
    model = model_class(config)
    scatter_weights(model, random)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight *= 10  # scores that differ, so that no choice is near a tie
    # One of them in shards, between the experts of a layer.
    model.save_pretrained(folder, max_shard_size="100KB" if folder.name == "mixtral" else "1GB")
    batch = next_word_batch(random, VOCAB)
    runs = []
    for dtype in (torch.float32, torch.float64):
        model = model_class.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").train()
        runs.append(record(model, batch, folder.name == "mixtral"))
    save_file(runs[0], folder / "golden.safetensors")
    return agree(*runs) and runs[0]["margin"].item() > 1e-4


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata" / "hf"
    torch.set_num_threads(1)
    for name, (class_name, config) in configs().items():
        folder = root / name
        seed = next(seed for seed in range(20, 100) if write(folder, class_name, config, seed))
        stored = json.loads((folder / "config.json").read_text())
        size = sum(file.stat().st_size for file in folder.iterdir()) // 1024
        print(f"{name}: seed {seed}, {stored['architectures'][0]}, {size} KiB")


if __name__ == "__main__":
    main()
