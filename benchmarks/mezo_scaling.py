#!/usr/bin/env python3
"""Tries Adam-like scaling of MeZO's steps on the task of `zeroth_order_task.py`, in PyTorch, before anything is built for it.

    python3 benchmarks/mezo_scaling.py PLIMSOLL FOLDER [--device cuda] [--steps 4000] [--base-steps 1500] > table.md

The base model and the rows are those of that script, whose FOLDER serves this one too. A step probes four directions on both sides,
as there. Three ways to scale it:

    plain     the mean of slope times direction, as `--optim mezo`
    root      that, divided by the root of a running mean of squared slopes: one number, no memory
    adam      Adam's moments of that mean for every weight: twice the weights in memory

The loss of the base is checked against plimsoll's first. One seed; the validation loss after all steps, for a few learning rates each.
"""

import argparse
import json
import struct

import torch
import torch.nn.functional as F
import zeroth_order_task as task
from pathlib import Path

BEGIN, END, IGNORED, BATCH, DIRECTIONS, EPS = 256, 257, -100, 16, 4, 1e-3
RATES = dict(plain=(1e-4, 3e-4, 1e-3), root=(1e-4, 3e-4, 1e-3, 3e-3), adam=(1e-4, 3e-4, 1e-3))


def read_weights(folder):
    """The tensors of a folder with one safetensors file in f32."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    weights = {}
    for name, about in header.items():
        if name != "__metadata__":
            first, last = (8 + length + at for at in about["data_offsets"])
            weights[name] = torch.frombuffer(bytearray(data[first:last]), dtype=torch.float32).view(about["shape"])
    return weights


def rows(name):
    """Tokens and targets of every row, padded behind; the loss is that of the verdict."""
    pairs = [json.loads(line) for line in (task.WORK / f"{name}.jsonl").read_text().splitlines()]
    texts = [(row["prompt"].encode(), row["completion"].encode()) for row in pairs]
    length = max(len(prompt) + len(answer) for prompt, answer in texts) + 1
    tokens = torch.full((len(texts), length), END)
    targets = torch.full((len(texts), length), IGNORED)
    for row, (prompt, answer) in enumerate(texts):
        ids = torch.tensor([BEGIN, *prompt, *answer, END])
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, len(prompt) : len(ids) - 1] = ids[len(prompt) + 1 :]
    return tokens.to(ARGS.device), targets.to(ARGS.device)


class Llama:
    """The forward pass over one flat vector of weights, so that probes are a batch of vectors."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        weights = read_weights(folder)
        self.places, at = {}, 0
        for name, weight in weights.items():
            self.places[name] = (at, weight.shape)
            at += weight.numel()
        self.start = torch.cat([weight.flatten() for weight in weights.values()]).to(ARGS.device)

    def loss(self, flat, tokens, targets):
        def weight(name):
            at, shape = self.places[name]
            return flat[at : at + shape.numel()].view(shape)

        config, (rows, length) = self.config, tokens.shape
        heads, key_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
        theta = config.get("rope_theta") or config.get("rope_parameters", {}).get("rope_theta", 10000.0)
        size = config.get("head_dim") or width // heads
        angles = torch.outer(torch.arange(length, device=flat.device), theta ** (-torch.arange(0, size, 2, device=flat.device) / size))
        cos, sin = (f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin))
        norm = lambda x, name: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight(name)
        turn = lambda x: x * cos + torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1) * sin
        x = weight("model.embed_tokens.weight")[tokens]
        mask = torch.ones(length, length, dtype=torch.bool, device=flat.device).tril()
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = norm(x, at + "input_layernorm.weight")
            split = lambda name, count: (h @ weight(f"{at}self_attn.{name}.weight").T).view(rows, length, count, size).transpose(1, 2)
            q, k, v = turn(split("q_proj", heads)), turn(split("k_proj", key_heads)), split("v_proj", key_heads)
            k, v = (y.repeat_interleave(heads // key_heads, 1) for y in (k, v))
            scores = (q @ k.transpose(-1, -2) * size**-0.5).masked_fill(~mask, float("-inf"))
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, -1) @ weight(at + "self_attn.o_proj.weight").T
            h = norm(x, at + "post_attention_layernorm.weight")
            h = F.silu(h @ weight(at + "mlp.gate_proj.weight").T) * (h @ weight(at + "mlp.up_proj.weight").T)
            x = x + h @ weight(at + "mlp.down_proj.weight").T
        head = "lm_head.weight" if "lm_head.weight" in self.places else "model.embed_tokens.weight"
        logits = norm(x, "model.norm.weight") @ weight(head).T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def validation(model, flat, data):
    """The mean over all targets, some rows at a time."""
    sums = [(model.loss(flat, tokens, targets) * (targets != IGNORED).sum(), (targets != IGNORED).sum())
            for tokens, targets in zip(data[0].split(100), data[1].split(100))]
    return (sum(loss for loss, _ in sums) / sum(count for _, count in sums)).item()


def train(model, data, way, rate, held_out):
    """The validation loss at the end of a run."""
    draw = torch.Generator(device=ARGS.device).manual_seed(9)
    flat, mean, square, root = model.start.clone(), torch.zeros_like(model.start), torch.zeros_like(model.start), 0.0
    probe = torch.func.vmap(model.loss, in_dims=(0, None, None))
    for step in range(1, ARGS.steps + 1):
        picked = torch.randint(len(data[0]), (BATCH,), generator=draw, device=ARGS.device)
        z = torch.randn(DIRECTIONS, flat.numel(), generator=draw, device=ARGS.device)
        losses = probe(torch.cat([flat + EPS * z, flat - EPS * z]), data[0][picked], data[1][picked])
        slopes = (losses[:DIRECTIONS] - losses[DIRECTIONS:]) / (2 * EPS)
        move = slopes @ z / DIRECTIONS
        if way == "root":
            root = 0.99 * root + 0.01 * slopes.square().mean()
            move = move / ((root / (1 - 0.99**step)).sqrt() + 1e-8)
        if way == "adam":
            mean, square = 0.9 * mean + 0.1 * move, 0.999 * square + 0.001 * move**2
            move = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        flat = flat - rate * (1 - (step - 1) / ARGS.steps) * move
    return validation(model, flat, held_out)


@torch.no_grad()
def main():
    if not (task.WORK / "train.jsonl").exists():
        task.write_data()
    base = task.BASE | dict(data=task.WORK / "reports.jsonl", output_dir=task.WORK / "base", save_steps=10**6)
    task.run("pretraining", base | dict(max_steps=ARGS.base_steps))
    (start,) = task.evaluations("start", dict(max_steps=1, learning_rate=1e-12, seed=0)).values()
    model, data, held_out = Llama(task.WORK / "base"), rows("train"), rows("validation")
    here = validation(model, model.start, held_out)
    print(f"Validation loss of the base: {start:.4f} by plimsoll, {here:.4f} here\n", flush=True)
    if abs(start - here) > 1e-3 * start:
        raise SystemExit("the model here is not plimsoll's")
    print(f"| scaling | learning rate | validation loss after {ARGS.steps} steps |\n|---|--:|--:|")
    for way, rates in RATES.items():
        for rate in rates:
            print(f"| {way} | {rate:g} | {train(model, data, way, rate, held_out):.4f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--base-steps", type=int, default=1500)
    ARGS = task.ARGS = parser.parse_args()
    task.WORK = ARGS.folder.resolve()
    task.WORK.mkdir(parents=True, exist_ok=True)
    main()
