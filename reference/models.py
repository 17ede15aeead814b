"""Writes testdata/{llama,gpt2,bert}.safetensors: three tiny models, trained for ten steps by PyTorch.

    python reference/models.py [folder]        (folder: testdata beside this one)

Each file holds, all f32 unless said otherwise,

    <name>            weights before the first step, under the names of Hugging Face
    batch.tokens      i32 (B, T)
    batch.targets     i32 (B, T), shifted: targets[b, t] is what position t should predict; -100 is ignored
    batch.doc_start   i32 (B, T), BERT only: padding is a document of its own
    loss              sum over valid targets divided by their number, of the whole batch
    grad.<name>       its gradient, before clipping
    losses            (10) the loss before each of ten AdamW steps on this same batch
    grad_norms        (10) the gradient's norm before clipping
    final.<name>      weights after the tenth step
    logits            (1, V) of row 0 at `logits.position` i32 (1); models that generate only

Rows differ widely in valid targets, so whoever averages the means of micro-batches gets another
gradient than `grad`; the script checks that the honest sum over micro-batches gives this one.

No weight keeps a value that would hide a mistake: norms are not 1 and biases are not 0.

How far to trust the last digits: the same ten steps in float64 differ by at most 5e-7 in losses and
norms, 7e-7 (relative, per tensor) in gradients and 6e-6 in final weights. Biases of attention keys are
the exception (`key.bias` of BERT, the middle third of GPT-2's `c_attn.bias`): adding a constant to all
keys does not change a softmax, so their gradient is 0 but for rounding, which AdamW blows up: final values
differed by up to 3e-4. Compare them with an absolute tolerance: 1e-7 for the gradient, ten times the learning
rate for the final value.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCAB, WIDTH, LAYERS, HEADS = 64, 32, 2, 4
ROWS, LENGTH = 4, 16
STEPS = 10
IGNORED = -100
MASK_TOKEN, PAD_TOKEN = 1, 0


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=2,
            intermediate_size=48,
            max_position_embeddings=LENGTH,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            n_positions=LENGTH,
            layer_norm_epsilon=1e-5,
            bos_token_id=None,
            eos_token_id=None,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            attn_implementation="eager",
        )
    )


def bert() -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            type_vocab_size=2,
            layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        )
    )


def next_word_batch(random: torch.Generator, vocab: int = VOCAB) -> dict[str, torch.Tensor]:
    """Targets are the next token; 15, 3, 9 and 1 of the rows' 16 count."""
    text = torch.randint(2, vocab, (ROWS, LENGTH + 1), generator=random)
    targets = text[:, 1:].clone()
    targets[0, -1] = IGNORED
    targets[1, 3:] = IGNORED
    targets[2, :5] = IGNORED
    targets[2, 10:12] = IGNORED
    targets[3, :7] = IGNORED
    targets[3, 8:] = IGNORED
    return {"tokens": text[:, :-1], "targets": targets}


def masked_word_batch(random: torch.Generator, vocab: int = VOCAB) -> dict[str, torch.Tensor]:
    """Targets are words replaced by the mask; rows end in 0, 9, 4 and 12 tokens of padding."""
    text = torch.randint(2, vocab, (ROWS, LENGTH), generator=random)
    tokens, targets = text.clone(), torch.full_like(text, IGNORED)
    doc_start = torch.zeros_like(text)
    for row, (length, masked) in enumerate([(16, range(1, 16, 2)), (7, [2]), (12, [0, 3, 4, 11]), (4, [1, 3])]):
        for position in masked:
            targets[row, position] = text[row, position]
            tokens[row, position] = MASK_TOKEN
        tokens[row, length:] = PAD_TOKEN
        doc_start[row, length:] = length
    return {"tokens": tokens, "targets": targets, "doc_start": doc_start}


def scatter_weights(model: torch.nn.Module, random: torch.Generator) -> None:
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=random)
        is_norm = weight.ndim == 1 and bool((weight == 1).all())
        weight.data = 1 + 0.1 * noise if is_norm else 0.1 * noise


def logits_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T, V), or (B, L) of a classifier"""
    if "doc_start" in batch:
        mask = (batch["doc_start"] == 0).long()
        return model(input_ids=batch["tokens"], attention_mask=mask).logits
    return model(input_ids=batch["tokens"]).logits


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor], valid: int) -> torch.Tensor:
    """Sum over the batch's valid targets, divided by `valid`."""
    logits = logits_of(model, batch).flatten(0, -2)
    return F.cross_entropy(logits, batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum") / valid


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def check_accumulation(model: torch.nn.Module, batch: dict[str, torch.Tensor], valid: int) -> None:
    """Row by row, divided by the valid targets of the whole batch, must give the whole batch's gradient."""
    whole = gradients(model)
    model.zero_grad()
    for row in range(ROWS):
        loss_of(model, {name: tensor[row : row + 1] for name, tensor in batch.items()}, valid).backward()
    for name, summed in gradients(model).items():
        torch.testing.assert_close(summed, whole[name], rtol=1e-4, atol=1e-6)


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    """Weight decay on matrices only."""
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)


def record(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    valid = int((batch["targets"] != IGNORED).sum())
    tensors = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    tensors |= {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    if "doc_start" not in batch:
        position = 9
        tensors["logits.position"] = torch.tensor([position], dtype=torch.int32)
        tensors["logits"] = logits_of(model, batch)[0, position : position + 1].detach().clone()

    loss = loss_of(model, batch, valid)
    loss.backward()
    tensors["loss"] = loss.detach()
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients(model).items()}
    check_accumulation(model, batch, valid)

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
    tensors |= {f"final.{name}": weight.detach().clone() for name, weight in model.named_parameters()}
    return tensors


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "testdata"
    folder.mkdir(parents=True, exist_ok=True)
    # One thread: the order of sums, and so the file's bytes, must not depend on the machine's cores.
    torch.set_num_threads(1)
    for build, make_batch in [(llama, next_word_batch), (gpt2, next_word_batch), (bert, masked_word_batch)]:
        random = torch.Generator().manual_seed(20)
        model = build().train()
        scatter_weights(model, random)
        tensors = record(model, make_batch(random))
        save_file(tensors, folder / f"{build.__name__}.safetensors")
        first, last = tensors["losses"][0].item(), tensors["losses"][-1].item()
        print(f"{build.__name__}: loss {first:.4f} -> {last:.4f}, norm {tensors['grad_norms'][0]:.3f}")


if __name__ == "__main__":
    main()
