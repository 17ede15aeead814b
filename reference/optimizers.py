"""Writes testdata/optimizers.safetensors: one weight after ten steps of every optimizer, and who decays.

    python reference/optimizers.py

The weight is (65, 64); it and its ten gradients come from a recurrence that any language can repeat exactly
(`numbers`), so the file holds results only:

    <optimizer>       the weight after ten steps, f32
    codes.m, codes.v  u8, the 8-bit moments after ten steps
    scale.m, scale.v  f32, one per block
    decay.<model>     text: names of the parameters that Hugging Face's trainer decays, one per line, as u8

    lion_8bit.few     the weight after three steps of bitsandbytes' 8-bit Lion
    lion_8bit.m, lion_8bit.m_scale  its moment after the first: u8, and f32 for each block

SGD and AdamW are torch's own, Lion is bitsandbytes' with a moment of 32 and of 8 bits, Adafactor transformers' as its trainer calls it. Muon is torch's with
the learning rate adjusted to AdamW's, in f32 where torch iterates in bf16; `main` prints how far that is from torch's own.
APOLLO is its authors', with projections drawn as plimsoll draws them (seed 0, a new one every four steps).
8-bit AdamW is written here from the publication (Dettmers et al., 2022), with one
difference from the library of its authors: a second moment that is not zero is never stored as zero, since the next
step would divide by epsilon alone. Everything else that a step computes is AdamW in float32.
"""

from pathlib import Path

import bitsandbytes
import numpy as np
import torch
from ops import newton_schulz
from probes import name_hash
from projections import apollo
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
)
from transformers.optimization import Adafactor

ROWS, COLUMNS, STEPS, BLOCK = 65, 64, 10, 256
COUNT = ROWS * COLUMNS
LR, DECAY, BETAS, EPSILON = 2.0**-7, 0.125, (0.875, 0.96875), 2.0**-20


def numbers(seed: int) -> torch.Tensor:
    """COUNT numbers in -0.5..0.5 with 24 bits, from x' = 1664525 x + 1013904223 mod 2^32."""
    state, out = seed, np.empty(COUNT, dtype=np.float32)
    for i in range(COUNT):
        state = (1664525 * state + 1013904223) % 2**32
        out[i] = (state >> 8) / 2**24 - 0.5
    return torch.from_numpy(out)


def gradient(step: int) -> torch.Tensor:
    """Magnitudes that differ by up to 2^10 inside a block; in every third step some elements have none."""
    index = torch.arange(COUNT)
    grad = numbers(1000 + step) * torch.pow(2.0, -(index % 11).float())
    if step % 3 == 2:
        grad[index % 7 == 3] = 0.0
    return grad


def torch_run(start: torch.Tensor, make) -> torch.Tensor:
    weight = torch.nn.Parameter(start.clone())
    optimizer = make([weight])
    for step in range(1, STEPS + 1):
        weight.grad = gradient(step)
        optimizer.step()
    return weight.detach()


def dynamic_map(signed: bool) -> torch.Tensor:
    """Seven decades from 1e-6 to 1, decade i cut into 2^i parts (2^(i+1) without a sign); their middles, 0 and 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        values += middles.tolist() + ((-middles).tolist() if signed else [])
    assert len(values) == 256
    return torch.tensor(sorted(values), dtype=torch.float32)


class Blocks:
    """A moment as codes and one scale per block."""

    def __init__(self, signed: bool):
        self.map, self.signed = dynamic_map(signed), signed
        self.codes = torch.zeros(COUNT, dtype=torch.uint8)
        self.scales = torch.zeros(-(-COUNT // BLOCK))

    def read(self) -> torch.Tensor:
        return self.map[self.codes.long()] * self.scales.repeat_interleave(BLOCK)[:COUNT]

    def write(self, moment: torch.Tensor) -> None:
        for block in range(len(self.scales)):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            largest = moment[part].abs().max()
            self.scales[block] = largest
            x = moment[part].double() / largest.double()
            codes = (x[:, None] - self.map.double()).abs().argmin(1)
            if not self.signed:
                codes = torch.where((x > 0) & (codes == 0), 1, codes)
            self.codes[part] = codes.to(torch.uint8)


def adamw_by_hand(start: torch.Tensor, read, write) -> torch.Tensor:
    weight, (beta1, beta2) = start.clone(), BETAS
    for step in range(1, STEPS + 1):
        grad = gradient(step)
        m, v = read()
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad * grad
        direction = m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + EPSILON)
        weight = weight - LR * (direction + DECAY * weight)
        write(m, v)
    return weight


def adamw_8bit(start: torch.Tensor, golden: dict[str, torch.Tensor]) -> torch.Tensor:
    m, v = Blocks(signed=True), Blocks(signed=False)
    weight = adamw_by_hand(start, lambda: (m.read(), v.read()), lambda a, b: (m.write(a), v.write(b)))
    golden.update({"codes.m": m.codes, "codes.v": v.codes, "scale.m": m.scales, "scale.v": v.scales})
    return weight


def lion_8bit(start: torch.Tensor, steps: int, rates: dict) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    weight = torch.nn.Parameter(start.clone().view(ROWS, COLUMNS))
    optimizer = bitsandbytes.optim.Lion8bit([weight], **rates)
    for step in range(1, steps + 1):
        weight.grad = gradient(step).view(ROWS, COLUMNS)
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def adamw_half_moments(start: torch.Tensor) -> torch.Tensor:
    held = [torch.zeros(COUNT), torch.zeros(COUNT)]

    def write(*moments):
        held[:] = [moment.bfloat16().float() for moment in moments]

    return adamw_by_hand(start, lambda: held, write)


def matrix_run(start: torch.Tensor, make) -> torch.Tensor:
    """As `torch_run`, of the weight as the matrix that it is."""
    weight = torch.nn.Parameter(start.clone().view(ROWS, COLUMNS))
    optimizer = make([weight])
    for step in range(1, STEPS + 1):
        weight.grad = gradient(step).view(ROWS, COLUMNS)
        optimizer.step()
    return weight.detach()


def muon(start: torch.Tensor, momentum: float) -> torch.Tensor:
    weight, held = start.clone().view(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)
    for step in range(1, STEPS + 1):
        grad = gradient(step).view(ROWS, COLUMNS)
        held.lerp_(grad, 1 - momentum)
        direction = newton_schulz(grad.lerp(held, momentum))
        weight = weight * (1 - LR * DECAY) - LR * 0.2 * max(ROWS, COLUMNS) ** 0.5 * direction
    return weight


def decay_names() -> dict[str, torch.Tensor]:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    models = {
        "llama": LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=48)),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16)),
        "bert": BertForMaskedLM(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=16)),
    }
    names = {}
    for model, module in models.items():
        stored = {name for name, _ in module.named_parameters()}
        decayed = sorted(stored & set(Trainer.get_decay_parameter_names(None, module)))
        names[f"decay.{model}"] = torch.tensor(list("\n".join(decayed).encode()), dtype=torch.uint8)
    return names


def main():
    torch.set_num_threads(1)
    start = numbers(1)
    rates = {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
    sgd = {"lr": LR, "weight_decay": DECAY}
    half = start.bfloat16().float()
    golden = decay_names()
    golden["sgd"] = torch_run(start, lambda p: torch.optim.SGD(p, **sgd))
    golden["sgd_momentum"] = torch_run(start, lambda p: torch.optim.SGD(p, momentum=0.875, **sgd))
    golden["sgd_nesterov"] = torch_run(start, lambda p: torch.optim.SGD(p, momentum=0.875, nesterov=True, **sgd))
    golden["adamw"] = torch_run(start, lambda p: torch.optim.AdamW(p, **rates))
    # The master copy of weights that were loaded as bf16.
    golden["adamw_master"] = torch_run(half, lambda p: torch.optim.AdamW(p, **rates))
    golden["adamw_half_moments"] = adamw_half_moments(start)
    golden["adamw_8bit"] = adamw_8bit(start, golden)
    lion = {"lr": LR, "betas": BETAS, "weight_decay": DECAY, "min_8bit_size": 1}
    golden["lion"] = matrix_run(start, lambda p: bitsandbytes.optim.Lion32bit(p, **lion))
    golden["lion_8bit"] = lion_8bit(start, STEPS, lion)[0]
    golden["lion_8bit.few"] = lion_8bit(start, 3, lion)[0]
    first = lion_8bit(start, 1, lion)[1]
    golden.update({"lion_8bit.m": first["state1"], "lion_8bit.m_scale": first["absmax1"]})
    adafactor = {"lr": LR, "weight_decay": DECAY, "scale_parameter": False, "relative_step": False}
    golden["adafactor"] = matrix_run(start, lambda p: Adafactor(p, **adafactor))
    momentum = {"lr": LR, "weight_decay": DECAY, "momentum": 0.9375, "adjust_lr_fn": "match_rms_adamw"}
    golden["muon"] = muon(start, 0.9375)
    halves = matrix_run(start, lambda p: torch.optim.Muon(p, **momentum))
    print("torch's Muon in bf16 is", (halves - golden["muon"]).abs().max().item(), "from ours in f32")
    for kind in ("channel", "tensor"):
        form = {"rank": 8, "update_proj_gap": 4, "scale": 2.0, "scale_type": kind}
        make = lambda p: apollo(p[0], form, rates, 0, name_hash("w/projection"))
        golden[f"apollo_{kind}"] = matrix_run(start, make)
    path = Path(__file__).resolve().parent.parent / "testdata" / "optimizers.safetensors"
    save_file(golden, path, metadata={"torch": torch.__version__})
    print(f"{len(golden)} tensors, {path.stat().st_size / 1024:.0f} KiB")
    for name in ("adamw_half_moments", "adamw_8bit"):
        print(name, "is", (golden[name] - golden["adamw"]).abs().max().item(), "from adamw")


if __name__ == "__main__":
    main()
