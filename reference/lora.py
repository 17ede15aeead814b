"""Golden adapters: tiny models with PEFT's LoRA, DoRA and IA3, trained for ten steps on the batches of `models.py`.

Writes `testdata/lora/<case>/`, for each case below:

    adapter_config.json, adapter_model.safetensors    as PEFT saves them, before the first step; B is not 0
    golden.safetensors                                the numbers to compare with

The model's own weights are those of `testdata/<family>.safetensors`, which `models.py` writes from the same seed;
other models have their own, under their names. In `golden.safetensors` parameters of the adapter have the names of
`adapter_model.safetensors`, and so have modules that are trained as a whole:

    <weight>          the model's weights, where no other file has them
    batch.<input>     tokens and targets, where no other file has them
    loss              () mean cross-entropy over the valid targets
    grad.<name>       its gradient, one per trained parameter
    losses, grad_norms, final.<name>    ten steps of AdamW, as in `models.py`
    merged.<weight>   weights after `merge_and_unload` of the adapter as saved, for two layers of each case
"""

import json
import sys
from pathlib import Path

import torch
from models import (
    HEADS,
    IGNORED,
    LAYERS,
    LENGTH,
    STEPS,
    VOCAB,
    WIDTH,
    adamw,
    bert,
    gpt2,
    llama,
    loss_of,
    masked_word_batch,
    next_word_batch,
    scatter_weights,
)
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import (
    BertForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SEED = 20


# What every decoder here has beside its family's own.
DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=LENGTH,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    attn_implementation="eager",
)


def qwen2() -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(Qwen2Config(**DECODER, tie_word_embeddings=True))


def mistral() -> MistralForCausalLM:
    return MistralForCausalLM(MistralConfig(**DECODER, sliding_window=5))


def qwen3() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=12))


def bert_labels() -> BertForSequenceClassification:
    config = bert().config
    config.num_labels = 3
    return BertForSequenceClassification(config)


def label_batch(random: torch.Generator) -> dict[str, torch.Tensor]:
    return masked_word_batch(random) | {"targets": torch.tensor([2, 0, 1, 2])}


# Models that no other golden file holds; each has its weights in the case of its name.
OWN = [qwen2, mistral, qwen3, bert_labels]

CASES = {
    "llama": (llama, next_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "llama_rslora": (
        llama,
        next_word_batch,
        dict(target_modules=["q_proj", "v_proj", "layers.1.mlp.down_proj"], r=3, lora_alpha=6, use_rslora=True),
    ),
    "llama_saved": (
        llama,
        next_word_batch,
        dict(target_modules=["q_proj", "v_proj"], r=2, lora_alpha=4, modules_to_save=["lm_head", "norm"]),
    ),
    "gpt2": (
        gpt2,
        next_word_batch,
        dict(target_modules=["c_attn", "c_proj", "c_fc"], r=4, lora_alpha=8, fan_in_fan_out=True),
    ),
    "bert": (bert, masked_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "qwen2": (qwen2, next_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "mistral": (mistral, next_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    "qwen3": (qwen3, next_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8)),
    # PEFT adds the head to what is saved, under each name that any family has for one.
    "bert_labels": (
        bert_labels,
        label_batch,
        dict(target_modules=["query", "value"], r=4, lora_alpha=8, task_type="SEQ_CLS"),
    ),
    # A module whose whole name is a target counts in every layer; the first pattern that fits says rank or alpha.
    "llama_patterns": (
        llama,
        next_word_batch,
        dict(
            target_modules=["q_proj", "v_proj", "up_proj", "model.layers.0.mlp.down_proj", "nowhere"],
            exclude_modules=["layers.1.self_attn.v_proj"],
            layers_to_transform=[1],
            layers_pattern="layers",
            r=3,
            lora_alpha=6,
            rank_pattern={"mlp.*": 2, "q_proj": 5},
            alpha_pattern={r"layers\.\d+\.mlp\.up_proj": 9, "up_proj|q_proj": 1.5},
            use_rslora=True,
        ),
    ),
    "llama_regex": (
        llama,
        next_word_batch,
        dict(
            target_modules=r"(?!.*layers\.0\.mlp).*\.(q|k|down)_proj|model\.embed_tokens",
            exclude_modules=r".*\.1\.self_attn\.k_proj",
            r=3,
            lora_alpha=6,
        ),
    ),
    # PEFT puts a copy of the table beside an adapter that is called so.
    "llama_embedding": (
        llama,
        next_word_batch,
        dict(target_modules=["embed_tokens", "q_proj"], r=2, lora_alpha=4, rank_pattern={"embed_tokens": 3}),
    ),
    # The table is the output head too; the adapter is for what is read, not for what is written.
    "gpt2_embedding": (
        gpt2,
        next_word_batch,
        dict(target_modules=["wte", "c_attn"], r=2, lora_alpha=4, fan_in_fan_out=True),
    ),
    "bert_embedding": (
        bert,
        masked_word_batch,
        dict(target_modules=["word_embeddings", "query"], r=2, lora_alpha=4),
    ),
    "llama_tokens": (
        llama,
        next_word_batch,
        dict(target_modules=["v_proj"], r=2, lora_alpha=4, trainable_token_indices=[7, 3, 60]),
    ),
    "llama_tokens_head": (
        llama,
        next_word_batch,
        dict(
            target_modules=["v_proj"],
            r=2,
            lora_alpha=4,
            trainable_token_indices={"embed_tokens": [3, 7], "lm_head": [63, 0, 3]},
        ),
    ),
    # The lengths of rows are trained too: every linear layer, one with a bias, and weights stored (in, out).
    "llama_dora": (llama, next_word_batch, dict(target_modules="all-linear", r=4, lora_alpha=8, use_dora=True)),
    "qwen2_dora": (
        qwen2,
        next_word_batch,
        dict(target_modules=["q_proj", "v_proj", "up_proj"], r=3, lora_alpha=6, use_rslora=True, use_dora=True),
    ),
    "gpt2_dora": (
        gpt2,
        next_word_batch,
        dict(target_modules=["c_attn", "c_proj", "c_fc"], r=4, lora_alpha=8, fan_in_fan_out=True, use_dora=True),
    ),
    # Factors of columns: of results, and of what the last layer of a network reads.
    "llama_ia3": (
        llama,
        next_word_batch,
        dict(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    ),
    "gpt2_ia3": (
        gpt2,
        next_word_batch,
        dict(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], fan_in_fan_out=True),
    ),
    "bert_ia3": (
        bert,
        masked_word_batch,
        dict(
            target_modules=r".*\.(key|value)|.*\.output\.dense",
            exclude_modules=["layer.1.attention.self.key"],
            feedforward_modules=r".*\d\.output\.dense",
            modules_to_save=["predictions.transform.dense"],
        ),
    ),
    # Tied: the tokens change in the table and in the head.
    "qwen2_tokens": (
        qwen2,
        next_word_batch,
        dict(target_modules=["v_proj"], r=2, lora_alpha=4, trainable_token_indices=[7, 3, 60]),
    ),
}

MERGED = {
    "llama": ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"],
    "gpt2": ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight"],
    "bert": ["bert.encoder.layer.0.attention.self.key.weight", "bert.encoder.layer.1.intermediate.dense.weight"],
    "llama_rslora": ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"],
    "llama_saved": ["model.layers.0.self_attn.q_proj.weight", "lm_head.weight"],
    "qwen2": ["model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.up_proj.weight"],
    "mistral": ["model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.up_proj.weight"],
    "qwen3": ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight"],
    "bert_labels": ["bert.encoder.layer.0.attention.self.query.weight", "bert.encoder.layer.1.attention.self.value.weight"],
    "llama_patterns": ["model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"],
    "llama_regex": ["model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"],
    "llama_embedding": ["model.embed_tokens.weight"],
    "gpt2_embedding": ["transformer.wte.weight", "transformer.h.1.attn.c_attn.weight"],
    "bert_embedding": ["bert.embeddings.word_embeddings.weight"],
    "llama_dora": ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"],
    "qwen2_dora": ["model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.up_proj.weight"],
    "gpt2_dora": ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight"],
    "llama_ia3": ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"],
    "gpt2_ia3": [
        "transformer.h.0.attn.c_attn.weight",
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.1.mlp.c_proj.weight",
    ],
    "bert_ia3": [
        "bert.encoder.layer.0.attention.self.key.bias",
        "bert.encoder.layer.0.attention.output.dense.weight",
        "bert.encoder.layer.1.output.dense.weight",
    ],
    "llama_tokens": ["model.layers.0.self_attn.v_proj.weight", "model.embed_tokens.weight"],
    "llama_tokens_head": ["model.layers.0.self_attn.v_proj.weight", "model.embed_tokens.weight", "lm_head.weight"],
    "qwen2_tokens": ["model.layers.0.self_attn.v_proj.weight", "model.embed_tokens.weight"],
}


def base(build, make_batch):
    """The model and the batch of `models.py`, number by number."""
    random = torch.Generator().manual_seed(SEED)
    model = build().train()
    scatter_weights(model, random)
    return model, make_batch(random)


def adapted(model: torch.nn.Module, settings: dict) -> PeftModel:
    """Every trained number drawn, so that none of them hides a mistake."""
    random = torch.Generator().manual_seed(SEED + 1)
    config = IA3Config if "feedforward_modules" in settings else LoraConfig
    model = get_peft_model(model, config(**settings)).train()
    for name, weight in model.named_parameters():
        if weight.requires_grad and "lora_magnitude" in name:
            weight.data = weight.data * (1 + 0.2 * torch.randn(weight.shape, generator=random))
        elif weight.requires_grad and "ia3_l" in name:
            weight.data = 1 + 0.2 * torch.randn(weight.shape, generator=random)
        elif weight.requires_grad and "lora_" in name:
            weight.data = 0.2 * torch.randn(weight.shape, generator=random)
        elif weight.requires_grad:
            weight.data = weight.data + 0.05 * torch.randn(weight.shape, generator=random)
    return model


def trained(model: PeftModel, pick) -> dict[str, torch.Tensor]:
    """`pick(parameter)` of every trained parameter, under the names PEFT saves."""
    picked = {name: pick(weight) for name, weight in model.named_parameters() if weight.requires_grad}
    return {name: value.detach().clone().contiguous() for name, value in get_peft_model_state_dict(model, picked).items()}


def sort_names(path: Path) -> None:
    """PEFT writes sets, in whatever order, and the base's path; a golden file is the same every time and everywhere."""
    config = json.loads(path.read_text())
    if config.get("base_model_name_or_path"):
        config["base_model_name_or_path"] = Path(config["base_model_name_or_path"]).name
    for key in ["target_modules", "target_parameters", "exclude_modules", "feedforward_modules", "modules_to_save"]:
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def record(case: str, folder: Path) -> None:
    build, make_batch, settings = CASES[case]
    model, batch = base(build, make_batch)
    tensors = {}
    if build in OWN and case == build.__name__:
        tensors |= {name: weight.detach().clone() for name, weight in model.named_parameters()}
        tensors |= {f"batch.{name}": tensor.to(torch.int32) for name, tensor in batch.items()}
    model = adapted(model, settings)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    sort_names(folder / "adapter_config.json")

    valid = int((batch["targets"] != IGNORED).sum())
    loss = loss_of(model, batch, valid)
    loss.backward()
    tensors["loss"] = loss.detach()
    tensors |= {f"grad.{name}": gradient for name, gradient in trained(model, lambda weight: weight.grad).items()}

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = adamw(model)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch, valid)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(weights, 1.0).detach())
        optimizer.step()
    tensors |= {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    tensors |= {f"final.{name}": weight for name, weight in trained(model, lambda weight: weight).items()}

    merged = PeftModel.from_pretrained(base(build, make_batch)[0], folder).merge_and_unload().state_dict()
    tensors |= {f"merged.{name}": merged[name].clone().contiguous() for name in MERGED[case]}
    save_file(tensors, folder / "golden.safetensors")
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norm {norms[0]:.3f}, {len(weights)} trained")


def main() -> None:
    """All cases, or those that are named."""
    testdata = Path(__file__).resolve().parent.parent / "testdata"
    # One thread: the order of sums, and so the file's bytes, must not depend on the machine's cores.
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        folder = testdata / "lora" / case
        folder.mkdir(parents=True, exist_ok=True)
        record(case, folder)


if __name__ == "__main__":
    main()
