"""Trains models of real shapes with plimsoll and with PyTorch on one device, and compares the loss of every step.

    python reference/gpu_parity.py target/release/plimsoll [--device cuda] [--only NAME] [--tiny]

transformers writes a folder with random weights; both sides load it and take ten steps on the same texts, all of them in each
step, so that their order makes no difference. `--tiny` takes small shapes, so that the script itself can be tried anywhere.

f32: `apart` is the largest relative difference of a step's loss between plimsoll and PyTorch, whose products are f32 too. The
process fails where it is more than 1e-5.

bf16: both sides compute in bf16 and update an f32 copy of the weights, on three batches that are drawn apart. PyTorch runs in each
of its own ways: with every backend of attention, out of transformers' own operations, and with compiled layers, which round fused operations
where the others round each. A line for each batch has `apart`, plimsoll's difference from each way; `ways`, the differences of those ways
from each other; and `from_f32`, how far plimsoll and each way are from PyTorch in f32. The mark is twice the largest difference
between two backends of attention, the compiled way left out; the process fails where plimsoll is farther than that from PyTorch
with flash attention, operation by operation, in any of the batches. `ok_compiled` is the same for flash attention compiled, and
decides nothing.
"""

import argparse
import contextlib
import gc
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from word_texts import first_losses, write_tokenizer

STEPS, IGNORED = 10, -100
BATCHES = 3  # of a case in bf16
NO_KERNEL = ["No available kernel", "No viable backend"]
# PyTorch's own ways: the backend of attention, or `None` for transformers' own operations; and whether operations are fused.
WAYS = {
    "flash": (SDPBackend.FLASH_ATTENTION, False),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, False),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, False),
    "math": (SDPBackend.MATH, False),
    "eager": (None, False),
    "flash compiled": (SDPBackend.FLASH_ATTENTION, True),
}
# Rates at which ten steps on one batch stay smooth; at larger ones rounding grows a thousandfold from step to step.
RATES = {"s": 5e-4, "gpt2": 1e-4, "bert": 2e-5, "1b": 2e-5}
LIMIT = 1e-5
RANK, ALPHA = 16, 32


def llama(layers, width, heads, keys, inner, vocab, tied=False):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=keys,
        intermediate_size=inner, max_position_embeddings=4096, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        bos_token_id=None, eos_token_id=1, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )


def gpt2(layers, width, heads, vocab):
    return transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=vocab, n_embd=width, n_head=heads, n_layer=layers, n_positions=1024, bos_token_id=1, eos_token_id=1,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )


def bert(layers, width, heads, inner, vocab):
    return transformers.BertForSequenceClassification, transformers.BertConfig(
        vocab_size=vocab, hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers, intermediate_size=inner,
        pad_token_id=0, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )


def shapes(tiny: bool):
    if tiny:
        small = llama(2, 64, 4, 2, 96, 300)
        return {"s": small, "1b": small, "gpt2": gpt2(2, 48, 3, 300), "bert": bert(2, 48, 3, 96, 300)}
    return {
        "s": llama(8, 256, 8, 4, 688, 8192),
        "1b": llama(16, 2048, 32, 8, 8192, 128_256, tied=True),
        "gpt2": gpt2(12, 768, 12, 50_257),
        "bert": bert(12, 768, 12, 3072, 30_522),
    }


# Name, shape, what is trained, whether in bf16, rows and length.
CASES = [
    ("s adamw f32", "s", "adamw", False, 8, 256),
    ("s sgd f32", "s", "sgd", False, 8, 256),
    ("s lora f32", "s", "lora", False, 8, 256),
    ("gpt2 adamw f32", "gpt2", "adamw", False, 4, 256),
    ("bert adamw f32", "bert", "adamw", False, 8, 128),
    ("1b adamw f32", "1b", "adamw", False, 4, 512),
    ("s adamw bf16", "s", "adamw", True, 8, 256),
    ("1b adamw bf16", "1b", "adamw", True, 4, 512),
]


class Adapter(torch.nn.Module):
    """A linear layer with PEFT's adapter beside it."""

    def __init__(self, base: torch.nn.Linear, generator: torch.Generator):
        super().__init__()
        self.base = base
        drawn = lambda *shape: torch.nn.Parameter(0.02 * torch.randn(*shape, generator=generator).to(base.weight.device))
        self.a, self.b = drawn(RANK, base.in_features), drawn(base.out_features, RANK)

    def forward(self, x):
        return self.base(x) + (ALPHA / RANK) * torch.nn.functional.linear(torch.nn.functional.linear(x, self.a), self.b)


def adapt(model: torch.nn.Module, folder: Path) -> None:
    """Gives every linear layer of every block an adapter, and writes them as PEFT does."""
    generator = torch.Generator().manual_seed(5)
    model.requires_grad_(False)
    tensors, kinds = {}, set()
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    for name, module in linear:
        if ".layers." not in name:
            continue
        parent, kind = name.rsplit(".", 1)
        kinds.add(kind)
        adapter = Adapter(module, generator)
        setattr(model.get_submodule(parent), kind, adapter)
        tensors[f"base_model.model.{name}.lora_A.weight"] = adapter.a.detach().cpu().contiguous().clone()
        tensors[f"base_model.model.{name}.lora_B.weight"] = adapter.b.detach().cpu().contiguous().clone()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
              "target_modules": sorted(kinds), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def optimizer_of(parameters: list[torch.nn.Parameter], kind: str, rate: float):
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    # No decay, so that it makes no difference which parameters would have one.
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def loss_of(model, body, tokens, mask, targets, labels: bool):
    """The mean loss; `body` is the model below its head where logits are to be f32."""
    if body is not None:
        # Logits that are rounded to bf16 would hide every other difference; plimsoll's are f32.
        hidden = body(input_ids=tokens, use_cache=False).last_hidden_state
        logits = torch.nn.functional.linear(hidden.float(), model.lm_head.weight.float()).flatten(0, -2)
    else:
        seen = {"attention_mask": mask} if labels else {}
        logits = model(input_ids=tokens, **seen).logits.flatten(0, -2)
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)


def trained(model) -> list[torch.nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def train(loss, weights, masters, kind: str, rate: float) -> list[float]:
    """Ten steps; in bf16 the weights of the model are rounded copies of those that the optimizer updates."""
    half = weights is not masters
    optimizer, losses = optimizer_of(masters, kind, rate), []
    for _ in range(STEPS):
        found = loss()
        found.backward()
        losses.append(found.item())
        if half:
            for master, weight in zip(masters, weights):
                master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if half:
            copy(weights, masters)
    return losses


@torch.no_grad()
def copy(weights, numbers) -> None:
    for weight, number in zip(weights, numbers):
        weight.copy_(number)


def round_weights(model) -> None:
    """Weights in bf16. Other tensors stay f32, as transformers keeps them: frequencies of rotary positions that were rounded
    would turn the last positions by whole radians."""
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16)


def half_runs(model, batches, kind: str, rate: float) -> list[dict[str, list[float]]]:
    """Losses of every batch in f32 and in every way that PyTorch has here, all of one model that begins anew each time."""
    weights = trained(model)
    initial = [weight.detach().clone() for weight in weights]
    runs = [{} for _ in batches]
    with sdpa_kernel(SDPBackend.MATH):
        for losses, batch in zip(runs, batches):
            copy(weights, initial)
            losses["f32"] = train(lambda: loss_of(model, model.model, *batch, False), weights, weights, kind, rate)
    round_weights(model)
    for way, (backend, compiled) in WAYS.items():
        model.set_attn_implementation("eager" if backend is None else "sdpa")
        if compiled:
            # Layer by layer: where the whole body is traced, transformers writes the causal mask out (before torch 2.14), and
            # flash attention has no kernel for a mask. This way is the last, since layers stay compiled.
            for layer in model.model.layers:
                layer.compile(dynamic=False)
        with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
            for losses, batch in zip(runs, batches):
                masters = [number.clone().requires_grad_() for number in initial]
                copy(weights, initial)
                try:
                    losses[way] = train(lambda: loss_of(model, model.model, *batch, False), weights, masters, kind, rate)
                except RuntimeError as error:
                    if not any(words in str(error) for words in NO_KERNEL):
                        raise
                    print(f"PyTorch has no kernel of {way} here", flush=True)
                    break
    return runs


def batch_of(texts, tokenizer, length: int, labels: bool, device: str):
    tokens = torch.zeros((len(texts), length), dtype=torch.long)
    mask, targets = torch.zeros_like(tokens), torch.full_like(tokens, IGNORED)
    for row, (text, _) in enumerate(texts):
        ids = tokenizer(text)["input_ids"]
        learned = ids[1:] + [tokenizer.eos_token_id] if not labels else []
        tokens[row, :len(ids)], mask[row, :len(ids)] = torch.tensor(ids), 1
        targets[row, :len(learned)] = torch.tensor(learned, dtype=torch.long)
    if labels:
        targets = torch.tensor([label for _, label in texts])
    return tokens.to(device), mask.to(device), targets.to(device)


def ours(arguments, work: Path, texts: Path, kind: str, half: bool, shape: tuple[int, int, float]) -> list[float]:
    rows, length, rate = shape
    command = [
        arguments.binary, "train", "--model", work / "model", "--data", texts, "--packing", "false",
        "--device", arguments.device, "--max-steps", STEPS, "--global-batch", rows, "--seq-len", length, "--learning-rate", rate,
        "--lr-scheduler-type", "constant", "--warmup-steps", 0, "--weight-decay", 0, "--max-grad-norm", 1, "--json",
        "--report-to", "none", "--output-dir", work / f"out-{texts.stem}", "--data-cache", work / "cache",
        "--memory", arguments.memory,
    ]
    command += ["--optim", "sgd", "--momentum", 0.9] if kind == "sgd" else ["--adam-beta2", 0.95]
    command += ["--bf16"] if half else []
    command += ["--adapter", work / "adapter"] if kind == "lora" else []
    return first_losses([str(word) for word in command], STEPS)


def apart(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b) == STEPS, (len(a), len(b))
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def write_model(folder: Path, model_class, config, device: str) -> None:
    torch.manual_seed(1)
    with torch.device(device):
        model = model_class(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn(weight.shape).to(weight.device))
    model.save_pretrained(folder)


def write_texts(path: Path, draw: random.Random, words: list[str], rows: int, length: int, labels: bool):
    texts = [(" ".join(draw.choice(words) for _ in range(length - 3)), row % 3) for row in range(rows)]
    with path.open("w") as file:
        for text, label in texts:
            file.write(json.dumps({"text": text} | ({"label": label} if labels else {})) + "\n")
    return texts


def free(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def judged(name: str, batch: int, found: list[float], runs: dict[str, list[float]]) -> dict:
    """One batch of a case in bf16."""
    exact = runs.pop("f32")
    pairs = {(a, b): apart(runs[a], runs[b]) for a, b in itertools.combinations(runs, 2)}
    backends = [difference for pair, difference in pairs.items() if not any(WAYS[way][1] for way in pair)]
    mark = 2 * max(backends)
    from_ways = {way: apart(found, losses) for way, losses in runs.items()}
    plain = next(way for way in runs if not WAYS[way][1])
    compiled = [difference for way, difference in from_ways.items() if WAYS[way][1]]
    return {
        "case": name, "batch": batch, "apart": from_ways, "ways": {f"{a} {b}": difference for (a, b), difference in pairs.items()},
        "from_f32": {"ours": apart(found, exact)} | {way: apart(losses, exact) for way, losses in runs.items()},
        "ours": found, "theirs": runs[plain], "f32": exact, "mark": mark, "judged_against": plain,
        "ok": from_ways[plain] <= mark, "ok_compiled": all(difference <= mark for difference in compiled),
    }


def compare(arguments, case) -> bool:
    """Whether a case holds; prints its lines."""
    name, shape, kind, half, rows, length = case
    model_class, config = shapes(arguments.tiny)[shape]
    labels, rate, device = shape == "bert", RATES[shape], arguments.device
    with tempfile.TemporaryDirectory() as home:
        work = Path(home)
        write_model(work / "model", model_class, config, device)
        words = write_tokenizer(work / "model", config.vocab_size, labels)
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(work / "model")
        files = [work / f"texts-{batch}.jsonl" for batch in range(BATCHES if half else 1)]
        seed = lambda batch: random.Random(f"{name} {batch}" if batch else name)
        texts = [write_texts(file, seed(batch), words, rows, length, labels) for batch, file in enumerate(files)]
        batches = [batch_of(each, tokenizer, length, labels, device) for each in texts]
        model = model_class.from_pretrained(work / "model", dtype=torch.float32, attn_implementation="sdpa")
        model = model.to(device).train()
        if kind == "lora":
            adapt(model, work / "adapter")
        if half:
            runs = half_runs(model, batches, kind, rate)
        else:
            # The math backend is exact enough for f32.
            with sdpa_kernel(SDPBackend.MATH):
                loss = lambda: loss_of(model, None, *batches[0], labels)
                theirs = train(loss, weights := trained(model), weights, kind, rate)
        del model
        free(device)
        found = [ours(arguments, work, file, kind, half, (rows, length, rate)) for file in files]
    if half:
        results = [judged(name, batch, *pair) for batch, pair in enumerate(zip(found, runs))]
    else:
        difference = apart(found[0], theirs)
        results = [{"case": name, "apart": difference, "ours": found[0], "theirs": theirs, "ok": difference <= LIMIT}]
    for result in results:
        print(json.dumps(result), flush=True)
    return all(result["ok"] for result in results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", default="60GiB")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    failed = 0
    for case in CASES:
        if arguments.only and arguments.only not in case[0]:
            continue
        begun = time.monotonic()
        failed += not compare(arguments, case)
        print(f"{case[0]}: {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
