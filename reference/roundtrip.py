"""Trains small models with plimsoll and loads what it wrote in transformers and PEFT. Writes nothing that stays.

    python reference/roundtrip.py target/release/plimsoll

Per architecture: a folder as transformers saves it, with a tokenizer; plimsoll trains all its weights, then an adapter for
it, and merges that. Compared are, each time from the folders on disk,

    loss        plimsoll's last validation loss and the one transformers or PEFT computes from the same texts
    merged      logits of base and adapter in PEFT and of the merged folder in transformers, largest difference
    text        what `plimsoll generate --temperature 0` writes and what greedy generation in Python writes

Then other kinds of adapters, and adapters of chosen modules, ranks, layers and tokens, for models with tied and own heads and
for mixtures: the same, and each is trained further from its folder alone. Bottleneck adapters, which PEFT has not, are those
of bottleneck.py.

A classifier has its labels in place of text. The loss of hidden words depends on which are hidden, so of that model it is
asked that it guesses words better than before. Ends with an error when anything is missing, unknown or different.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bottleneck
import mixtures
import peft
import tokenizers
import torch
import transformers
from hf_models import configs
from models import scatter_weights
from safetensors.torch import load_file

TOKENIZERS = Path(__file__).resolve().parent.parent / "testdata" / "tokenizer"
VOCAB, POSITIONS = 336, 64
LOSS_APART, LOGITS_APART = 1e-5, 1e-5
PROMPT = "The harbour"

PLACES = ["harbour", "lighthouse", "forest", "valley", "river", "market"]
THINGS = ["ships wait for the tide", "fog comes in at night", "trees stand close", "snow lies until May",
          "stones are round", "nobody hurries"]
TEXTS = [f"The {place} is where {thing}." for place in PLACES for thing in THINGS]
# What a classifier is to tell apart: places by the sea and others.
CLASSES = ["sea" if number < 12 else "land" for number in range(len(TEXTS))]


def run(*arguments) -> str:
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"plimsoll {' '.join(map(str, arguments))}\n{done.stderr.decode()}")
    return done.stdout.decode()


def train(work: Path, steps: int, model: Path, out: Path, *flags, length: int | None = None) -> float:
    """The validation loss after the last step."""
    data = work / "texts.jsonl"
    lines = run("train", "--model", model, "--data", data, "--eval-data", data, "--eval-steps", steps, "--max-steps", steps,
                "--global-batch", 8, "--seq-len", length or POSITIONS, "--learning-rate", 5e-3, "--output-dir", out,
                "--data-cache", work / "cache", "--report-to", "none", "--json", *flags)
    records = map(json.loads, lines.splitlines())
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    return evaluations[-1]["eval_loss"]


def load(folder: Path, class_name: str) -> torch.nn.Module:
    model, told = getattr(transformers, class_name).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager")
    wrong = {what: names for what, names in told.items() if names}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def load_headless(folder: Path, adapter: Path, class_name: str) -> torch.nn.Module:
    """A model for words, with a new head whose labels are those that stand beside the adapter."""
    config = transformers.AutoConfig.from_pretrained(adapter)
    return getattr(transformers, class_name).from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager")


def adapted(model: torch.nn.Module, adapter: Path) -> torch.nn.Module:
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    stored = peft.utils.load_peft_weights(str(adapter))
    # PEFT writes a copy of a table beside its adapter, and reads an adapter without.
    known = [name for name in peft.get_peft_model_state_dict(model) if not name.endswith(".base_layer.weight")]
    if set(stored) != set(known):
        raise SystemExit(f"{adapter}: names differ: {sorted(set(stored) ^ set(known))}")
    if not any((weight - float("ia3_l" in name)).abs().max() > 0 for name, weight in stored.items() if "lora_A" not in name):
        raise SystemExit(f"{adapter}: learned nothing")
    return model


class Causal:
    """Models that write: the next token of every text, its end included."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.texts = [torch.tensor([tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]]) for text in TEXTS]

    @torch.no_grad()
    def logits(self, model) -> list[torch.Tensor]:
        # Behind the vectors of a prompt, which have no words.
        return [model(input_ids=text).logits[0, -text.shape[1]:] for text in self.texts]

    def loss(self, model) -> float:
        pairs = list(zip(self.logits(model), self.texts))
        logits = torch.cat([logits[:-1] for logits, _ in pairs])
        return torch.nn.functional.cross_entropy(logits, torch.cat([text[0, 1:] for _, text in pairs])).item()

    def same_answers(self, model, folder: Path, *flags) -> str:
        prompt = self.tokenizer(PROMPT, return_tensors="pt")
        written = model.generate(**prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
        new = written[0, prompt["input_ids"].shape[1]:]
        # The last character may lack bytes; plimsoll shows it when it is whole.
        theirs = PROMPT + self.tokenizer.decode(new, skip_special_tokens=True).rstrip("\ufffd")
        ours = run("generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 30, "--temperature", 0,
                   *flags).removesuffix("\n")
        if ours != theirs:
            raise SystemExit(f"{folder}: plimsoll wrote {ours!r}, Python {theirs!r}")
        return f"{len(new)} tokens"


class Classifier:
    """The class of each text."""

    def __init__(self, tokenizer):
        self.texts = [tokenizer(text, return_tensors="pt") for text in TEXTS]

    @torch.no_grad()
    def logits(self, model) -> list[torch.Tensor]:
        return [model(input_ids=text["input_ids"], attention_mask=text["attention_mask"]).logits for text in self.texts]

    def targets(self, model) -> torch.Tensor:
        return torch.tensor([model.config.label2id[name] for name in CLASSES])

    def loss(self, model) -> float:
        return torch.nn.functional.cross_entropy(torch.cat(self.logits(model)), self.targets(model)).item()

    def same_answers(self, model, folder: Path, *flags) -> str:
        right = int((torch.cat(self.logits(model)).argmax(1) == self.targets(model)).sum())
        if right != len(TEXTS):
            raise SystemExit(f"{folder}: {right} of {len(TEXTS)} labels are right")
        return f"{right} labels"


class Masked:
    """Hidden words: each in turn, given all others."""

    def __init__(self, tokenizer):
        self.mask = tokenizer.mask_token_id
        self.texts = [torch.tensor(tokenizer(text)["input_ids"]) for text in TEXTS[::6]]

    @torch.no_grad()
    def logits(self, model) -> list[torch.Tensor]:
        hidden = []
        for text in self.texts:
            rows = text.repeat(len(text) - 2, 1)  # (W, T), first and last are not words
            rows[torch.arange(len(rows)), torch.arange(len(rows)) + 1] = self.mask
            logits = model(input_ids=rows).logits
            hidden.append(logits[torch.arange(len(rows)), torch.arange(len(rows)) + 1])
        return hidden

    def loss(self, model) -> float:
        return torch.nn.functional.cross_entropy(
            torch.cat(self.logits(model)), torch.cat([text[1:-1] for text in self.texts])).item()


def base_folder(folder: Path, class_name: str, config, tokenizer: str):
    """A model as transformers saves it, its ids those of the tokenizer."""
    known = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / tokenizer)
    config.vocab_size, config.pad_token_id = VOCAB, 0
    config.bos_token_id, config.eos_token_id = known.bos_token_id, known.eos_token_id
    setattr(config, "n_positions" if config.model_type == "gpt2" else "max_position_embeddings", POSITIONS)
    if class_name == "BertForSequenceClassification":
        config.id2label = {0: "land", 1: "sea"}
        config.label2id = {"land": 0, "sea": 1}
    model = getattr(transformers, class_name)(config)
    scatter_weights(model, torch.Generator().manual_seed(7))
    model.save_pretrained(folder)
    for file in (TOKENIZERS / tokenizer).iterdir():
        shutil.copy(file, folder)
    return known


def hold(name: str, what: str, apart: float, allowed: float) -> str:
    if not apart <= allowed:
        raise SystemExit(f"{name}: {what} is {apart:.2e} apart, allowed is {allowed:.0e}")
    return f"{apart:.1e}"


def judge(work: Path, name: str, base_class: str, config, class_name: str | None = None) -> list[str]:
    """`class_name` is what is trained, where that has another head than the model."""
    work.mkdir()
    new_head, class_name = class_name is not None, class_name or base_class
    classify = class_name == "BertForSequenceClassification"
    records = [{"text": text} | ({"label": label} if classify else {}) for text, label in zip(TEXTS, CLASSES)]
    (work / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    base, full, adapter, merged = (work / part for part in ("base", "full", "adapter", "merged"))
    kinds = {"BertForMaskedLM": (Masked, "bert"), "BertForSequenceClassification": (Classifier, "bert")}
    kind, tokenizer = kinds.get(class_name, (Causal, "llama3" if "llama" in name else "chatml"))
    task = kind(base_folder(base, base_class, config, tokenizer))

    saved = ["--modules-to-save", "classifier"] if classify and not new_head else []
    flags = ["--task", "classify"] if new_head else []
    steps = 200 if classify else 40
    losses = [train(work, steps, base, full, *flags), train(work, steps, base, adapter, "--lora-r", 4, *saved, *flags)]
    run("export", "--merge", "--model", base, "--adapter", adapter, "--out", merged)
    start = load_headless(base, adapter, class_name) if new_head else load(base, class_name)
    models = [load(full, class_name), adapted(start, adapter), load(merged, class_name)]

    apart = max((one - other).abs().max().item() for one, other in zip(task.logits(models[1]), task.logits(models[2])))
    largest = max(logits.abs().max().item() for logits in task.logits(models[1]))
    cells = [hold(name, "merged", apart / largest, LOGITS_APART)]
    if kind is Masked:
        before, *after = [task.loss(model) for model in (load(base, class_name), *models)]
        if not all(loss < 0.95 * before for loss in after):
            raise SystemExit(f"{name}: words are guessed no better: {before:.3f}, then {after}")
        return [name, "–", "–", *cells, f"loss {before:.2f} → {after[0]:.2f}", f"→ {after[1]:.2f}"]
    pairs = list(zip(losses, [task.loss(model) for model in models[:2]]))
    cells = [hold(name, "loss", abs(ours - theirs) / theirs, LOSS_APART) for ours, theirs in pairs] + cells
    answers = [task.same_answers(models[0], full), task.same_answers(models[1], base, "--adapter", adapter)]
    task.same_answers(models[2], merged)
    return [name, *cells, *answers]


# Settings of adapters beside their rank, by the family's names of modules.
FORMS = {
    "dora": "--lora-target-modules {q},{down} --use-dora",
    "ia3": "--peft-type ia3",
    "pattern": r"--lora-target-modules .*\.({q}|{down}) --lora-exclude-modules .*\.0\..*{down} --lora-rank-pattern {q}=6",
    "layers": "--lora-target-modules {q},{down} --lora-layers-to-transform 1 --lora-alpha-pattern {down}=3 --use-rslora",
    "table": "--lora-target-modules {q},{table} --lora-rank-pattern {table}=3",
    "tokens": "--lora-target-modules {q} --trainable-token-indices 40,7,100",
}
# Settings of adapters for mixtures: experts by the names of their parameters, and all that PEFT counts as linear.
MIXED_FORMS = {
    "experts": "--lora-target-modules {q} --lora-target-parameters experts.gate_up_proj,experts.down_proj --lora-rank-pattern {down}=3",
    "all-linear": "--lora-target-modules all-linear",
    "attention-dora": "--lora-target-modules {q},o_proj --use-dora",
    "attention-ia3": "--peft-type ia3 --lora-target-modules k_proj,v_proj --feedforward-modules v_proj",
}
MODULES = {"gpt2": dict(q="c_attn", down="c_fc", table="wte")}


def judge_form(work: Path, name: str, form: str) -> list[str]:
    """One form of adapter for a model that writes."""
    work.mkdir()
    class_name, config = (configs() | mixtures.configs())[name]
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    base, adapter, further, merged = (work / part for part in ("base", "adapter", "further", "merged"))
    task = Causal(base_folder(base, class_name, config, "llama3" if "llama" in name else "chatml"))
    modules = MODULES.get(name, dict(q="q_proj", down="down_proj", table="embed_tokens"))
    rank = [] if "ia3" in form else ["--lora-r", 2]
    train(work, 20, base, adapter, *rank, *(FORMS | MIXED_FORMS)[form].format(**modules).split())
    loss = train(work, 20, adapter, further)
    run("export", "--merge", "--model", further, "--out", merged)
    model = adapted(load(base, class_name), further)
    whole = load(merged, class_name)
    apart = max((one - other).abs().max().item() for one, other in zip(task.logits(model), task.logits(whole)))
    largest = max(logits.abs().max().item() for logits in task.logits(model))
    cells = [hold(name, "loss", abs(loss - task.loss(model)) / loss, LOSS_APART),
             hold(name, "merged", apart / largest, LOGITS_APART)]
    answers = task.same_answers(model, further)
    # A GPT-2 with a head of its own is for transformers alone.
    if not (name == "gpt2" and form == "table"):
        task.same_answers(whole, merged)
    return [f"{name}, {form}", *cells, answers]


VECTORS = 6


def judge_vectors(work: Path, name: str, kind: str) -> list[str]:
    """Vectors before the text of a model that writes; they are never merged."""
    work.mkdir()
    class_name, config = (configs() | mixtures.configs())[name]
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    base, adapter, further = (work / part for part in ("base", "adapter", "further"))
    task = Causal(base_folder(base, class_name, config, "llama3" if "llama" in name else "chatml"))
    flags = ["--peft-type", f"{kind}_tuning", "--num-virtual-tokens", VECTORS, "--packing", "false"]
    train(work, 20, base, adapter, *flags, length=POSITIONS - VECTORS)
    loss = train(work, 20, adapter, further, "--packing", "false", length=POSITIONS - VECTORS)
    model = adapted(load(base, class_name), further)
    apart = hold(name, "loss", abs(loss - task.loss(model)) / loss, LOSS_APART)
    return [f"{name}, {kind}", apart, "–", task.same_answers(model, further)]


def with_bottlenecks(model: torch.nn.Module, adapter: Path) -> torch.nn.Module:
    model = bottleneck.adapted(model, json.loads((adapter / "adapter_config.json").read_text()))
    stored = load_file(adapter / "adapter_model.safetensors")
    known = {name for name, _ in model.named_parameters() if "adapter_" in name}
    stored = {name.removeprefix(bottleneck.PREFIX): weight for name, weight in stored.items()}
    if set(stored) != known:
        raise SystemExit(f"{adapter}: names differ: {sorted(set(stored) ^ known)}")
    if not all(weight.abs().max() > 0 for weight in stored.values()):
        raise SystemExit(f"{adapter}: learned nothing")
    model.load_state_dict(stored, strict=False)
    return model.eval()


def judge_bottleneck(work: Path, name: str) -> list[str]:
    """Small networks behind the layers of a model that writes; they are never merged."""
    work.mkdir()
    class_name, config = configs()[name]
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    base, adapter, further = (work / part for part in ("base", "adapter", "further"))
    task = Causal(base_folder(base, class_name, config, "llama3" if "llama" in name else "chatml"))
    train(work, 20, base, adapter, "--peft-type", "bottleneck", "--bottleneck-size", 6)
    loss = train(work, 20, adapter, further)
    model = with_bottlenecks(load(base, class_name), further)
    apart = hold(name, "loss", abs(loss - task.loss(model)) / loss, LOSS_APART)
    return [f"{name}, bottleneck", apart, "–", task.same_answers(model, further)]


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(run("--version").strip(), end=" · ")
    print(f"Python {platform.python_version()}", *(
        f"{module.__name__} {module.__version__}" for module in (torch, transformers, peft, tokenizers)), sep=" · ")
    print("\n| | loss, all weights | loss, adapter | merged | answers, all weights | answers, adapter |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (class_name, config) in (configs() | mixtures.configs()).items():
            print("| " + " | ".join(judge(Path(folder) / name, name, class_name, config)) + " |", flush=True)
        name, (class_name, config) = "bert-new-labels", configs()["bert"]
        row = judge(Path(folder) / name, name, class_name, config, "BertForSequenceClassification")
        print("| " + " | ".join(row) + " |")
        print("\n| adapter | loss | merged | answers |\n|---|--:|--:|--:|")
        for name in ["llama", "llama2", "qwen3", "gpt2"]:
            for form in FORMS:
                print("| " + " | ".join(judge_form(Path(folder) / f"{name}-{form}", name, form)) + " |", flush=True)
            for kind in ["prompt", "prefix"]:
                print("| " + " | ".join(judge_vectors(Path(folder) / f"{name}-{kind}", name, kind)) + " |", flush=True)
            print("| " + " | ".join(judge_bottleneck(Path(folder) / f"{name}-bottleneck", name)) + " |", flush=True)
        for name in mixtures.configs():
            for form in MIXED_FORMS:
                print("| " + " | ".join(judge_form(Path(folder) / f"{name}-{form}", name, form)) + " |", flush=True)
        print("| " + " | ".join(judge_vectors(Path(folder) / "qwen2-moe-prefix", "qwen2-moe", "prefix")) + " |", flush=True)


if __name__ == "__main__":
    BINARY = str(Path(sys.argv[1]).resolve())
    main()
