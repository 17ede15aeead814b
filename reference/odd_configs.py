"""Trains models of odd shapes with plimsoll and with PyTorch, and compares the loss of every step. Writes nothing that stays.

    python reference/odd_configs.py target/release/plimsoll [--only NAME] [--adapters] [--markdown FILE]

Per architecture ten models are drawn from a seed: head widths that do not follow from the model's, any number of key heads,
tied and own heads, every rotary form that plimsoll knows, sliding windows, odd vocabularies, files in shards, weights stored
as f32, bf16 or f16. transformers writes the folder; both sides load it from there and take 20 steps of AdamW in f32 on the
same tokens. Four further models of each get an adapter by PEFT, of odd ranks, patterns, targets and tokens, and train that.

Mixtures of experts draw their number of experts, how many a token goes to, shared experts and dense layers besides. Routers
choose, so two sides may part at a near tie: weights are drawn until every choice of 20 steps is clear in PyTorch, and PyTorch in
f32 and in f64 are near each other; how often another draw was needed is printed. Their balance
is counted by sequence, as plimsoll does unless asked otherwise; the formula is written down here a second time. Four further
models of each count it over the micro-batch, which transformers does by itself, with the padding of the texts masked.

A step sees all texts, so their order makes no difference. Which words a masked model hides is drawn by the rule of plimsoll's
data loader, which is written down here a second time.

Compared are the losses, step by step: `apart` is the largest relative difference. `rounding` is the same between PyTorch in
f32 and PyTorch in f64, for scale. Models that plimsoll does not know must be refused; what it says is listed.
"""

import argparse
import json
import math
import platform
import random
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import peft
import torch
import transformers
from models import IGNORED, adamw, scatter_weights
from word_texts import losses_of, write_tokenizer

STEPS, ROWS, LENGTH = 20, 6, 24
LIMIT = 1e-5
FULL, ADAPTED = 10, 4
RATE = 1e-3
ADAPTER, TOGETHER = "adapter", "micro-batch"  # kinds of runs beside the plain one
SEEDS = {"": "False", ADAPTER: "True", TOGETHER: "micro-batch"}
ROUNDING = 2e-6  # of PyTorch with experts; above it a draw amplifies rounding, and shows nothing
CLEAR = 2e-4  # a choice between experts that no rounding of 20 steps turns round


# ---- what is drawn ------------------------------------------------------------------------------------------------


def heads(draw: random.Random) -> dict[str, int]:
    """Any number of heads, and of key heads that share them evenly."""
    count = draw.choice([1, 2, 3, 4, 5, 6, 8])
    return {
        "num_attention_heads": count,
        "num_key_value_heads": draw.choice([keys for keys in range(1, count + 1) if count % keys == 0]),
        "head_dim": draw.choice([2, 6, 8, 10, 14, 16, 22]),
    }


def rope(draw: random.Random) -> dict[str, object]:
    theta = draw.choice([100.0, 5_000.0, 10_000.0, 500_000.0])
    return draw.choice([
        {"rope_type": "default", "rope_theta": theta},
        {"rope_type": "linear", "rope_theta": theta, "factor": draw.choice([1.5, 2.0, 7.0])},
        {"rope_type": "llama3", "rope_theta": theta, "factor": draw.choice([2.0, 8.0]), "low_freq_factor": 1.0,
         "high_freq_factor": draw.choice([2.0, 4.0]), "original_max_position_embeddings": draw.choice([8, 16])},
    ])


def decoder(draw: random.Random) -> dict[str, object]:
    return heads(draw) | {
        "vocab_size": draw.randrange(41, 400),
        "hidden_size": draw.choice([12, 20, 28, 36, 44, 52, 66]),
        "num_hidden_layers": draw.randrange(1, 5),
        "intermediate_size": draw.randrange(9, 140),
        "max_position_embeddings": draw.choice([LENGTH, 64, 2048]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "rope_parameters": rope(draw),
        "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": draw.choice([None, 0, 1]),
    }


def llama(draw: random.Random):
    shape = decoder(draw)
    # transformers wants a width that the heads divide, even where they do not share it.
    shape["hidden_size"] = shape["num_attention_heads"] * draw.choice([4, 7, 9])
    return transformers.LlamaConfig(**shape)


def mistral(draw: random.Random):
    shape = decoder(draw) | {"tie_word_embeddings": draw.random() < 0.5}
    return transformers.MistralConfig(**shape, sliding_window=draw.choice([None, 1, 3, 7, 4096]))


def windows(draw: random.Random) -> dict[str, object]:
    """Qwen's windows, in all layers or in none."""
    if draw.random() < 0.5:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": draw.choice([2, 5]), "max_window_layers": 0}


def qwen2(draw: random.Random):
    return transformers.Qwen2Config(**decoder(draw), **windows(draw))


def qwen3(draw: random.Random):
    return transformers.Qwen3Config(**decoder(draw), **windows(draw))


def gpt2(draw: random.Random):
    count = draw.choice([1, 2, 3, 5, 6])
    return transformers.GPT2Config(
        vocab_size=draw.randrange(41, 400), n_embd=count * draw.choice([3, 7, 8, 11]), n_head=count,
        n_layer=draw.randrange(1, 5), n_positions=draw.choice([LENGTH, 37, 1024]),
        layer_norm_epsilon=draw.choice([1e-5, 1e-3]), bos_token_id=1, eos_token_id=1,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )


def bert(draw: random.Random):
    count = draw.choice([1, 2, 3, 5, 6])
    return transformers.BertConfig(
        vocab_size=draw.randrange(41, 400), hidden_size=count * draw.choice([3, 7, 8, 11]), num_attention_heads=count,
        num_hidden_layers=draw.randrange(1, 5), intermediate_size=draw.randrange(9, 140),
        max_position_embeddings=draw.choice([LENGTH, 37, 512]), type_vocab_size=draw.randrange(1, 4),
        layer_norm_eps=draw.choice([1e-12, 1e-5]), pad_token_id=0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )


def bert_labels(draw: random.Random):
    config = bert(draw)
    config.num_labels = draw.randrange(2, 6)
    return config


def experts(draw: random.Random, shape: dict[str, object], count: str, names: tuple[str, ...] = ()) -> dict[str, object]:
    """A decoder with a router: from one expert of a token up to all of them. `names` say what else the family can have."""
    number = draw.choice([2, 3, 4, 5, 8])
    drawn = {
        count: number, "num_experts_per_tok": draw.randrange(1, number + 1), "output_router_logits": False,
        "router_aux_loss_coef": draw.choice([0.0, 0.01, 0.3]), "norm_topk_prob": draw.random() < 0.5,
        "moe_intermediate_size": draw.randrange(9, 60), "shared_expert_intermediate_size": draw.randrange(9, 60),
        "decoder_sparse_step": draw.choice([1, 1, 2]),
        "mlp_only_layers": draw.choice([[], [], [0]]) if shape["num_hidden_layers"] > 1 else [],
    }
    # The weight of a single expert that is normalised is 1, whatever the router says: AdamW would follow mere rounding.
    if count == "num_local_experts" or drawn["norm_topk_prob"]:
        drawn["num_experts_per_tok"] = draw.randrange(2, number + 1)
    always = (count, "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    # A step of two leaves a model of one layer without experts.
    if shape["num_hidden_layers"] < 3:
        drawn["decoder_sparse_step"] = 1
    return shape | {key: value for key, value in drawn.items() if key in always + names}


def even_heads(draw: random.Random) -> dict[str, object]:
    """A decoder whose heads share its width."""
    shape = decoder(draw)
    shape["hidden_size"] = shape["num_attention_heads"] * shape.pop("head_dim")
    return shape


def mixtral(draw: random.Random):
    shape = experts(draw, decoder(draw), "num_local_experts")
    return transformers.MixtralConfig(**shape, sliding_window=draw.choice([None, None, 3, 4096]))


def qwen2_moe(draw: random.Random):
    names = ("norm_topk_prob", "moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step",
             "mlp_only_layers")
    return transformers.Qwen2MoeConfig(**experts(draw, even_heads(draw), "num_experts", names), **windows(draw))


def qwen3_moe(draw: random.Random):
    names = ("norm_topk_prob", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers")
    return transformers.Qwen3MoeConfig(**experts(draw, decoder(draw), "num_experts", names), **windows(draw))


def olmoe(draw: random.Random):
    return transformers.OlmoeConfig(**experts(draw, even_heads(draw), "num_experts", ("norm_topk_prob",)))


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# Class, the draw of a configuration, and modules that can have adapters.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", llama, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "mistral": ("MistralForCausalLM", mistral, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "qwen2": ("Qwen2ForCausalLM", qwen2, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "qwen3": ("Qwen3ForCausalLM", qwen3, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "mixtral": ("MixtralForCausalLM", mixtral, ATTENTION),
    "qwen2-moe": ("Qwen2MoeForCausalLM", qwen2_moe, ATTENTION),
    "qwen3-moe": ("Qwen3MoeForCausalLM", qwen3_moe, ATTENTION),
    "olmoe": ("OlmoeForCausalLM", olmoe, ATTENTION),
    "gpt2": ("GPT2LMHeadModel", gpt2, ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]),
    "bert": ("BertForMaskedLM", bert, ["query", "key", "value", "intermediate.dense", "transform.dense"]),
    "bert-labels": ("BertForSequenceClassification", bert_labels, ["query", "key", "value", "intermediate.dense"]),
}
# Parameters of mixtures that can have adapters although they are no modules: all experts in one, and routers.
MIXTURES = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"]
PARAMETERS = ["experts.gate_up_proj", "experts.down_proj", "mlp.gate.weight"]
TABLES = {"gpt2": "wte", "bert": "word_embeddings", "bert-labels": "word_embeddings"}


def adapter_settings(draw: random.Random, name: str, layers: int, vocab: int) -> dict[str, object]:
    """Ranks, patterns and targets, each now and then."""
    modules = draw.sample(ARCHITECTURES[name][2], draw.randrange(1, 4))
    settings = {
        "r": draw.choice([1, 2, 5]), "lora_alpha": draw.choice([1, 4, 7]), "use_rslora": draw.random() < 0.3,
        "target_modules": list(modules), "fan_in_fan_out": name == "gpt2",
        "rank_pattern": {modules[0]: draw.choice([3, 4])} if draw.random() < 0.5 else {},
        "alpha_pattern": {f".*{modules[-1]}": draw.choice([2, 2.5])} if draw.random() < 0.5 else {},
    }
    form = draw.choice(["list", "table", "layers", "regex", "tokens"])
    # Of a head with a bias, PEFT 0.21 forgets the bias as soon as tokens are trained; plimsoll refuses that.
    if form == "tokens" and name != "bert":
        settings["trainable_token_indices"] = draw.sample(range(vocab), 5)
    elif form == "table":
        settings["target_modules"].append(TABLES.get(name, "embed_tokens"))
    elif form == "layers" and "transform.dense" not in modules:
        settings["layers_to_transform"] = draw.sample(range(layers), draw.randrange(1, layers + 1))
    elif form == "regex":
        ends = "|".join(module.replace(".", r"\.") for module in modules)
        settings["target_modules"] = rf".*\.({ends})"
        if layers > 1:
            settings["exclude_modules"] = r".*\.0\." + r".*"
            if all(module == "transform.dense" for module in modules):
                del settings["exclude_modules"]
    if name == "bert-labels":
        settings["task_type"] = "SEQ_CLS"
    # A choice of layers does not concern parameters; plimsoll refuses both together.
    if name in MIXTURES and "layers_to_transform" not in settings and draw.random() < 0.8:
        settings["target_parameters"] = draw.sample(PARAMETERS, draw.randrange(1, 4))
        if draw.random() < 0.5:
            settings["rank_pattern"] |= {settings["target_parameters"][0]: draw.choice([3, 4])}
    return settings


# ---- models that must be refused ----------------------------------------------------------------------------------


def refused() -> dict[str, tuple[str, transformers.PretrainedConfig]]:
    t = transformers
    shape = decoder(random.Random("refused")) | {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    return {
        "llama, yarn": ("LlamaForCausalLM", t.LlamaConfig(**shape | {"rope_parameters": yarn})),
        "llama, dynamic": ("LlamaForCausalLM", t.LlamaConfig(**shape | {"rope_parameters": dynamic})),
        "llama, attention_bias": ("LlamaForCausalLM", t.LlamaConfig(**shape, attention_bias=True)),
        "llama, mlp_bias": ("LlamaForCausalLM", t.LlamaConfig(**shape, mlp_bias=True)),
        "llama, gelu": ("LlamaForCausalLM", t.LlamaConfig(**shape, hidden_act="gelu")),
        "qwen2, window in one layer": ("Qwen2ForCausalLM", t.Qwen2Config(
            **shape, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
        "qwen3, attention_bias": ("Qwen3ForCausalLM", t.Qwen3Config(**shape, attention_bias=True)),
        "gpt2, n_inner": ("GPT2LMHeadModel", t.GPT2Config(vocab_size=64, n_embd=16, n_head=2, n_layer=1, n_inner=24)),
        "gpt2, relu": ("GPT2LMHeadModel", t.GPT2Config(
            vocab_size=64, n_embd=16, n_head=2, n_layer=1, activation_function="relu")),
        "bert, relu": ("BertForMaskedLM", t.BertConfig(
            vocab_size=64, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, hidden_act="relu")),
    }


# ---- texts --------------------------------------------------------------------------------------------------------


def write_texts(path: Path, draw: random.Random, words: list[str], labels: int) -> list[tuple[str, int]]:
    """Texts of all lengths that fit with what stands around them; every label occurs."""
    texts = []
    for row in range(ROWS):
        count = draw.randrange(3, LENGTH - 2)
        texts.append((" ".join(draw.choice(words) for _ in range(count)), row % labels))
    with path.open("w") as file:
        for text, label in texts:
            file.write(json.dumps({"text": text} | ({"label": label} if labels > 1 else {})) + "\n")
    return texts


MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def name_hash(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK64
    return value


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32 with ten rounds (Salmon et al., 2011)."""
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & MASK32, (a >> 32) ^ counter[3] ^ key[1], a & MASK32]
        key = [key[0] + 0x9E3779B9 & MASK32, key[1] + 0xBB67AE85 & MASK32]
    return counter


def hide(ids: list[int], row: int, epoch: int, mask: int, vocab: int) -> tuple[list[int], list[int]]:
    """The words of a text that plimsoll hides in an epoch, with seed 0; the first and last tokens stand around the text."""
    name = name_hash("data.mask")
    rotated = (name << 17 | name >> 47) & MASK64
    mixed = rotated ^ name * 0x9E3779B97F4A7C15 & MASK64
    tokens, targets = list(ids), [IGNORED] * len(ids)
    share = lambda percent: MASK32 * percent // 100
    for position in range(1, len(ids) - 1):
        chosen, how, other, _ = philox([position, row, epoch, 0], [mixed & MASK32, mixed >> 32])
        if chosen < share(15):
            targets[position] = ids[position]
            if how < share(80):
                tokens[position] = mask
            elif how < share(90):
                tokens[position] = other * vocab >> 32
    return tokens, targets


# ---- both sides ---------------------------------------------------------------------------------------------------


def plimsoll(binary: str, work: Path, *flags: object) -> subprocess.CompletedProcess:
    command = [
        binary, "train", "--data", work / "texts.jsonl", "--packing", "false", "--max-steps", STEPS, "--global-batch", ROWS,
        "--seq-len", LENGTH, "--learning-rate", RATE, "--lr-scheduler-type", "constant", "--warmup-steps", 0,
        "--weight-decay", 0.1, "--adam-beta2", 0.95, "--max-grad-norm", 1, "--data-cache", work / "cache",
        "--report-to", "none", "--memory", "512MiB", "--output-dir", work / "out", "--json", *flags,
    ]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def batches(name: str, tokenizer, texts: list[tuple[str, int]]):
    """Tokens, mask and targets of each step."""
    rows = [tokenizer(text)["input_ids"] for text, _ in texts]
    for step in range(STEPS):
        tokens = torch.zeros((ROWS, LENGTH), dtype=torch.long)
        mask, targets = torch.zeros_like(tokens), torch.full_like(tokens, IGNORED)
        for row, ids in enumerate(rows):
            if name == "bert":
                read, learned = hide(ids, row, step, tokenizer.mask_token_id, len(tokenizer))
            elif name == "bert-labels":
                read, learned = ids, []
            else:
                read, learned = ids, ids[1:] + [tokenizer.eos_token_id]
            tokens[row, :len(read)], mask[row, :len(read)] = torch.tensor(read), 1
            targets[row, :len(learned)] = torch.tensor(learned, dtype=torch.long)
        if name == "bert-labels":
            targets = torch.tensor([label for _, label in texts])
        yield tokens, mask, targets


def margin(router_logits, mask: torch.Tensor, chosen: int) -> float:
    """The least distance between the last expert chosen and the first that was not, over the tokens of texts."""
    if chosen >= router_logits[0].shape[-1]:
        return 1.0
    ordered = [layer[mask.flatten() == 1].sort(-1, descending=True).values for layer in router_logits]
    return min((rows[:, chosen - 1] - rows[:, chosen]).min().item() for rows in ordered)


def balance_by_sequence(router_logits, mask: torch.Tensor, chosen: int) -> torch.Tensor:
    """Mean over layers and tokens of E·Σ f·P, where a sequence has shares `f` of its choices and mean probabilities `P`."""
    of_tokens, total = mask[..., None].to(router_logits[0].dtype), 0.0
    tokens = of_tokens.sum(1)
    for logits in router_logits:
        logits = logits.view(*mask.shape, -1)
        choices = torch.zeros_like(logits).scatter(-1, logits.topk(chosen, -1).indices, 1.0)
        share = (choices * of_tokens).sum(1) / tokens
        mean = (logits.softmax(-1) * of_tokens).sum(1) / tokens
        total = total + logits.shape[-1] * ((share * mean).sum(-1) * tokens[:, 0]).sum() / tokens.sum()
    return total / len(router_logits)


def pytorch(
    model: torch.nn.Module, name: str, tokenizer, texts: list[tuple[str, int]], together: bool = False
) -> list[float]:
    """Losses of the head, step by step; empty where a router was undecided. transformers balances all texts `together`."""
    balance_together = getattr(sys.modules[type(model).__module__], "load_balancing_loss_func", None)
    optimizer, losses = adamw(model), []
    config = model.config
    chosen, balance = getattr(config, "num_experts_per_tok", None), getattr(config, "router_aux_loss_coef", 0.0)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for tokens, mask, targets in batches(name, tokenizer, texts):
        optimizer.zero_grad()
        # Causal models need no mask: nothing sees the padding behind a text. With one, padding further behind than a window sees
        # nothing, and its attention is not finite in f64.
        seen = {"attention_mask": mask} if name.startswith("bert") else {}
        out = model(input_ids=tokens, **seen, **{"output_router_logits": True} if chosen else {})
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)
        if chosen and margin(out.router_logits, mask, chosen) < CLEAR:
            return []
        added = 0.0
        if together:
            added = balance * balance_together(out.router_logits, out.router_logits[0].shape[-1], chosen, mask)
        elif chosen:
            added = balance * balance_by_sequence(out.router_logits, mask, chosen)
        (loss + added).backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return losses


def apart(ours: list[float], theirs: list[float]) -> float:
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    distances = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    return max(distances) if all(map(math.isfinite, distances)) else math.inf


def make(folder: Path, class_name: str, config, draw: random.Random) -> str:
    """Writes a model; returns how its weights are stored."""
    dtype = draw.choice(["float32", "bfloat16", "float16"])
    model = getattr(transformers, class_name)(config)
    scatter_weights(model, torch.Generator().manual_seed(draw.randrange(1 << 30)))
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith("mlp.gate.weight"):
                weight *= 10  # scores that differ, so that few choices are near a tie
    shards = draw.random() < 0.4
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
    return dtype + (", shards" if (folder / "model.safetensors.index.json").exists() else "")


def described(config, stored: str) -> str:
    keys = ["vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
            "num_key_value_heads", "head_dim", "intermediate_size", "sliding_window", "tie_word_embeddings",
            "num_local_experts", "num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size",
            "shared_expert_intermediate_size", "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef"]
    shape = " ".join(f"{key.removeprefix('num_')}={value}" for key in keys
                     if (value := config.to_dict().get(key)) is not None)
    rotary = (config.to_dict().get("rope_parameters") or {}).get("rope_type")
    return f"{shape}{f' rope={rotary}' if rotary else ''} {stored}"


def compare(binary: str, name: str, number: int, kind: str) -> tuple[float, float, str]:
    """The first draw whose routers are always decided; of a model without routers, the first."""
    for again in range(200):
        # Seeds of the first two kinds are those of earlier records.
        seed = f"{name} {number} {SEEDS[kind]}" + (f" {again}" if again else "")
        if drawn := compare_drawn(binary, name, seed, kind):
            difference, rounding, told = drawn
            return difference, rounding, told + (f" (draw {again + 1})" if again else "")
    raise SystemExit(f"{name} {number}: no draw without a near tie")


def compare_drawn(binary: str, name: str, seed: str, kind: str) -> tuple[float, float, str] | None:
    adapter, together = kind == ADAPTER, kind == TOGETHER
    class_name, draw_config, _ = ARCHITECTURES[name]
    draw = random.Random(seed)
    # transformers and PEFT draw from torch's own generator when they make weights and adapters.
    torch.manual_seed(zlib.crc32(seed.encode()))
    config = draw_config(draw)
    labels = config.num_labels if name == "bert-labels" else 1
    with tempfile.TemporaryDirectory() as home:
        work = Path(home)
        folder = work / "model"
        stored = make(folder, class_name, config, draw)
        words = write_tokenizer(folder, config.vocab_size, name.startswith("bert"))
        texts = write_texts(work / "texts.jsonl", draw, words, labels)
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        model_class, flags, told = getattr(transformers, class_name), ["--model", folder], described(config, stored)
        if adapter:
            settings = adapter_settings(draw, name, config.num_hidden_layers, config.vocab_size)
            write_adapter(model_class, folder, work / "adapter", settings, draw.randrange(1 << 30))
            flags += ["--adapter", work / "adapter"]
            told += " " + " ".join(f"{key}={value}" for key, value in settings.items() if value)
        if together:
            flags += ["--router-aux-loss", "micro-batch", "--micro-batch", ROWS]
        runs = []
        for dtype in [torch.float32, torch.float64]:
            of_experts = {"experts_implementation": "eager"} if "router_aux_loss_coef" in config.to_dict() else {}
            model = model_class.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **of_experts).train()
            if adapter:
                model = peft.PeftModel.from_pretrained(model, work / "adapter", is_trainable=True).to(dtype).train()
            runs.append(pytorch(model, name, tokenizer, texts, together))
            if not runs[-1]:
                return None
        if of_experts and apart(runs[0], runs[1]) > ROUNDING:
            return None
        ours = losses_of(plimsoll(binary, work, *flags))
        return apart(ours, runs[0]), apart(runs[0], runs[1]), told


def write_adapter(model_class, folder: Path, adapter: Path, settings: dict[str, object], seed: int) -> None:
    """Every number is drawn: zeros would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    model = model_class.from_pretrained(folder, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    for weight in (weight for weight in model.parameters() if weight.requires_grad):
        weight.data = weight.data + 0.1 * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(adapter)


def check_refused(binary: str) -> list[tuple[str, str]]:
    said = []
    for name, (class_name, config) in refused().items():
        with tempfile.TemporaryDirectory() as home:
            work = Path(home)
            getattr(transformers, class_name)(config).save_pretrained(work / "model")
            write_tokenizer(work / "model", config.vocab_size, class_name.startswith("Bert"))
            write_texts(work / "texts.jsonl", random.Random(0), [f"w{number}" for number in range(6, 30)], 1)
            done = plimsoll(binary, work, "--model", work / "model")
            if done.returncode == 0:
                raise SystemExit(f"{name}: was trained, and should have been refused")
            said.append((name, done.stderr.strip().splitlines()[0].replace(str(work), "…")))
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only", help="one architecture, or several with commas between")
    parser.add_argument("--adapters", action="store_true", help="adapters alone")
    parser.add_argument("--markdown", type=Path, help="where the record goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}"
    lines = [f"{versions}, Python {platform.python_version()}, {platform.machine()}", ""]
    worst = {}
    details = []
    for name in ARCHITECTURES:
        if arguments.only and name not in arguments.only.split(","):
            continue
        kinds = [("", 0 if arguments.adapters else FULL), (ADAPTER, ADAPTED)]
        for kind, count in kinds + ([(TOGETHER, ADAPTED)] if name in MIXTURES else []):
            called = f"{name}{', ' if kind else ''}{kind}"
            for number in range(count):
                difference, rounding, told = compare(arguments.binary, name, number, kind)
                print(f"{called} {number}: {difference:.1e}, rounding {rounding:.1e}: {told}", flush=True)
                details.append((called, number, difference, rounding, told))
                worst[called] = tuple(map(max, worst.get(called, (0.0, 0.0)), (difference, rounding)))
    lines += ["| architecture | models | worst apart | rounding of PyTorch |", "|---|--:|--:|--:|"]
    for kind, (difference, rounding) in worst.items():
        models = sum(detail[0] == kind for detail in details)
        lines.append(f"| {kind} | {models} | {difference:.1e} | {rounding:.1e} |")
    if arguments.only is None:
        lines += ["", "| refused | what is said |", "|---|---|"]
        lines += [f"| {name} | {said} |" for name, said in check_refused(arguments.binary)]
    lines += ["", "| model | apart | rounding | drawn |", "|---|--:|--:|---|"]
    lines += [f"| {kind} {number} | {a:.1e} | {b:.1e} | {told.replace('|', chr(92) + '|')} |"
              for kind, number, a, b, told in details]
    text = "\n".join(lines)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n")
    far = [kind for kind, (difference, _) in worst.items() if difference > LIMIT]
    if far:
        raise SystemExit(f"more than {LIMIT} apart: {', '.join(far)}")


if __name__ == "__main__":
    main()
