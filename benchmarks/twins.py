"""Every kernel beside its plain twin in fp32: on a GPU, or anywhere in Triton's interpreter.

python -m benchmarks.twins
TRITON_INTERPRET=1 python -m benchmarks.twins --device cpu
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
from posttrain.core.types import Prompt, Rollout
from posttrain.inference import attention, pick, products
from posttrain.inference.engine import Engine
from posttrain.inference.sampling import Sampling, generate
from posttrain.models import elementwise, likelihood
from posttrain.models import rotate_and_gather as spread
from posttrain.models.decoder import Decoder
from posttrain.models.kernels import serve, twins
from posttrain.models.layout import Rows
from posttrain.models.packed import Stream
from posttrain.models.shape import DecoderConfig

Gaps = dict[str, float]


def gap(ours: Any, theirs: Any) -> float:
    """The largest difference between results, or between tensors of two lists of them."""
    if isinstance(ours, Tensor):
        return float((ours.detach().float() - theirs.detach().float()).abs().max())
    return float(torch.tensor([gap(a, b) for a, b in zip(ours, theirs, strict=True)]).max())  # which is NaN if one is


def both(run: Callable[[], Any]) -> float:
    """What a function gives with kernels against what it gives without."""
    with twins():
        theirs = run()
    return gap(run(), theirs)


def slopes(outs: tuple[Tensor, ...], given: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, ...]:
    """Gradients of a sum that weighs every number differently."""
    made = torch.Generator(outs[0].device).manual_seed(seed)
    ups = [torch.randn(x.shape, device=x.device, generator=made) for x in outs]
    return torch.autograd.grad(outs, given, ups)


def attending(draw: Callable[..., Tensor], device: str) -> Gaps:
    """Seven slots, of which some share a head, with spans short enough to be joined and one, two or four of them a program."""
    S, H, KV, D = 7, 6, 2, 64
    k, v, qkv, bias = draw(40, KV, 64, D), draw(40, KV, 64, D), draw(S, (H + 2 * KV) * D), draw((H + 2 * KV) * D)
    table = (torch.randperm(39, generator=torch.Generator().manual_seed(0))[: S * 5].view(S, 5) + 1).to(torch.int32)
    table[3, :2] = table[2, :2]  # two share a head of 100 places in two pages
    table[5:, :2] = table[4, :2]  # and three another
    length, head = torch.tensor([0, 1, 163, 164, 100, 191, 255]), torch.tensor([0, 1, 100, 100, 100, 100, 100])
    table, length, head = (x.to(device) for x in (table, length, head))
    angle = draw(300, D // 2)
    turn = products.Turn(bias, (draw(D), draw(D)), (angle.cos(), angle.sin()), 1e-5)
    arrived, out, usual = torch.zeros(S, KV, dtype=torch.int32, device=device), dict[str, float](), attention.SPAN
    where = products.Where(table, head, length, arrived=arrived)

    def run(mates: int) -> tuple[Tensor, ...]:
        keys, values = k.clone(), v.clone()
        return attention.attend(qkv, keys, values, where, turn, mates), keys, values

    pages = np.array([0, 1, 3, 3, 3, 4, 5])  # that each slot has, as the host knows it
    for attention.SPAN, mates, listed in product((1, 2, usual), (1, 2, 4), (False, True)):
        todo = np.pad(attention.work(pages, attention.span(S, KV), mates), (0, 3), constant_values=-1)
        where.work = torch.from_numpy(todo).to(device) if listed else None
        name = f"attend, spans of {attention.SPAN}, {mates} mates" + (", listed" if listed else "")
        out[name] = both(partial(run, mates))
    attention.SPAN = usual
    where.row = torch.tensor([0, 1, 2, 5, 6, 4, 3], device=device)
    out["place"] = both(lambda: torch.cat(products.place(qkv, k.clone(), v.clone(), where, turn), 1))
    return out


def between(draw: Callable[..., Tensor], device: str) -> Gaps:
    """What stands between the products of a decode step."""
    S, C = 7, 96
    x, y, w, token = draw(S, C), draw(S, C), draw(C), torch.tensor([5, 0, 3], device=device)
    wide, long = draw(S, 1024), draw(C, 1024)

    def added(y: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        into = x.clone()
        return products.add_norm(into, y, bias, w, 1e-5), into

    def cut(pieces: int) -> tuple[Tensor, Tensor]:
        return added(products.split_product(wide, long, pieces))

    out = {
        "gate": both(lambda: elementwise.gate(wide)),
        "gate with bias": both(lambda: elementwise.gate(wide, long[0])),
    }
    out |= {
        "add and norm": both(lambda: added(y, w)),
        "embed and norm": both(lambda: products.embed_norm(token, x, w, 1e-5)),
    }
    for pieces in (2, 4):
        out[f"norm of {pieces} pieces"] = both(partial(cut, pieces))
    return out


def choosing(draw: Callable[..., Tensor], device: str) -> Gaps:
    """The next token of five slots, one of them not alive, and in one way one that counts at temperature 1."""
    logits, out = 3 * draw(5, 2500), dict[str, float]()
    for way in ("plain", "greedy", "plain raw"):

        def run(way: str = way) -> list[Tensor]:
            books = pick.Books.blank(5, 4, torch.device(device))
            books.key.copy_(torch.arange(5) * 7919)
            books.limit.copy_(torch.tensor([1, 4, 4, 4, 4]))
            books.alive.copy_(torch.tensor([1, 1, 1, 0, 1]))
            books.cold.copy_(torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0]))
            books.raw[2] = way.endswith("raw")
            for _ in range(2):
                pick.pick(logits, books, torch.tensor([3, -1], device=device), way)
            return books.every()

        out[f"pick, {way}"] = both(run)
    return out


def training(draw: Callable[..., Tensor], device: str) -> Gaps:
    """Forward and backward of what stands between the products of training."""
    x, y, w, z = (t.requires_grad_() for t in (draw(37, 48), draw(37, 48), draw(48), draw(5, 2600)))
    out = {}
    for name, first, second in (("norm", x, None), ("sum and norm", x, y)):
        given = tuple(t for t in (first, second, w) if t is not None)
        ours = tuple(t for t in elementwise._Normed.apply(first, second, w, 1e-5) if t is not None)
        theirs = elementwise.added_normed(first, second, w, 1e-5)[-len(ours) :]
        out[name], out[f"{name}, slopes"] = gap(ours, theirs), gap(slopes(ours, given), slopes(theirs, given))
    out["gate of training"] = both(lambda: elementwise.gated(z))
    out["gate of training, slopes"] = both(lambda: slopes((elementwise.gated(z),), (z,)))
    stream = a_stream(device)
    qkv = draw(len(stream.tokens_N), 6 + 2 * 3, 16).requires_grad_()
    angle = draw(len(qkv), 8)
    stream.rope = (angle.cos(), angle.sin())
    out["spread"] = both(lambda: spread.spread(qkv, 3, stream))
    out["spread, slopes"] = both(lambda: slopes(spread.spread(qkv, 3, stream), (qkv,)))
    logits, token = draw(9, 5000), torch.arange(9, device=device) * 500
    _, entropy, logz = likelihood.summed(logits, token, 0.7)
    out["likelihood"] = both(lambda: likelihood.summed(logits, token, 0.7))
    kept = likelihood.Known(token, logz, entropy, draw(9), draw(9))
    out["likelihood, slopes"] = both(lambda: likelihood.sloped(logits, kept, 0.7, torch.float32))
    return out


def a_stream(device: str) -> Stream:
    rollouts = []
    for prompt, count in ((5, 7), (5, 3), (4, 6), (1, 2)):
        mask_T = torch.ones(count, dtype=torch.bool)
        context, actions = torch.arange(prompt), torch.arange(count)
        rollouts.append(Rollout.single(Prompt.text("", ""), context, actions, torch.zeros(count), mask_T))
    return Stream.of(Rows.of([r.row for r in rollouts], device))


def engine(device: str) -> Gaps:
    """Whole answers of the engine in pages against plain sampling: the same tokens, and the gap of their log-probabilities; with
    spans of one page, so that contexts of 3 to 130 tokens have one to four."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(60, 32, 48, 2, 4, 2, 16)).to(device).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.2)
    contexts = [torch.arange(n) % 50 + 2 for n in (3, 63, 130)]
    keys = [[rng.key(p, i) for i in range(2)] for p in range(3)]
    usual, attention.SPAN = attention.SPAN, 1
    got = Engine(model, most=4, room=16, stride=4).generate(contexts, keys, Sampling(9), [1])
    attention.SPAN = usual
    with twins():
        want = generate(model, contexts, keys, Sampling(9), [1], device)
    pairs = [(a, b) for g, h in zip(got, want, strict=True) for a, b in zip(g, h, strict=True)]
    if not all(torch.equal(a.tokens, b.tokens) for a, b in pairs):
        return {"answers": float("inf")}
    return {"answers": max(gap(a.logp_T, b.logp_T) for a, b in pairs)}


def every(device: str) -> Gaps:
    """All of them by name."""
    if not serve(torch.zeros(1, device=device)):
        raise SystemExit(f"no kernel serves {device} here; with Triton installed, set TRITON_INTERPRET=1")
    made = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=made)

    out: Gaps = {}
    for some in (attending, between, choosing, training):
        out |= some(draw, device)
    return out | engine(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    print(json.dumps(every(parser.parse_args().device), indent=1))


if __name__ == "__main__":
    main()
