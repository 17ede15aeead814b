"""Golden bottleneck adapters (Houlsby et al. 2019), which PEFT has not: tiny models, trained for ten steps.

Writes `testdata/lora/<case>/` as `lora.py` does, with names and settings of the fork of PEFT that came with LLM-Adapters.
They cannot be merged, so there are no merged weights.
"""

import json
from pathlib import Path

import torch
from lora import SEED, STEPS, base
from models import IGNORED, adamw, gpt2, llama, loss_of, next_word_batch
from safetensors.torch import save_file

FUNCTIONS = {"tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
PREFIX = "base_model.model."

CASES = {
    "llama_bottleneck": (
        llama,
        dict(target_modules=["down_proj", "o_proj"], bottleneck_size=5, non_linearity="tanh", scaling=1),
    ),
    "gpt2_bottleneck": (gpt2, dict(target_modules=["c_proj"], bottleneck_size=4, non_linearity="gelu", scaling=0.5)),
}


class Bottleneck(torch.nn.Module):
    """A layer, and a small network behind it whose result is added."""

    def __init__(self, layer: torch.nn.Module, width: int, settings: dict, random: torch.Generator):
        super().__init__()
        self.layer, self.scaling = layer, settings["scaling"]
        self.function = FUNCTIONS[settings["non_linearity"]]
        size = settings["bottleneck_size"]
        self.adapter_down = torch.nn.Linear(width, size, bias=False)
        self.adapter_up = torch.nn.Linear(size, width, bias=False)
        for weight in (self.adapter_down.weight, self.adapter_up.weight):
            weight.data = 0.2 * torch.randn(weight.shape, generator=random)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y + self.scaling * self.adapter_up(self.function(self.adapter_down(y)))


def adapted(model: torch.nn.Module, settings: dict) -> torch.nn.Module:
    random = torch.Generator().manual_seed(SEED + 1)
    model.requires_grad_(False)
    names = [name for name, _ in model.named_modules() if name.rsplit(".", 1)[-1] in settings["target_modules"]]
    for name in names:
        parent, last = model.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[-1]
        setattr(parent, last, Bottleneck(getattr(parent, last), model.config.hidden_size, settings, random))
    return model


def trained(model: torch.nn.Module, pick) -> dict[str, torch.Tensor]:
    chosen = {name: pick(weight) for name, weight in model.named_parameters() if weight.requires_grad}
    return {PREFIX + name: value.detach().clone().contiguous() for name, value in chosen.items()}


def record(case: str, folder: Path) -> None:
    build, settings = CASES[case]
    model, batch = base(build, next_word_batch)
    model = adapted(model, settings)
    config = dict(peft_type="BOTTLENECK", task_type="CAUSAL_LM", fan_in_fan_out=build is gpt2, **settings)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    save_file(trained(model, lambda weight: weight), folder / "adapter_model.safetensors")
    valid = int((batch["targets"] != IGNORED).sum())
    loss_of(model, batch, valid).backward()
    tensors = {f"grad.{name}": gradient for name, gradient in trained(model, lambda weight: weight.grad).items()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, losses, norms = adamw(model), [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 1.0).detach())
        optimizer.step()
    tensors |= {"loss": losses[0], "losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    tensors |= {f"final.{name}": weight for name, weight in trained(model, lambda weight: weight).items()}
    save_file(tensors, folder / "golden.safetensors")
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {norms[0]:.3f}, {len(weights)} trained")


def main() -> None:
    torch.set_num_threads(1)
    for case in CASES:
        folder = Path(__file__).resolve().parent.parent / "testdata" / "lora" / case
        folder.mkdir(parents=True, exist_ok=True)
        record(case, folder)


if __name__ == "__main__":
    main()
