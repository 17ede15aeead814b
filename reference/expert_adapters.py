"""Golden adapters of mixtures: those of `testdata/hf` with PEFT's LoRA on stacked parameters, or IA3 on modules, trained for
ten steps.

    python reference/expert_adapters.py [testdata]        (testdata: that beside this folder)

Writes `testdata/lora/<case>/` as `lora.py` does; weights and batch are those of `testdata/hf/<family>`, and

    merged.<weight>   every tensor of a file that merging changes, under its name in files
    margin            the least distance between the last expert chosen and the first that was not, over all tokens,
                      layers and steps: no row is near a tie, so none is left out of a comparison

The loss has no balance of experts. Cases:

    mixtral_experts     both parameters of stacked experts, beside a module
    mixtral_all         all-linear, which PEFT translates into modules, experts and routers
    qwen2_moe_experts   all-linear, which PEFT does not translate, and experts by name
    qwen3_moe_experts   one of the parameters, and routers
    olmoe_layers        names of single experts' layers, which PEFT translates; a rank of their own, and a root
    mixtral_ia3         the modules that PEFT's IA3 has by default: it translates none, so `w2` is no module
    qwen2_moe_ia3       keys, values and the shared expert; `down_proj` is a module there
"""

import copy
import sys
from pathlib import Path

import torch
import transformers
from hf_models import agree
from lora import sort_names, trained
from mixtures import as_stored, losses_of
from models import IGNORED, STEPS, adamw
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

CASES = {
    "mixtral_experts": ("mixtral", LoraConfig(
        target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], r=2, lora_alpha=3)),
    "mixtral_all": ("mixtral", LoraConfig(target_modules="all-linear", r=2, lora_alpha=3)),
    "qwen2_moe_experts": ("qwen2-moe", LoraConfig(
        target_modules="all-linear", target_parameters=["experts.gate_up_proj", "experts.down_proj"], r=2, lora_alpha=3)),
    "qwen3_moe_experts": ("qwen3-moe", LoraConfig(
        target_modules=[], target_parameters=["experts.down_proj", "mlp.gate.weight"], r=3, lora_alpha=4)),
    "olmoe_layers": ("olmoe", LoraConfig(
        target_modules=["v_proj", "gate_proj", "up_proj", "down_proj"], r=2, lora_alpha=3, rank_pattern={"down_proj": 3},
        use_rslora=True)),
    "mixtral_ia3": ("mixtral", IA3Config()),
    "qwen2_moe_ia3": ("qwen2-moe", IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])),
}


def load(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").train()


def adapted(model: torch.nn.Module, settings: PeftConfig, seed: int) -> PeftModel:
    """Every trained number drawn, so that none of them hides a mistake."""
    random = torch.Generator().manual_seed(seed)
    model = get_peft_model(model, copy.deepcopy(settings)).train()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            drawn = 0.2 * torch.randn(weight.shape, generator=random).to(weight.dtype)
            weight.data = 1.0 + drawn if "ia3_l" in name else drawn
    return model


def record(model: PeftModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loss and gradients, and ten steps."""
    valid = int((batch["targets"] != IGNORED).sum())
    loss, _, margin = losses_of(model, batch, valid)
    loss.backward()
    tensors = {"loss": loss.detach()}
    tensors |= {f"grad.{name}": gradient for name, gradient in trained(model, lambda weight: weight.grad).items()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = adamw(model)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _, least = losses_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 1.0).detach())
        margin = min(margin, least)
        optimizer.step()
    tensors |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms), "margin": torch.tensor(margin)}
    return tensors | {f"final.{name}": weight for name, weight in trained(model, lambda weight: weight).items()}


def merged(base: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the merged model that differ from the model's own."""
    before = load(base, torch.float32).state_dict()
    after = PeftModel.from_pretrained(load(base, torch.float32), folder).merge_and_unload().state_dict()
    changed = {name: weight for name, weight in after.items() if not torch.equal(weight, before[name])}
    mixtral = base.name == "mixtral"
    return {f"merged.{stored}": part.contiguous()
            for name, weight in changed.items() for stored, part in as_stored(name, weight, mixtral).items()}


def write(base: Path, folder: Path, settings: PeftConfig, seed: int) -> bool:
    """Writes a folder; returns whether its draw is one to judge by."""
    golden = load_file(base / "golden.safetensors")
    batch = {name: golden[f"batch.{name}"].long() for name in ("tokens", "targets")}
    runs = [record(adapted(load(base, dtype), settings, seed), batch) for dtype in (torch.float32, torch.float64)]
    if not agree(*runs) or runs[0]["margin"] < 1e-4:
        return False
    adapted(load(base, torch.float32), settings, seed).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    sort_names(folder / "adapter_config.json")
    tensors = runs[0] | merged(base, folder)
    save_file(tensors, folder / "golden.safetensors")
    print(f"{folder.name}: seed {seed}, loss {tensors['losses'][0]:.4f} -> {tensors['losses'][-1]:.4f}, "
          f"{sum(name.startswith('grad.') for name in tensors)} trained")
    return True


def main() -> None:
    testdata = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata"
    torch.set_num_threads(1)
    for case, (family, settings) in CASES.items():
        base, folder = testdata / "hf" / family, testdata / "lora" / case
        next(seed for seed in range(20, 100) if write(base, folder, settings, seed))


if __name__ == "__main__":
    main()
