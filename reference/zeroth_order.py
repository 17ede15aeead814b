"""Writes testdata/zeroth_order.safetensors: the losses of ten steps without gradients, of the tiny Llama in testdata.

    python reference/zeroth_order.py

The model, its weights and its batch are those of testdata/llama.safetensors (see models.py). PyTorch computes the losses;
the perturbations are drawn by probes.py as plimsoll draws them. In every step and for every direction z the loss is taken at
w + eps z and at w - eps z, over the whole batch.

    mezo.losses     (10) the mean of a step's losses; slopes along 2 directions, as MeZO (Malladi et al., 2023) with n = 2
    mezo.slopes     (10) the root of the mean square of the slopes
    es.losses       (10) of a population of 8, mirrored; factors are centred ranks (Salimans et al., 2017)
    *.final         one weight after the tenth step, model.layers.1.mlp.down_proj.weight
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from models import IGNORED, llama
from probes import normals, stream_of
from safetensors.torch import load_file, save_file

SEED, STEPS, EPS, DECAY = 7, 10, 2.0**-6, 0.125
WEIGHT = "model.layers.1.mlp.down_proj.weight"
DATA = Path(__file__).resolve().parent.parent / "testdata"


def direction(parameters, step, number):
    drawn = {}
    for name, parameter in parameters.items():
        elements = np.arange(parameter.numel())
        drawn[name] = torch.from_numpy(normals(SEED, step, number, stream_of(name), elements)).view_as(parameter)
    return drawn


def loss_at(model, parameters, size, z, batch) -> float:
    beside = {name: parameter + size * z[name] for name, parameter in parameters.items()}
    logits = torch.func.functional_call(model, beside, (batch["batch.tokens"].long(),)).logits
    targets = batch["batch.targets"].long().flatten()
    return F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED).item()


def ranks(losses: torch.Tensor) -> torch.Tensor:
    return losses.flatten().argsort().argsort().double().view_as(losses) / (losses.numel() - 1) - 0.5


def train(golden, directions, lr, factors_of):
    model = llama().eval()
    parameters = {name: golden[name].clone() for name, _ in model.named_parameters()}
    means, roots = [], []
    for step in range(STEPS):
        drawn = [direction(parameters, step, number) for number in range(directions)]
        losses = torch.tensor(
            [[loss_at(model, parameters, sign * EPS, z, golden) for sign in (1, -1)] for z in drawn],
            dtype=torch.float64,
        )
        factors = factors_of(losses) / (2 * directions)
        for name, parameter in parameters.items():
            slope = sum(factor.item() * z[name].double() for factor, z in zip(factors, drawn))
            decay = DECAY if parameter.dim() > 1 else 0.0
            parameters[name] = (parameter.double() * (1 - lr * decay) - lr * slope).float()
        means.append(losses.mean().item())
        roots.append(((factors**2).sum() * directions).sqrt().item())
    return torch.tensor(means), torch.tensor(roots), parameters[WEIGHT]


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    golden = load_file(DATA / "llama.safetensors")
    out = {}
    slopes = lambda losses: (losses[:, 0] - losses[:, 1]) / EPS
    out["mezo.losses"], out["mezo.slopes"], out["mezo.final"] = train(golden, 2, 2.0**-9, slopes)
    ranked = lambda losses: ranks(losses)[:, 0] - ranks(losses)[:, 1]
    out["es.losses"], _, out["es.final"] = train(golden, 4, 2.0**-5, ranked)
    save_file(out, DATA / "zeroth_order.safetensors", metadata={"torch": torch.__version__})
    for name in ("mezo.losses", "mezo.slopes", "es.losses"):
        print(name, [round(number, 4) for number in out[name].tolist()])


if __name__ == "__main__":
    main()
