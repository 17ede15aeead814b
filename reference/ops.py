"""Writes testdata/ops.safetensors: inputs and expected results of every op, from PyTorch.

Tensors are named `<op>.<variant>/<role>.<index>`: role `in` for inputs and `out` for results, both in the
order of `op.rs`, and `state` for what an output holds before it is added to or updated in place. The Rust
functions `golden` in crates/exec/src/cases give the parameters of each variant; keep the two lists in step.

Inputs are f32; results are computed in f64 and rounded to f32. Gradients come from autograd alone.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from probes import normals, subspace
from projections import apollo
from safetensors.torch import save_file
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.optimization import Adafactor

IGNORE = -100
golden: dict[str, torch.Tensor] = {}


def record(name, inputs, outputs, state=()):
    """Stores one case."""
    for role, tensors in (("in", inputs), ("out", outputs), ("state", state)):
        for index, tensor in enumerate(tensors):
            key = f"{name}/{role}.{index}"
            assert key not in golden, key
            tensor = tensor.detach()
            if tensor.dtype == torch.float64:
                tensor = tensor.float()
            if tensor.dtype == torch.int64:
                tensor = tensor.int()
            golden[key] = tensor.clone().contiguous()


def normal(*shape):
    """Normal numbers that f32 holds exactly, as f64."""
    return torch.randn(*shape, dtype=torch.float32).double()


def with_gradients(function, *inputs):
    """The result of `function`, a random cotangent of it, and the gradients of the inputs."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    dy = normal(*y.shape)
    return y, dy, torch.autograd.grad(y, inputs, dy)


def movement():
    x = normal(2, 3, 4)
    record("reshape.flat", [x], [x.reshape(6, 4)])
    record("transpose.cycle", [x], [x.permute(2, 0, 1)])
    record("transpose.heads", [(h := normal(2, 3, 2, 5))], [h.transpose(1, 2)])
    record("slice.middle", [x], [x[:, 1:3]])
    record("slice.last", [x], [x[..., 2:]])
    record("pad.middle", [x], [F.pad(x, (0, 0, 2, 1))])
    record("concat.middle", parts := [normal(2, 1, 3), normal(2, 4, 3)], [torch.cat(parts, 1)])
    record("broadcast.rows", [r := normal(3)], [r.expand(4, 3)])
    record("broadcast.columns", [r], [r.unsqueeze(1).expand(3, 5)])
    numbers = torch.cat([normal(20).float(), torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 65519.0, 65520.0, 6e-8, 0.0])])
    for half, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
        record(f"cast.to_{name}", [numbers], [numbers.to(half)])
        record(f"cast.from_{name}", [numbers.to(half)], [numbers.to(half).float()])
    record("cast.from_i32", [i := torch.tensor([0, -3, 77, 16777217], dtype=torch.int32)], [i.float()])


def elementwise():
    a, b, row = normal(3, 5), normal(3, 5), normal(5)
    record("add.same", [a, b], [a + b])
    record("add.row", [a, row], [a + row])
    record("mul.same", [a, b], [a * b])
    record("mul.row", [a, row], [a * row])
    record("scale.minus", [a], [a * -0.5])
    x = 3 * normal(4, 6).float().double()
    functions = (
        ("silu", "plain", F.silu),
        ("gelu", "tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("gelu", "erf", F.gelu),
    )
    for op, variant, function in functions:
        y, dy, (dx,) = with_gradients(function, x)
        record(f"{op}.{variant}", [x], [y])
        record(f"{op}_grad.{variant}", [x, dy], [dx])
    u = normal(4, 6)
    y, dy, gradients = with_gradients(lambda g, u: F.silu(g) * u, x, u)
    record("swiglu.plain", [x, u], [y])
    record("swiglu_grad.plain", [x, u, dy], gradients)


def products():
    x, bias = normal(2, 3, 5), normal(4)
    for variant, w, forward in (
        ("rows", normal(4, 5), lambda x, w, b: F.linear(x, w, b)),
        ("transposed", normal(5, 4), lambda x, w, b: x @ w + b),
    ):
        y, dy, (dx, dw, _) = with_gradients(forward, x, w, bias)
        record(f"linear.{variant}_bias", [x, w, bias], [y])
        record(f"linear.{variant}", [x, w], [forward(x, w, torch.zeros_like(bias))])
        record(f"linear_grad_input.{variant}", [w, dy], [dx])
        record(f"linear_grad_weight.{variant}", [x, dy], [dw])
        held = normal(*w.shape)
        record(f"linear_grad_weight.{variant}_adding", [x, dy], [held + dw], [held])
    a, b = normal(2, 3, 5), normal(2, 5, 4)
    at, bt = a.mT.contiguous(), b.mT.contiguous()
    record("matmul.nn", [a, b], [a @ b])
    record("matmul.nt", [a, bt], [a @ b])
    record("matmul.tn", [at, b], [a @ b])
    record("matmul.tt", [at, bt], [a @ b])
    for variant, window, stride, padding in (("same", (3, 3), 1, 1), ("stride", (2, 3), 2, 0)):
        image, w, bias = normal(2, 3, 6, 5), normal(4, 3, *window), normal(4)
        forward = lambda x, w, b: F.conv2d(x, w, b, stride, padding)
        y, dy, (dx, dw, _) = with_gradients(forward, image, w, bias)
        record(f"conv2d.{variant}_bias", [image, w, bias], [y])
        record(f"conv2d.{variant}", [image, w], [forward(image, w, None)])
        record(f"conv2d_grad_input.{variant}", [w, dy], [dx])
        record(f"conv2d_grad_weight.{variant}", [image, dy], [dw])


def norms():
    x = normal(2, 3, 7)
    record("sum.leading", [x], [x.sum((0, 1))])
    record("sum.middle", [x], [x.sum(1)])
    record("sum.all", [x], [x.sum()])
    y, dy, (dx,) = with_gradients(lambda x: F.softmax(x, -1), x)
    record("softmax.plain", [x], [y])
    record("softmax_grad.plain", [y, dy], [dx])
    w, b, epsilon = normal(7), normal(7), 1e-5
    y, dy, (dx, dw, _) = with_gradients(lambda x, w, b: F.layer_norm(x, (7,), w, b, epsilon), x, w, b)
    _, mean, rstd = torch.native_layer_norm(x, (7,), w, b, epsilon)
    mean, rstd = mean.flatten(), rstd.flatten()
    record("layer_norm.plain", [x, w, b], [y, mean, rstd])
    record("layer_norm_grad_input.plain", [x, w, mean, rstd, dy], [dx])
    record("layer_norm_grad_weight.plain", [x, mean, rstd, dy], [dw])
    y, dy, (dx, dw) = with_gradients(lambda x, w: F.rms_norm(x, (7,), w, epsilon), x, w)
    rstd = torch.rsqrt(x.pow(2).mean(-1) + epsilon).flatten()
    record("rms_norm.plain", [x, w], [y, rstd])
    record("rms_norm_grad_input.plain", [x, w, rstd, dy], [dx])
    record("rms_norm_grad_weight.plain", [x, rstd, dy], [dw])


def embedding():
    table, ids = normal(6, 4), torch.tensor([[0, 5, 2], [2, 2, 1]])
    y, dy, (dtable,) = with_gradients(lambda table: F.embedding(ids, table), table)
    record("embedding.plain", [table, ids], [y])
    record("embedding_grad.plain", [ids, dy], [dtable])


def rope():
    x = normal(2, 5, 3, 8)
    frequencies = (10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)).float().double()
    given = torch.tensor([[0, 1, 2, 0, 1], [7, 8, 9, 10, 300]])
    counted = torch.arange(5).expand(2, 5)
    for variant, positions in (("counted", counted), ("given", given)):
        angles = positions.double().unsqueeze(-1) * frequencies
        angles = torch.cat([angles, angles], -1)  # the halves of a head turn alike
        rotate = lambda x: apply_rotary_pos_emb(x, x, angles.cos(), angles.sin(), unsqueeze_dim=2)[0]
        y, dy, (dx,) = with_gradients(rotate, x)
        rest = [frequencies] + ([positions] if variant == "given" else [])
        record(f"rope.{variant}", [x, *rest], [y])
        record(f"rope.{variant}_inverse", [dy, *rest], [dx])


def attention():
    # (batch, length, query heads, key heads, width), causal, window, documents
    cases = {
        "causal": ((2, 7, 4, 2, 8), True, None, False),
        "all": ((1, 5, 3, 3, 6), False, None, False),
        "window": ((1, 9, 2, 1, 4), True, 3, False),
        "near": ((1, 9, 2, 1, 4), False, 3, False),
        "documents": ((2, 8, 2, 1, 4), True, None, True),
    }
    starts = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 7], [0, 0, 2, 2, 2, 2, 2, 2]])
    for variant, ((batch, length, heads, key_heads, width), causal, window, documents) in cases.items():
        q = normal(batch, length, heads, width)
        k, v = normal(batch, length, key_heads, width), normal(batch, length, key_heads, width)
        t, s = torch.arange(length).unsqueeze(1), torch.arange(length)
        visible = torch.ones(batch, length, length, dtype=torch.bool)
        if causal:
            visible &= s <= t
        if window is not None:
            visible &= (t - s).abs() < window
        if documents:
            visible &= starts.unsqueeze(1) == starts.unsqueeze(2)
        visible = visible.unsqueeze(1)

        def forward(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
            return o.transpose(1, 2)

        o, d_o, gradients = with_gradients(forward, q, k, v)
        keys = k.repeat_interleave(heads // key_heads, 2)
        scores = torch.einsum("bthd,bshd->bhts", q, keys) / width**0.5
        lse = scores.masked_fill(~visible, -torch.inf).logsumexp(-1)
        rest = [starts] if documents else []
        record(f"attention.{variant}", [q, k, v, *rest], [o, lse])
        record(f"attention_grad.{variant}", [q, k, v, o, lse, d_o, *rest], gradients)


def losses():
    targets, scale = torch.tensor([3, IGNORE, 0, 8, 8]), torch.tensor(0.25).double()

    def loss_of(logits):
        return scale * F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")

    logits = (3 * normal(5, 9)).float().double().requires_grad_()
    loss = loss_of(logits)
    (dlogits,) = torch.autograd.grad(loss, logits)
    record("cross_entropy.plain", [logits, targets, scale], [loss])
    record("cross_entropy_grad.plain", [logits, targets, scale], [dlogits])

    x, w, b = (y.requires_grad_() for y in (normal(5, 6), normal(9, 6), normal(9)))
    for variant, bias in (("plain", []), ("bias", [b])):
        loss = loss_of(F.linear(x, w, *bias))
        gradients = torch.autograd.grad(loss, [x, w, *bias])
        inputs = [x, w, targets, scale, *bias]
        record(f"head_loss.{variant}", inputs, [loss])
        record(f"head_loss_grad.{variant}", inputs, [loss, *gradients])
    held = normal(9, 6)
    loss = loss_of(F.linear(x, w))
    dx, dw = torch.autograd.grad(loss, [x, w])
    zeros = [torch.zeros(()), torch.zeros(5, 6)]
    record("head_loss_grad.adding", [x, w, targets, scale], [loss, dx, held + dw], [*zeros, held])
    x2, w2 = normal(5, 2).requires_grad_(), normal(9, 2)
    loss = loss_of(F.linear(x, w) + F.linear(x2, w2))
    gradients = torch.autograd.grad(loss, [x, x2, w])
    record("head_loss.second", [x, w, targets, scale, x2, w2], [loss])
    record("head_loss_grad.second", [x, w, targets, scale, x2, w2], [loss, *gradients])


def updates():
    x, held = normal(3, 4), normal(3, 4)
    record("accumulate.adding", [x], [held + x], [held])
    y = normal(5)
    norm = torch.nn.utils.get_total_norm([x, y])
    record("sum_squares.two", [x, y], [norm**2])
    for variant, limit in (("above", 1.0), ("below", 100.0)):
        parameter = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
        parameter.grad = x.clone()
        norm = torch.nn.utils.clip_grad_norm_([parameter], limit)
        record(f"clip_scale.{variant}", [norm**2], [norm, parameter.grad[0, 0] / x[0, 0]])

    parameter = normal(3, 4).requires_grad_()
    # Rates that f32 holds exactly, so that both sides work with the same ones.
    rates = dict(lr=2**-7, betas=(0.875, 1 - 2**-10), eps=2**-20, weight_decay=0.125)
    optimizer = torch.optim.AdamW([parameter], **rates)
    for step, scale in ((1, 1.0), (2, 0.5)):
        grad = normal(3, 4)
        parameter.grad = scale * grad
        moments = optimizer.state.get(parameter, {})
        zeros = torch.zeros(3, 4, dtype=torch.float64)
        before = [parameter.detach(), moments.get("exp_avg", zeros), moments.get("exp_avg_sq", zeros)]
        before = [state.clone() for state in before]
        optimizer.step()
        moments = optimizer.state[parameter]
        scalars = [torch.tensor(number) for number in (rates["lr"], float(step), scale)]
        after = [parameter, moments["exp_avg"], moments["exp_avg_sq"]]
        record(f"adamw.step{step}", [grad, *scalars], after, before)
    for name, rates in (
        ("plain", {}),
        ("momentum", {"momentum": 0.875}),
        ("nesterov", {"momentum": 0.875, "nesterov": True}),
    ):
        descent(name, {"lr": 0.0078125, "weight_decay": 0.125, **rates})


def descent(name, rates):
    """The second step of SGD, when its running sum is no longer zero, on a gradient that is scaled."""
    scale, parameter = 0.375, normal(5, 7).requires_grad_()
    optimizer = torch.optim.SGD([parameter], **rates)
    for _ in range(2):
        grad = normal(5, 7)
        held = [state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state]
        before = [tensor.detach().clone() for tensor in [parameter, *held]]
        parameter.grad = scale * grad
        optimizer.step()
    after = [parameter, *(state["momentum_buffer"] for state in optimizer.state.values() if state)]
    scalars = [torch.tensor(rates["lr"]), torch.tensor(scale)]
    record(f"sgd.{name}", [grad, *scalars], after, before)


def hyperbolic():
    """Behind the others, so that the numbers drawn for the other groups stay as they were."""
    y, dy, (dx,) = with_gradients(torch.tanh, x := normal(4, 6))
    record("tanh.plain", [x], [y])
    # The kernel is given the forward result as f32 holds it.
    y = y.float().double()
    record("tanh_grad.plain", [y, dy], [dy * (1 - y**2)])
    torch.testing.assert_close(dy * (1 - y**2), dx, rtol=1e-6, atol=1e-6)


def logistic():
    """Behind the groups that were there, so that their numbers stay as they were."""
    y, dy, (dx,) = with_gradients(torch.sigmoid, x := normal(4, 6))
    record("sigmoid.plain", [x], [y])
    # The kernel is given the forward result as f32 holds it.
    y = y.float().double()
    record("sigmoid_grad.plain", [y, dy], [dy * y * (1 - y)])
    torch.testing.assert_close(dy * y * (1 - y), dx, rtol=1e-6, atol=1e-6)


def networks():
    """Feed-forward networks as one op. Behind the groups that were there, so that their numbers stay as they were."""

    def swiglu(x, gate, up, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def tanh(x, up, down, up_bias, down_bias):
        return F.gelu(x @ up + up_bias, approximate="tanh") @ down + down_bias

    def erf(x, up, down, up_bias, down_bias):
        return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)

    for variant, forward, parameters in (
        ("swiglu", swiglu, [(7, 4), (7, 4), (4, 7)]),
        ("tanh", tanh, [(4, 7), (7, 4), (7,), (4,)]),
        ("erf", erf, [(7, 4), (3, 7), (7,), (3,)]),
    ):
        x, parameters = normal(2, 3, 4), [normal(*shape) for shape in parameters]
        y, dy, gradients = with_gradients(forward, x, *parameters)
        record(f"mlp.{variant}", [x, *parameters], [y])
        record(f"mlp_grad.{variant}", [x, dy, *parameters], gradients)
        if variant == "swiglu":
            held = [normal(*gradient.shape) for gradient in gradients[1:]]
            sums = [before + gradient for before, gradient in zip(held, gradients[1:])]
            before = [torch.zeros_like(x), *held]
            record("mlp_grad.adding", [x, dy, *parameters], [gradients[0], *sums], before)


def routing():
    x = normal(2, 3, 7)
    p, dp, (dx,) = with_gradients(lambda x: F.softmax(x, -1), x)
    lse, dlse, (dz,) = with_gradients(lambda x: torch.logsumexp(x, -1).flatten(), x)
    record("softmax_lse.plain", [x], [p, lse])
    record("softmax_lse_grad.softmax", [p, dp], [dx])
    record("softmax_lse_grad.lse", [p, dlse], [dz])
    record("softmax_lse_grad.both", [p, dp, dlse], [dx + dz])
    weights, dweights, (dscores,) = with_gradients(lambda x: torch.topk(x, 3, -1).values, x)
    indices = torch.topk(x, 3, -1).indices
    record("top_k.rows", [x], [weights, indices])
    record("top_k_grad.rows", [indices, dweights], [dscores])
    # No numbers are drawn, so that those of the other groups stay as they were.
    bias = torch.linspace(-0.2, 0.2, 7).float().double()
    indices = torch.topk((p.float() + bias.float()), 3, -1).indices
    record("top_k.steered", [x, p, bias], [x.gather(-1, indices), indices])


def sorted_copies(indices, experts, tile, capacity=None):
    """Places, slots and ranges of copies sorted by expert, written from the definition: one loop over experts."""
    sequences = indices if indices.dim() > 2 else indices[None]
    rows = min(indices.numel(), len(sequences) * experts * (capacity or indices.numel())) + experts * (tile - 1)
    places, slots = torch.full(indices.shape, -1).flatten(), torch.full((rows,), -1)
    ranges, row = [], 0
    for expert in range(experts):
        row = -(-row // tile) * tile
        first = row
        for number, sequence in enumerate(sequences):
            copies = (sequence.flatten() == expert).nonzero().flatten() + number * sequence.numel()
            for copy in copies[:capacity].tolist():
                places[copy], slots[row] = row, copy
                row += 1
        ranges.append((first, row - first))
    return places.view(indices.shape), slots, torch.tensor(ranges)


def experts():
    count, copies, width, hidden = 4, 2, 5, 3
    indices = torch.stack([torch.randperm(count)[:copies] for _ in range(6)]).view(2, 3, copies)
    places, slots, ranges = sorted_copies(indices, count, 2)
    record("sort_by_expert.dropless", [indices], [places, slots, ranges])
    record("sort_by_expert.capacity", [indices], sorted_copies(indices, count, 2, 1))
    used = slots >= 0
    tokens = slots.clamp(min=0) // copies

    def dispatch(x):
        return x.reshape(-1, width)[tokens] * used[:, None]

    def combine(h, weights):
        return (h[places] * weights[..., None]).sum(-2)

    x, h = normal(2, 3, width), normal(len(slots), width)
    weights = torch.rand(2, 3, copies).double()
    record("dispatch.rows", [x, slots, places], [dispatch(x)])
    y, dy, (dh, dweights) = with_gradients(combine, h, weights)
    record("combine.weighted", [h, slots, places, weights], [y])
    record("combine.plain", [h, slots, places], [combine(h, torch.ones_like(weights))])
    record("combine_grad_rows.weighted", [dy, slots, places, weights], [dh])
    record("combine_grad_weights.rows", [h, dy, places], [dweights])

    def grouped(x, w):
        rows = [torch.zeros(len(slots), hidden).double()]
        for expert, (first, number) in enumerate(ranges.tolist()):
            one = F.linear(x[first : first + number], w[expert])
            rows.append(F.pad(one, (0, 0, first, len(slots) - first - number)))
        return torch.stack(rows).sum(0)

    x, w = normal(len(slots), width), normal(count, hidden, width)
    y, dy, (dx, dw) = with_gradients(grouped, x, w)
    record("grouped_linear.rows", [x, w, ranges], [y])
    record("grouped_linear_grad_input.rows", [w, dy, ranges], [dx])
    record("grouped_linear_grad_weight.rows", [x, dy, ranges], [dw])
    before = normal(*dw.shape)
    record("grouped_linear_grad_weight.adding", [x, dy, ranges], [dw + before], [before])


def balance():
    rows, length, count, chosen, layers = 3, 5, 4, 2, 2
    p = torch.softmax(normal(rows, length, count), -1).float().double()
    indices = torch.topk(p, chosen, -1).indices
    targets = torch.tensor([[1, 2, IGNORE, 3, 4], [IGNORE, 1, 1, 1, IGNORE], [5, 6, 7, 8, IGNORE]])
    valid = (targets != IGNORE).double()
    hits = F.one_hot(indices, count).sum(-2).double()

    def load(p):
        return (p * valid[..., None]).sum(1)

    # Two rows end in padding, and one expert takes 2 tokens of a row: the first of them, padding or not.
    present = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    tokens = hits * present[..., None]
    record("expert_load.present", [p, indices, present], [(p * present[..., None]).sum(1), tokens.sum(1)])
    taken = hits * (hits.cumsum(1) <= 2)
    # The numbers of rows do not matter to a count, only whether there is one.
    places = torch.where(taken.gather(-1, indices) > 0, 7, -1)
    placed = taken * present[..., None]
    record("count_copies.capacity", [indices, places, present], [torch.stack([tokens.sum((0, 1)), placed.sum((0, 1))])])
    counts = (hits * valid[..., None]).sum(1)
    bias = torch.linspace(-1, 1, count).double()
    moved = bias + 0.125 * torch.sign(counts.sum(0).mean() - counts.sum(0))
    record("steer.counts", [counts, torch.tensor(1.0)], [moved], [bias])
    sums, dsums, (dp,) = with_gradients(load, p)
    record("expert_load.valid", [p, indices, targets], [sums, (hits * valid[..., None]).sum(1)])
    record("expert_load_grad.valid", [dsums, targets], [dp])

    scale = torch.tensor(0.3)
    scale64, dloss = scale.double(), torch.tensor(0.7)
    counts = [(hits * valid[..., None]).sum(1), hits.roll(1, 2).mul(valid[..., None]).sum(1)]
    sums = [normal(rows, count).abs() for _ in range(layers)]

    def sequences(*sums):
        """The mean over tokens of each sequence's loss, which takes its layers together."""
        loss = 0
        for row in range(rows):
            tokens = layers * valid[row].sum()
            f, q = sum(counts)[row] / tokens, sum(sums)[row] / tokens
            loss = loss + scale64 * valid[row].sum() * count * (f * q).sum()
        return loss

    def whole(*sums):
        tokens = sum(counts).sum() / chosen
        f, q = sum(counts).sum(0) / tokens, sum(sums).sum(0) / tokens
        return scale64 * valid.sum() * count * (f * q).sum()

    for name, function in (("sequences", sequences), ("whole", whole)):
        leaves = [x.clone().requires_grad_() for x in sums]
        loss = function(*leaves)
        grads = torch.autograd.grad(loss, leaves, dloss.double())
        assert all(torch.allclose(grads[0], grad) for grad in grads)
        pairs = [x for pair in zip(sums, counts) for x in pair]
        record(f"balance_loss.{name}", [scale, targets, *pairs], [loss])
        record(f"balance_loss_grad.{name}", [dloss, scale, targets, *counts], [grads[0]])

    lse = normal(rows * length).requires_grad_()
    loss = scale64 * (valid.flatten() * lse**2).sum()
    (dlse,) = torch.autograd.grad(loss, lse, dloss.double())
    record("router_z_loss.valid", [scale, targets, lse], [loss])
    record("router_z_loss_grad.valid", [dloss, scale, targets, lse], [dlse])


def newton_schulz(x, rounds=5, coefficients=(3.4445, -4.775, 2.0315), eps=1e-7):
    """The iteration of torch.optim.Muon, in the type of `x` instead of bf16."""
    # The coefficients as f32 holds them.
    a, b, c = torch.tensor(coefficients).double().tolist()
    x, turned = (x.T, True) if x.size(0) > x.size(1) else (x, False)
    x = x / x.norm().clamp(min=eps)
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


def named_optimizers():
    """Behind the groups that were there. The second step of each, when its state is no longer zero."""
    lr, decay, scale, betas = 2**-7, 0.125, 0.375, (0.875, 1 - 2**-10)
    scalars = [torch.tensor(lr), torch.tensor(scale)]

    p, m = normal(5, 7), normal(5, 7)
    grad = normal(5, 7)
    sign = torch.sign(betas[0] * m + (1 - betas[0]) * scale * grad)
    after = [p - lr * (sign + decay * p), betas[1] * m + (1 - betas[1]) * scale * grad]
    record("lion.second", [grad, *scalars], after, [p, m])

    for name, shape in (("matrix", (2, 5, 7)), ("vector", (11,))):
        parameter = normal(*shape).requires_grad_()
        # The exponent as f32 holds it.
        rates = dict(scale_parameter=False, relative_step=False, decay_rate=torch.tensor(-0.8).item())
        optimizer = Adafactor([parameter], lr=lr, weight_decay=decay, **rates)
        keys = ("exp_avg_sq_row", "exp_avg_sq_col") if len(shape) > 1 else ("exp_avg_sq",)
        for _ in range(2):
            grad = normal(*shape)
            held = [optimizer.state[parameter][key] for key in keys if optimizer.state[parameter]]
            before = [tensor.detach().clone() for tensor in [parameter, *held]]
            parameter.grad = scale * grad
            optimizer.step()
        after = [parameter, *(optimizer.state[parameter][key] for key in keys)]
        record(f"adafactor.{name}", [grad, scalars[0], torch.tensor(2.0), scalars[1]], after, before)

    for name, shape in (("wide", (6, 9)), ("tall", (9, 6))):
        p, m, grad, momentum = normal(*shape), normal(*shape), normal(*shape), 0.9375
        g = scale * grad
        moved = momentum * m + (1 - momentum) * g
        step = 0.2 * max(shape) ** 0.5 * newton_schulz(g.lerp(moved, momentum))
        record(f"muon.{name}", [grad, *scalars], [p - lr * (step + decay * p), moved], [p, m])


def draw(shape, direction, first=0):
    """Numbers of a parameter's direction from an element on, for the probe (seed 7 + 2^33, step 3)."""
    elements = first + np.arange(int(np.prod(shape)))
    numbers = normals(7 + 2**33, 3, direction, 0x0123456789ABCDEF, elements)
    return torch.from_numpy(numbers).double().reshape(shape)


def probed():
    """Behind the groups that were there: copies beside a parameter, and the steps that their losses lead to."""
    probe, size = torch.tensor([7, 2, 3, 4], dtype=torch.int32), torch.tensor(0.25)
    w = normal(5, 7)
    record("perturb.plain", [w, probe, size], [w + 0.25 * draw((5, 7), 4)])
    y, ids = normal(3, 8), torch.tensor([6, 0, 6], dtype=torch.int32)
    z = torch.cat([draw((1, 8), 4, 8 * int(row)) for row in ids])
    record("perturb_rows.plain", [y, ids, probe, size], [y + 0.25 * z])
    lr, decay, losses, p = 2**-7, 0.125, normal(3, 2), normal(5, 7)
    ranks = losses.flatten().argsort().argsort().double().reshape(3, 2) / 5 - 0.5
    slopes = (losses[:, 0] - losses[:, 1]) / (2 * 0.25 * 3)
    for name, factors in (("slope", slopes), ("rank", (ranks[:, 0] - ranks[:, 1]) / 6)):
        step = sum(factor * draw((5, 7), direction) for direction, factor in enumerate(factors))
        inputs = [torch.tensor(lr), probe, losses]
        record(f"probe_step.{name}", inputs, [p - lr * (step + decay * p)], [p])


def row_norms():
    """Behind the groups that were there: rows of a weight with a product of few columns added."""
    w, a, b = normal(6, 9), normal(3, 9), normal(6, 3)
    inputs = [(w * w).sum(1), a @ w.T, b, a @ a.T]
    record("inverse_norm.plain", inputs, [1 / torch.linalg.norm(w + 0.5 * b @ a, dim=1)])


def projected():
    """Behind the groups that were there: the second step of a matrix whose gradient is scaled by its projection."""
    lr, decay, scale, seed = 2**-7, 0.125, 0.375, 7 + 2**33
    rates = dict(lr=lr, betas=(0.875, 1 - 2**-10), eps=2**-20, weight_decay=decay)
    for name, shape, kind in (("wide", (6, 9), "channel"), ("tall", (9, 6), "channel"), ("tensor", (9, 6), "tensor")):
        parameter = normal(*shape).requires_grad_()
        form = dict(rank=3, update_proj_gap=4, scale=2.0, scale_type=kind)
        optimizer = apollo(parameter, form, rates, seed, 0x0123456789ABCDEF)

        def held():
            state = optimizer.state[parameter]
            moments = [state[key].T if shape[0] < shape[1] else state[key] for key in ("exp_avg", "exp_avg_sq")]
            return [tensor.detach().clone() for tensor in (parameter, *moments, state["scaled_grad"].reshape(1))]

        for step in (1, 2):
            grad = normal(*shape)
            before = held() if step == 2 else None
            parameter.grad = scale * grad
            optimizer.step()
        scalars = [torch.tensor(number) for number in (lr, 2.0, scale)]
        rng = torch.tensor([7, 2, 3, 4], dtype=torch.int32)
        record(f"apollo.{name}", [grad, *scalars, rng], held(), before)


def subspaces():
    """Behind the groups that were there: a parameter moved along coordinates, and their gradient."""
    w, v, dw = normal(5, 9), normal(11), normal(5, 9)
    coordinates, signs = subspace(0x0123456789ABCDEF, 11, 45)
    projection = torch.zeros(45, 11, dtype=torch.float64)
    projection[torch.arange(45), torch.from_numpy(coordinates)] = torch.from_numpy(signs)
    record("subspace.plain", [w, v], [w + (projection @ v).reshape(5, 9)])
    record("subspace_grad.plain", [dw], [projection.T @ dw.flatten()])


def errors():
    """Behind the groups that were there: targets that are not the likeliest word, and runs of targets that hold such a one."""
    x, w = torch.randn(12, 6).round().double(), torch.randn(4, 6).round().double()
    likeliest = torch.from_numpy(F.linear(x, w).numpy().argmax(-1))  # the first of equals
    targets = likeliest.clone()
    targets[[1, 7]] = (targets[[1, 7]] + 1) % 4
    targets[[0, 4, 9]] = IGNORE
    scale = torch.tensor(0.25).double()
    wrong = (targets != likeliest) & (targets != IGNORE)
    runs = [slice(1, 4), slice(5, 6), slice(6, 9), slice(10, 12)]  # inside sequences of 6
    record("head_errors.tokens", [x, w, targets, scale], [scale * wrong.sum()])
    record("head_errors.answers", [x, w, targets, scale], [scale * sum(wrong[run].any() for run in runs)])


def main():
    torch.manual_seed(20)
    torch.set_num_threads(1)
    groups = (movement, elementwise, products, norms, embedding, rope, attention, losses, updates)
    for group in (*groups, hyperbolic, networks, logistic, routing, experts, balance, named_optimizers, probed, row_norms, projected, subspaces, errors):
        group()
    path = Path(__file__).resolve().parent.parent / "testdata" / "ops.safetensors"
    save_file(golden, path, metadata={"torch": torch.__version__})
    print(f"{len(golden)} tensors, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
