"""Writes testdata/bf16.safetensors: the ten steps of reference/models.py once more, in bf16.

    python reference/bf16.py [folder]        (folder: testdata beside this one)

The same three models, weights, batches and AdamW. For each model the file holds

    <model>.autocast    (10) losses with torch.autocast in bf16, weights in f32: what `bf16=True` means to transformers
    <model>.pure        (10) losses with every weight and value in bf16, moments too
    <model>.f32         (10) losses in f32, which must be those of testdata/<model>.safetensors

The distance between bf16 and f32 is the yardstick by which another program's bf16 is judged.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from models import IGNORED, STEPS, adamw, bert, gpt2, llama, loss_of, masked_word_batch, next_word_batch, scatter_weights


def ten_steps(build, make_batch, *, autocast: bool, pure: bool) -> torch.Tensor:
    random = torch.Generator().manual_seed(20)
    model = build().train()
    scatter_weights(model, random)
    batch = make_batch(random)
    if pure:
        model = model.to(torch.bfloat16)
    valid = int((batch["targets"] != IGNORED).sum())
    optimizer, losses = adamw(model), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach().float())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.stack(losses)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata"
    torch.set_num_threads(1)
    tensors = {}
    for build, make_batch in [(llama, next_word_batch), (gpt2, next_word_batch), (bert, masked_word_batch)]:
        name = build.__name__
        tensors[f"{name}.f32"] = ten_steps(build, make_batch, autocast=False, pure=False)
        tensors[f"{name}.autocast"] = ten_steps(build, make_batch, autocast=True, pure=False)
        tensors[f"{name}.pure"] = ten_steps(build, make_batch, autocast=False, pure=True)
        for kind in ["autocast", "pure"]:
            apart = (tensors[f"{name}.{kind}"] - tensors[f"{name}.f32"]).abs().max().item()
            print(f"{name}: {kind} is at most {apart:.5f} from f32")
    save_file(tensors, folder / "bf16.safetensors")


if __name__ == "__main__":
    main()
