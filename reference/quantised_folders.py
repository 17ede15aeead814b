"""Golden folders of bitsandbytes' other forms: int8, and NF4 whose scales are f32.

Writes, for the models that `quantised.py` wrote before, `testdata/quantised/llama` and `gpt2`:

    quantised/llama-int8/, gpt2-int8/, llama-nf4-single/    as transformers saves them once bitsandbytes has quantised them
    quantised/folders.safetensors                           the numbers to compare with

In `folders.safetensors`:

    <folder>.<weight>         what bitsandbytes dequantises one weight of it to, (out, in)
    llama-nf4-single.losses   ten steps of PEFT over bitsandbytes, with the adapter and the batch of `quantised.py`; those over
                              int8 are there already, as `int8.losses`
"""

import shutil
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from lora import adapted
from models import next_word_batch, scatter_weights
from quantised import CASES, SEED, four_bits, llama, ten_steps
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

# The weight of each case that is compared number by number; it is no square.
COMPARED = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.0.mlp.c_fc"}


def eight_bits(folder: Path):
    config = BitsAndBytesConfig(load_in_8bit=True)
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, device_map="cpu", dtype=torch.float32, attn_implementation="eager"
    )


def save(model, folder: Path) -> dict[str, torch.Tensor]:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return load_file(folder / "model.safetensors")


def main() -> None:
    torch.set_num_threads(1)
    testdata = Path(__file__).resolve().parent.parent / "testdata" / "quantised"
    tensors = {}
    for case, module in COMPARED.items():
        saved = save(eight_bits(testdata / case), testdata / f"{case}-int8")
        numbers = bnb.int8_vectorwise_dequant(saved[f"{module}.weight"], saved[f"{module}.SCB"])
        tensors[f"{case}-int8.{module}.weight"] = numbers

    random = torch.Generator().manual_seed(SEED)
    scatter_weights(llama(), random)
    batch = next_word_batch(random)
    model = four_bits(testdata / "llama", double=False)
    save(model, testdata / "llama-nf4-single")
    weight = model.get_submodule(COMPARED["llama"]).weight
    numbers = bnb.dequantize_4bit(weight.data, weight.quant_state)
    tensors[f"llama-nf4-single.{COMPARED['llama']}.weight"] = numbers
    losses, _ = ten_steps(adapted(model, CASES["llama"][1]), batch)
    tensors["llama-nf4-single.losses"] = losses

    tensors = {name: tensor.detach().float().clone().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, testdata / "folders.safetensors")
    print(f"llama-nf4-single: loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
