"""Trains models of real shapes with plimsoll and with PyTorch on one device, and compares the loss of every step.

    python reference/gpu_parity.py target/release/plimsoll [--device cuda] [--only NAME] [--tiny]

transformers writes a folder with random weights; both sides load it and take ten steps on the same texts, all of them in each
step, so that their order makes no difference. `--tiny` takes small shapes, so that the script itself can be tried anywhere.

f32: `apart` is the largest relative difference of a step's loss between plimsoll and PyTorch, whose products are f32 too.
bf16: both sides compute in bf16 and update an f32 copy of the weights; `apart` as above, against PyTorch with flash attention;
`backends` are the differences between each two of PyTorch's own ways to compute attention. The process fails where f32 is more
than 1e-5 apart, or bf16 more than twice as far as the two of PyTorch's that are farthest apart.
"""

import argparse
import gc
import itertools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from word_texts import losses_of, write_tokenizer

STEPS, IGNORED = 10, -100
# The math backend is exact enough for f32. `None` is transformers' own attention out of plain operations.
HALF_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
    None,
]
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


# Name, shape, what is trained, rows and length; bf16 cases have two backends.
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


def loss_of(model, tokens, mask, targets, labels: bool, half: bool):
    if half:
        # Logits that are rounded to bf16 would hide every other difference; plimsoll's are f32.
        hidden = model.model(input_ids=tokens).last_hidden_state
        logits = torch.nn.functional.linear(hidden.float(), model.lm_head.weight.float()).flatten(0, -2)
    else:
        seen = {"attention_mask": mask} if labels else {}
        logits = model(input_ids=tokens, **seen).logits.flatten(0, -2)
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)


def train(model, batch, kind: str, half: bool, labels: bool, rate: float) -> list[float]:
    """Ten steps; in bf16 the weights of the model are rounded copies of those that the optimizer updates."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().clone().float().requires_grad_() for weight in weights] if half else weights
    if half:
        model.to(torch.bfloat16)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, losses = optimizer_of(masters, kind, rate), []
    for _ in range(STEPS):
        loss = loss_of(model, *batch, labels, half)
        loss.backward()
        losses.append(loss.item())
        if half:
            for master, weight in zip(masters, weights):
                master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if half:
            with torch.no_grad():
                for master, weight in zip(masters, weights):
                    weight.copy_(master)
    return losses


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


def ours(arguments, work: Path, kind: str, half: bool, rows: int, length: int, rate: float) -> list[float]:
    command = [
        arguments.binary, "train", "--model", work / "model", "--data", work / "texts.jsonl", "--packing", "false",
        "--device", arguments.device, "--max-steps", STEPS, "--global-batch", rows, "--seq-len", length, "--learning-rate", rate,
        "--lr-scheduler-type", "constant", "--warmup-steps", 0, "--weight-decay", 0, "--max-grad-norm", 1, "--json",
        "--report-to", "none", "--output-dir", work / "out", "--data-cache", work / "cache",
        "--memory", arguments.memory,
    ]
    command += ["--optim", "sgd", "--momentum", 0.9] if kind == "sgd" else ["--adam-beta2", 0.95]
    command += ["--bf16"] if half else []
    command += ["--adapter", work / "adapter"] if kind == "lora" else []
    return losses_of(subprocess.run([str(word) for word in command], capture_output=True, text=True))


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


def compare(arguments, name: str, shape: str, kind: str, half: bool, rows: int, length: int) -> dict:
    model_class, config = shapes(arguments.tiny)[shape]
    labels = shape == "bert"
    with tempfile.TemporaryDirectory() as home:
        work = Path(home)
        write_model(work / "model", model_class, config, arguments.device)
        words = write_tokenizer(work / "model", config.vocab_size, labels)
        draw = random.Random(name)
        count = length - 3
        texts = [(" ".join(draw.choice(words) for _ in range(count)), row % 3) for row in range(rows)]
        with (work / "texts.jsonl").open("w") as file:
            for text, label in texts:
                file.write(json.dumps({"text": text} | ({"label": label} if labels else {})) + "\n")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(work / "model")
        batch = batch_of(texts, tokenizer, length, labels, arguments.device)
        runs = {}
        for backend in HALF_BACKENDS if half else [SDPBackend.MATH]:
            way = "eager" if backend is None else "sdpa"
            model = model_class.from_pretrained(work / "model", dtype=torch.float32, attn_implementation=way)
            model = model.to(arguments.device).train()
            if kind == "lora" and not (work / "adapter").exists():
                adapt(model, work / "adapter")
            key = way if backend is None else backend.name
            with sdpa_kernel(backend or SDPBackend.MATH):
                try:
                    runs[key] = train(model, batch, kind, half, labels, RATES[shape])
                except RuntimeError as error:
                    if "No available kernel" not in str(error):
                        raise
                    print(f"{name}: PyTorch has no kernel of {key} for it", flush=True)
            del model
            gc.collect()
            if arguments.device != "cpu":
                torch.cuda.empty_cache()
        found = ours(arguments, work, kind, half, rows, length, RATES[shape])
    theirs = next(iter(runs.values()))
    result = {"case": name, "apart": apart(found, theirs), "ours": found, "theirs": theirs}
    pairs = {f"{a} {b}": apart(runs[a], runs[b]) for a, b in itertools.combinations(runs, 2)}
    result |= {"backends": pairs} if half else {}
    result["ok"] = result["apart"] <= (2 * max(pairs.values()) if half else LIMIT)
    return result


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
        result = compare(arguments, *case)
        failed += not result["ok"]
        print(json.dumps(result), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
