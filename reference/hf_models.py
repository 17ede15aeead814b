"""Writes testdata/hf/<name>/: tiny models as the hub stores them, and what transformers computes with them.

    python reference/hf_models.py [folder]        (folder: testdata/hf beside this one)

Each folder is what `save_pretrained` leaves (`config.json`, `generation_config.json` where the model writes,
`model.safetensors` or shards with an index) and beside it `golden.safetensors`, all f32 unless said otherwise:

    batch.tokens      i32 (B, T)
    batch.targets     i32 (B, T), shifted: targets[b, t] is what position t should predict; -100 is ignored.
                      (B) for a classifier: the label of each row
    batch.doc_start   i32 (B, T), BERT only: padding is a document of its own
    logits            (T, V) of row 0; (B, L) of a classifier
    loss              sum over valid targets divided by their number, of the whole batch
    grad.<name>       its gradient, before clipping
    losses            (10) the loss before each of ten AdamW steps on this same batch
    grad_norms        (10) the gradient's norm before clipping
    final.<name>      weights after the tenth step

What is computed is computed from the files: the folder is loaded again before anything is recorded. Batches,
the spread of weights and the optimizer are those of models.py, whose remarks on key biases hold here too.

Where a gradient happens to be a millionth of its neighbours', AdamW divides rounding by rounding, and PyTorch's own
f32 run ends 4e-4 from its f64 run. Such a draw can judge nobody, so the first seed is taken for which the two runs
agree within 1e-5 in final weights and 1e-6 in losses and norms.

    llama         Llama 3: stretched rotary positions, tied head, several end tokens
    llama2        linear scaling, an untied head, in shards, with a config.json as older versions wrote it
    mistral       a sliding window shorter than the sequence
    qwen2         biases, tied head, stored in bf16
    qwen3         norms of heads, whose width is not that of the model divided by their number
    gpt2, bert    as they are known
    bert-labels   BERT with a classifier over three labels
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from models import (
    IGNORED, LENGTH, ROWS, STEPS, adamw, gradients, logits_of, loss_of, masked_word_batch, next_word_batch,
    scatter_weights,
)
from safetensors.torch import load_file, save_file

VOCAB, POSITIONS = 256, 32
DECODER = dict(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=POSITIONS, rms_norm_eps=1e-5,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
ENCODER = dict(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}
GPT2 = dict(
    vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, bos_token_id=1, eos_token_id=1,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)


def theta(base: float, **more: object) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": base} | more


def configs() -> dict[str, tuple[str, transformers.PretrainedConfig]]:
    """Folder, class and configuration."""
    t = transformers
    linear = theta(10_000.0, rope_type="linear", factor=2.0)
    return {
        "llama": ("LlamaForCausalLM", t.LlamaConfig(**DECODER | {"eos_token_id": [2, 3]}, rope_parameters=LLAMA3,
                                                    tie_word_embeddings=True)),
        "llama2": ("LlamaForCausalLM", t.LlamaConfig(**DECODER, rope_parameters=linear)),
        "mistral": ("MistralForCausalLM", t.MistralConfig(**DECODER, rope_parameters=theta(10_000.0),
                                                          sliding_window=5)),
        # A low base: keys that hardly turn have biases that hardly matter, and then rounding decides them.
        "qwen2": ("Qwen2ForCausalLM", t.Qwen2Config(**DECODER, rope_parameters=theta(100.0),
                                                    tie_word_embeddings=True)),
        "qwen3": ("Qwen3ForCausalLM", t.Qwen3Config(**DECODER, rope_parameters=theta(1_000_000.0), head_dim=12)),
        "gpt2": ("GPT2LMHeadModel", t.GPT2Config(**GPT2)),
        "bert": ("BertForMaskedLM", t.BertConfig(**ENCODER)),
        "bert-labels": ("BertForSequenceClassification", t.BertConfig(**ENCODER, num_labels=3)),
    }


def batch_for(name: str, random: torch.Generator) -> dict[str, torch.Tensor]:
    if not name.startswith("bert"):
        return next_word_batch(random, VOCAB)
    batch = masked_word_batch(random, VOCAB)
    if name == "bert-labels":
        batch["targets"] = torch.tensor([2, 0, 1, 2])
    return batch


def write_as_older_versions_did(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": rope["rope_type"], "factor": rope["factor"]}}
    config["torch_dtype"] = config.pop("dtype")
    del config["head_dim"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def record(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    valid = int((batch["targets"] != IGNORED).sum())
    tensors = {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    logits = logits_of(model, batch).detach()
    tensors["logits"] = (logits[0] if logits.ndim == 3 else logits).clone()
    loss = loss_of(model, batch, valid)
    loss.backward()
    tensors["loss"] = loss.detach()
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients(model).items()}

    optimizer = adamw(model)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach())
        optimizer.step()
    tensors |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    return tensors | {f"final.{name}": weight.detach().clone() for name, weight in model.named_parameters()}


def check_own_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """BERT's classes know targets as they are here: the loss must be the one they compute themselves."""
    if "doc_start" in batch:
        mask = (batch["doc_start"] == 0).long()
        own = model(input_ids=batch["tokens"], attention_mask=mask, labels=batch["targets"]).loss
        valid = int((batch["targets"] != IGNORED).sum())
        torch.testing.assert_close(loss_of(model, batch, valid), own)


def agree(single: dict[str, torch.Tensor], double: dict[str, torch.Tensor]) -> bool:
    """Whether rounding decides no number that is compared."""
    def apart(name: str) -> float:
        # Key biases: see models.py.
        if name.endswith("key.bias") or name.endswith("c_attn.bias"):
            return 0.0
        return ((single[name] - double[name]).abs().max() / double[name].abs().max()).item()

    final = max(apart(name) for name in single if name.startswith("final."))
    return final < 1e-5 and max(apart("losses"), apart("grad_norms")) < 1e-6


def write(folder: Path, class_name: str, config: transformers.PretrainedConfig, seed: int) -> bool:
    """Writes a folder; returns whether its draw is one to judge by."""
    shutil.rmtree(folder, ignore_errors=True)
    random = torch.Generator().manual_seed(seed)
    model_class = getattr(transformers, class_name)
    model = model_class(config)
    scatter_weights(model, random)
    if folder.name == "qwen2":
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="50KB" if folder.name == "llama2" else "1GB")
    if folder.name == "llama2":
        write_as_older_versions_did(folder)

    batch = batch_for(folder.name, random)
    assert batch["tokens"].shape == (ROWS, LENGTH)
    runs = []
    for dtype in (torch.float32, torch.float64):
        model = model_class.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()
        check_own_loss(model, batch)
        runs.append(record(model, batch))
    save_file(runs[0], folder / "golden.safetensors")
    return agree(*runs)


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata" / "hf"
    # One thread: the order of sums, and so the file's bytes, must not depend on the machine's cores.
    torch.set_num_threads(1)
    for name, (class_name, config) in configs().items():
        folder = root / name
        seed = next(seed for seed in range(20, 60) if write(folder, class_name, config, seed))
        golden = load_file(folder / "golden.safetensors")
        first, last = golden["losses"][0].item(), golden["losses"][-1].item()
        size = sum(file.stat().st_size for file in folder.iterdir()) // 1024
        print(f"{name}: seed {seed}, loss {first:.4f} -> {last:.4f}, norm {golden['grad_norms'][0]:.3f}, {size} KiB")


if __name__ == "__main__":
    main()
