"""Golden adapters of other kinds than LoRA over the 4-bit base of bitsandbytes: DoRA and IA3 by PEFT.

Writes `testdata/quantised/<kind>/` for the model that `quantised.py` wrote before, `testdata/quantised/llama`:

    adapter/                  as PEFT saves it, before the first step
    golden.safetensors        batch.tokens, batch.targets, losses, grad_norms, final.<name>, as in `quantised.py`
"""

import json
from pathlib import Path

import torch
from lora import adapted, sort_names, trained
from models import next_word_batch, scatter_weights
from quantised import SEED, four_bits, llama, ten_steps
from safetensors.torch import save_file

KINDS = {
    "dora": dict(target_modules="all-linear", r=4, lora_alpha=8, use_dora=True),
    "ia3": dict(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
}


def record(kind: str, testdata: Path) -> None:
    random = torch.Generator().manual_seed(SEED)
    scatter_weights(llama(), random)
    batch = next_word_batch(random)
    folder = testdata / kind
    model = adapted(four_bits(testdata / "llama"), KINDS[kind])
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    config = folder / "adapter" / "adapter_config.json"
    sort_names(config)
    text = json.loads(config.read_text())
    text["base_model_name_or_path"] = "llama"
    config.write_text(json.dumps(text, indent=2, sort_keys=True))
    tensors = {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    tensors["losses"], tensors["grad_norms"] = ten_steps(model, batch)
    tensors |= {f"final.{name}": weight for name, weight in trained(model, lambda weight: weight).items()}
    save_file(tensors, folder / "golden.safetensors")
    print(f"{kind}: loss {tensors['losses'][0]:.4f} -> {tensors['losses'][-1]:.4f}")


def main() -> None:
    torch.set_num_threads(1)
    for kind in KINDS:
        record(kind, Path(__file__).resolve().parent.parent / "testdata" / "quantised")


if __name__ == "__main__":
    main()
