"""Golden prompts: tiny models with PEFT's prompt and prefix tuning, trained for ten steps.

Writes `testdata/lora/<case>/` as `lora.py` does. The text is shorter than in `models.py` by the vectors before it, so that both
fit into the model's positions; `golden.safetensors` has the batch. No loss is taken of the vectors' positions.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from lora import SEED, STEPS, base
from models import IGNORED, adamw, gpt2, llama, next_word_batch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import save_file

VECTORS = 4
CASES = {
    "llama_prompt": (llama, PromptTuningConfig),
    "gpt2_prompt": (gpt2, PromptTuningConfig),
    "llama_prefix": (llama, PrefixTuningConfig),
    "gpt2_prefix": (gpt2, PrefixTuningConfig),
}
NAME = "prompt_embeddings"


def record(case: str, folder: Path) -> None:
    build, config = CASES[case]
    model, batch = base(build, next_word_batch)
    batch = {name: tensor[:, :-VECTORS].contiguous() for name, tensor in batch.items()}
    model = get_peft_model(model, config(num_virtual_tokens=VECTORS, task_type="CAUSAL_LM")).train()
    (weight,) = [weight for weight in model.parameters() if weight.requires_grad]
    weight.data = 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(SEED + 1))
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True))
    valid = int((batch["targets"] != IGNORED).sum())

    def loss_of() -> torch.Tensor:
        length = batch["tokens"].shape[1]
        logits = model(input_ids=batch["tokens"]).logits[:, -length:].flatten(0, -2)
        return F.cross_entropy(logits, batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum") / valid

    loss_of().backward()
    tensors = {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    tensors[f"grad.{NAME}"] = weight.grad.clone()
    optimizer, losses, norms = adamw(model), [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_([weight], 1.0).detach())
        optimizer.step()
    tensors |= {"loss": losses[0], "losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    tensors[f"final.{NAME}"] = weight.detach().clone()
    save_file(tensors, folder / "golden.safetensors")
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {norms[0]:.3f}, {weight.shape}")


def main() -> None:
    torch.set_num_threads(1)
    for case in CASES:
        folder = Path(__file__).resolve().parent.parent / "testdata" / "lora" / case
        folder.mkdir(parents=True, exist_ok=True)
        record(case, folder)


if __name__ == "__main__":
    main()
