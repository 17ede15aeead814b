"""Golden frozen bases in few bits: codes and numbers of bitsandbytes, and QLoRA by PEFT over them.

    python reference/quantised.py [folder]        (folder: testdata beside this one)

Writes `testdata/quantised/`:

    codes.safetensors         one weight (48, 384) and what bitsandbytes makes of it
    llama/, gpt2/             tiny models 64 wide, as transformers saves them, in bf16
    llama-nf4/, …             the same models as transformers saves them once bitsandbytes has quantised them
    <model>/adapter/          an adapter as PEFT saves it, before the first step; B is not 0
    <model>/golden.safetensors

In `codes.safetensors`, f32 unless said otherwise:

    weight                    bf16
    nf4, nf4.absmax           u8 codes, and a scale for each 64
    double.absmax             u8, the scales in eight bits; double.nested_absmax, double.nested_offset, double.map
    nf4.f32, double.f32       the numbers they stand for; double.bf16 in bf16
    int8, int8.SCB            i8 codes, and a scale for each row; int8.f32 the numbers

In `golden.safetensors`, of PEFT over the 4-bit model of bitsandbytes, parameters named as PEFT saves them:

    batch.tokens, batch.targets, losses, grad_norms, loss, grad.<name>, final.<name>    as in `lora.py`
    int8.losses               ten steps over weights that int8 codes stand for, since bitsandbytes' own 8-bit layer also
                              rounds what it reads
"""

import json
import shutil
import sys
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from lora import adapted, sort_names, trained
from models import IGNORED, LENGTH, STEPS, VOCAB, adamw, loss_of, next_word_batch, scatter_weights
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.pytorch_utils import Conv1D

SEED, WIDTH = 20, 64


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=LENGTH,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=WIDTH,
            n_layer=1,
            n_head=4,
            n_positions=LENGTH,
            bos_token_id=None,
            eos_token_id=None,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )


CASES = {
    "llama": (llama, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "gpt2": (gpt2, dict(target_modules=["c_attn", "c_proj", "c_fc"], r=4, lora_alpha=8, fan_in_fan_out=False)),
}


def codes() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(SEED)
    weight = 0.05 * torch.randn(48, 384, generator=random)
    weight[3, 64:128] = 0
    weight[7] *= 20
    weight[9, 5] = 4.0
    weight = weight.bfloat16().float()
    tensors = {"weight": weight.bfloat16()}
    packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=False)
    tensors |= {"nf4": packed.flatten(), "nf4.absmax": state.absmax, "nf4.f32": bnb.dequantize_4bit(packed, state)}
    double, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    assert torch.equal(packed, double)
    tensors |= {
        "double.absmax": state.absmax,
        "double.nested_absmax": state.state2.absmax,
        "double.nested_offset": state.offset.reshape(1),
        "double.map": state.state2.code,
        "double.f32": bnb.dequantize_4bit(double, state),
    }
    state.dtype = torch.bfloat16
    tensors["double.bf16"] = bnb.dequantize_4bit(double, state)
    rows, scales, _ = bnb.int8_vectorwise_quant(weight)
    tensors |= {"int8": rows, "int8.SCB": scales, "int8.f32": bnb.int8_vectorwise_dequant(rows, scales)}
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def ten_steps(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    valid = int((batch["targets"] != IGNORED).sum())
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    # Quantised weights are parameters too, and have no business with the optimizer.
    optimizer = adamw(torch.nn.ParameterList(weights))
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 1.0).detach())
        optimizer.step()
    return torch.stack(losses), torch.stack(norms)


def four_bits(folder: Path, double: bool = True):
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, device_map="cpu", dtype=torch.float32, attn_implementation="eager"
    )


def rounded_to_bytes(folder: Path):
    """The model with each linear layer but the head replaced by the numbers that its int8 codes stand for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, Conv1D)) and not name.endswith("lm_head"):
            turned = isinstance(module, Conv1D)
            weight = module.weight.data.T.contiguous() if turned else module.weight.data
            rows, scales, _ = bnb.int8_vectorwise_quant(weight.clone())
            weight = bnb.int8_vectorwise_dequant(rows, scales)
            module.weight.data = weight.T.contiguous() if turned else weight
    return model


def record(case: str, folder: Path) -> None:
    build, settings = CASES[case]
    random = torch.Generator().manual_seed(SEED)
    model = build()
    scatter_weights(model, random)
    batch = next_word_batch(random)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    quantised = four_bits(folder)
    saved = folder.parent / f"{case}-nf4"
    shutil.rmtree(saved, ignore_errors=True)
    quantised.save_pretrained(saved)
    (saved / "generation_config.json").unlink(missing_ok=True)
    model = adapted(quantised, settings)
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    config = folder / "adapter" / "adapter_config.json"
    sort_names(config)
    text = json.loads(config.read_text())
    text["base_model_name_or_path"] = case
    config.write_text(json.dumps(text, indent=2, sort_keys=True))

    tensors = {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    valid = int((batch["targets"] != IGNORED).sum())
    loss = loss_of(model, batch, valid)
    loss.backward()
    tensors["loss"] = loss.detach()
    tensors |= {f"grad.{name}": gradient for name, gradient in trained(model, lambda weight: weight.grad).items()}
    tensors["losses"], tensors["grad_norms"] = ten_steps(model, batch)
    tensors |= {f"final.{name}": weight for name, weight in trained(model, lambda weight: weight).items()}
    settings = settings | ({"fan_in_fan_out": True} if case == "gpt2" else {})
    tensors["int8.losses"], _ = ten_steps(adapted(rounded_to_bytes(folder), settings), batch)
    save_file(tensors, folder / "golden.safetensors")
    losses = tensors["losses"]
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, int8 {tensors['int8.losses'][-1]:.4f}")


def main() -> None:
    testdata = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata"
    # One thread: the order of sums, and so the file's bytes, must not depend on the machine's cores.
    torch.set_num_threads(1)
    folder = testdata / "quantised"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(codes(), folder / "codes.safetensors")
    for case in CASES:
        record(case, folder / case)


if __name__ == "__main__":
    main()
