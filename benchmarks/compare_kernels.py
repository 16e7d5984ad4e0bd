"""Every kernel compared with its plain-torch version in fp32: on a GPU, or anywhere in Triton's interpreter.

python -m benchmarks.compare_kernels
TRITON_INTERPRET=1 python -m benchmarks.compare_kernels --device cpu
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.inference import attention, pick, products
from posttrain.inference.engine import Engine
from posttrain.models import elementwise, likelihood, rotate_and_gather
from posttrain.models.decoder import Decoder
from posttrain.models.kernels import plain_torch, use_kernels
from posttrain.models.layout import Rows
from posttrain.models.packed import PackedBatch
from posttrain.models.sampling import generate
from posttrain.models.shape import DecoderConfig

Gaps = dict[str, float]


def gap(ours: Any, theirs: Any) -> float:
    """The largest difference between results, or between tensors of two lists of them."""
    if isinstance(ours, Tensor):
        return float((ours.detach().float() - theirs.detach().float()).abs().max())
    return float(torch.tensor([gap(a, b) for a, b in zip(ours, theirs, strict=True)]).max())  # which is NaN if one is


def both(run: Callable[[], Any]) -> float:
    """The gap between a function's results with kernels and without."""
    with plain_torch():
        theirs = run()
    return gap(run(), theirs)


def gradients(outs: tuple[Tensor, ...], given: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, ...]:
    """Gradients of a sum that weights every number differently."""
    generator = torch.Generator(outs[0].device).manual_seed(seed)
    ups = [torch.randn(x.shape, device=x.device, generator=generator) for x in outs]
    return torch.autograd.grad(outs, given, ups)


def decode_attention(draw: Callable[..., Tensor], device: str) -> Gaps:
    """Eight slots, of which some share a prefix and one among those is empty, with spans short enough to be merged, and one, two or four
    slots per program."""
    S, H, KV, D = 8, 6, 2, 64
    k, v, qkv, bias = draw(42, KV, 64, D), draw(42, KV, 64, D), draw(S, (H + 2 * KV) * D), draw((H + 2 * KV) * D)
    table = (torch.randperm(41, generator=torch.Generator().manual_seed(0))[: S * 5].view(S, 5) + 1).to(torch.int32)
    table[3, :2] = table[2, :2]  # two share a prefix of 100 positions in two pages
    table[5:, :2] = table[4, :2]  # and three another
    table[5] = 0
    cache_len = torch.tensor([0, 1, 163, 164, 100, 0, 191, 255])
    prefix_len = torch.tensor([0, 1, 100, 100, 100, 0, 100, 100])
    table, cache_len, prefix_len = (x.to(device) for x in (table, cache_len, prefix_len))
    angle = draw(300, D // 2)
    transform = products.QKVTransform(bias, (draw(D), draw(D)), (angle.cos(), angle.sin()), 1e-5)
    spans_done, out, usual = torch.zeros(S, KV, dtype=torch.int32, device=device), dict[str, float](), attention.SPAN
    place = products.Placement(table, prefix_len, cache_len, spans_done=spans_done)

    def run(slots_per_program: int) -> tuple[Tensor, ...]:
        keys, values = k.clone(), v.clone()
        said = attention.attend(qkv, keys, values, place, transform, slots_per_program)
        return said[[0, 1, 2, 3, 4, 6, 7]], keys, values  # nobody reads what an empty slot says

    pages = np.array([0, 1, 3, 3, 3, 0, 4, 5])  # that each slot has, as the host knows it
    ways = list(product((1, 2, usual), (1, 2, 4), (False, True)))
    if device == "cpu":  # the interpreter is slow: every pair of values, not every three
        ways = [(s, n, x) for s, n, x in ways if x == ((s == 2) ^ (n == 2))]
    for attention.SPAN, slots_per_program, scheduled in ways:
        schedule = np.pad(
            attention.span_schedule(pages, attention.pages_per_span(S, KV), slots_per_program),
            (0, 3),
            constant_values=-1,
        )
        place.schedule = torch.from_numpy(schedule).to(device) if scheduled else None
        name = f"attend, spans of {attention.SPAN}, {slots_per_program} slots per program" + (
            ", scheduled" if scheduled else ""
        )
        out[name] = both(partial(run, slots_per_program))
    attention.SPAN = usual
    place.table_row = torch.tensor([0, 1, 2, 5, 6, 4, 3, 7], device=device)
    out["rotate and store"] = both(
        lambda: torch.cat(products.rotate_and_store(qkv, k.clone(), v.clone(), place, transform), 1)
    )
    return out


def between_products(draw: Callable[..., Tensor], device: str) -> Gaps:
    """The operations between the products of a decode step."""
    S, C = 7, 96
    x, y, w, token = draw(S, C), draw(S, C), draw(C), torch.tensor([5, 0, 3], device=device)
    wide, long = draw(S, 1024), draw(C, 1024)

    def added(y: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        into = x.clone()
        return products.add_norm(into, y, bias, w, 1e-5), into

    def cut(splits: int) -> tuple[Tensor, Tensor]:
        return added(products.split_k_matmul(wide, long, splits))

    out = {
        "silu and mul": both(lambda: elementwise.silu_and_mul(wide)),
        "silu and mul with bias": both(lambda: elementwise.silu_and_mul(wide, long[0])),
    }
    out |= {
        "add and norm": both(lambda: added(y, w)),
        "embed and norm": both(lambda: products.embed_norm(token, x, w, 1e-5)),
    }
    for splits in (2, 4):
        out[f"norm of {splits} partial sums"] = both(partial(cut, splits))
    return out


def token_choice(draw: Callable[..., Tensor], device: str) -> Gaps:
    """The next token of five slots, one of them not alive; in one mode one slot reports log-probabilities at temperature 1."""
    logits, out = 3 * draw(5, 2500), dict[str, float]()
    for mode in ("plain", "greedy", "plain raw"):

        def run(mode: str = mode) -> list[Tensor]:
            state = pick.SlotState.empty(5, 4, torch.device(device))
            state.key.copy_(torch.arange(5) * 7919)
            state.max_tokens.copy_(torch.tensor([1, 4, 4, 4, 4]))
            state.alive.copy_(torch.tensor([1, 1, 1, 0, 1]))
            state.inv_temperature.copy_(torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0]))
            state.raw_logp[2] = mode.endswith("raw")
            for _ in range(2):
                pick.pick(logits, state, torch.tensor([3, -1], device=device), mode)
            return state.tensors()

        out[f"pick, {mode}"] = both(run)
    return out


def training(draw: Callable[..., Tensor], device: str) -> Gaps:
    """Forward and backward of the operations between the products of training."""
    x, y, w, z = (t.requires_grad_() for t in (draw(37, 48), draw(37, 48), draw(48), draw(5, 2600)))
    out = {}
    for name, first, second in (("norm", x, None), ("sum and norm", x, y)):
        given = tuple(t for t in (first, second, w) if t is not None)
        ours = tuple(t for t in elementwise._AddRMSNorm.apply(first, second, w, 1e-5) if t is not None)
        theirs = elementwise.add_rms_norm(first, second, w, 1e-5)[-len(ours) :]
        out[name], out[f"{name}, gradients"] = gap(ours, theirs), gap(gradients(ours, given), gradients(theirs, given))
    out["swiglu"] = both(lambda: elementwise.swiglu(z))
    out["swiglu, gradients"] = both(lambda: gradients((elementwise.swiglu(z),), (z,)))
    packed = packed_batch(device)
    qkv = draw(len(packed.tokens_N), 6 + 2 * 3, 16).requires_grad_()
    angle = draw(len(qkv), 8)
    packed.rope = (angle.cos(), angle.sin())
    out["rotate and gather"] = both(lambda: rotate_and_gather.rotate_and_gather(qkv, 3, packed))
    out["rotate and gather, gradients"] = both(
        lambda: gradients(rotate_and_gather.rotate_and_gather(qkv, 3, packed), (qkv,))
    )
    logits, token = draw(9, 5000), torch.arange(9, device=device) * 500
    _, entropy, logz = likelihood.logsumexp_stats(logits, token, 0.7)
    out["likelihood"] = both(lambda: likelihood.logsumexp_stats(logits, token, 0.7))
    saved = likelihood.Saved(token, logz, entropy, draw(9), draw(9))
    out["likelihood, gradients"] = both(lambda: likelihood.logits_grad(logits, saved, 0.7, torch.float32))
    return out


def packed_batch(device: str) -> PackedBatch:
    rollouts = []
    for prompt, count in ((5, 7), (5, 3), (4, 6), (1, 2)):
        mask_T = torch.ones(count, dtype=torch.bool)
        context, actions = torch.arange(prompt), torch.arange(count)
        rollouts.append(Rollout.single(Prompt.text("", ""), context, actions, torch.zeros(count), mask_T))
    return PackedBatch.of(Rows.of([r.row for r in rollouts], device))


def engine(device: str) -> Gaps:
    """Whole answers of the engine in pages against plain sampling: the same tokens, and the gap of their log-probabilities; with
    spans of one page, so that contexts of 3 to 130 tokens have one to four. Less of it in the interpreter, which is slow."""
    torch.manual_seed(0)
    few = device == "cpu"
    model = Decoder(DecoderConfig(60, 32, 48, 1 if few else 2, 4, 2, 16)).to(device).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.2)
    contexts = [torch.arange(n) % 50 + 2 for n in ((63, 130) if few else (3, 63, 130))]
    keys, how = [[rng.key(p, i) for i in range(2)] for p in range(len(contexts))], Sampling(3 if few else 9)
    usual, attention.SPAN = attention.SPAN, 1
    got = Engine(model, max_slots=3 if few else 4, num_pages=16, stride=2 if few else 4).generate(
        contexts, keys, how, [1]
    )
    attention.SPAN = usual
    with plain_torch():
        want = generate(model, contexts, keys, how, [1])
    pairs = [(a, b) for g, h in zip(got, want, strict=True) for a, b in zip(g, h, strict=True)]
    if not all(torch.equal(a.tokens, b.tokens) for a, b in pairs):
        return {"answers": float("inf")}
    return {"answers": max(gap(a.logp_T, b.logp_T) for a, b in pairs)}


def compare_all(device: str) -> Gaps:
    """The largest gap of each comparison, by name."""
    if not use_kernels(torch.zeros(1, device=device)):
        raise SystemExit(f"no kernel runs on {device} here; with Triton installed, set TRITON_INTERPRET=1")
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    out: Gaps = {}
    for some in (decode_attention, between_products, token_choice, training):
        out |= some(draw, device)
    return out | engine(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    print(json.dumps(compare_all(parser.parse_args().device), indent=1))


if __name__ == "__main__":
    main()
