"""Which block, warps and stages are fastest for decode attention, with and without crews.

python -m benchmarks.tune_attend --shape SmolLM2-135M --answers 256
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from benchmarks.rollout import SHAPES
from posttrain.engines.native import attention, products


def timed(once: Callable[[int], Any], layers: int) -> float:
    """Microseconds a call, over calls 0..layers-1 captured in one graph."""
    once(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(layers):
            once(i)
    for _ in range(2):
        graph.replay()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    for _ in range(5):
        graph.replay()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b) * 1e3 / (5 * layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="SmolLM2-135M", choices=list(SHAPES))
    parser.add_argument("--answers", type=int, default=256)
    args = parser.parse_args()
    c, S, layers, M = SHAPES[args.shape], args.answers, 8, 7
    made: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(S, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, **made)
    cos = torch.rand(512, c.head_dim // 2, device="cuda")
    turn = products.Turn(None, None, (cos, cos), 1e-5)
    keys, values = (torch.randn(layers, S * M + 1, c.num_kv_heads, 64, c.head_dim, **made) for _ in range(2))
    table = torch.arange(1, S * M + 1, device="cuda", dtype=torch.int32).view(S, M)
    for s in range(S):
        table[s, :2] = table[s - s % 8, :2]  # groups of 8 share a prompt of 128
    length, head = torch.full((S,), 255, device="cuda"), torch.full((S,), 127, device="cuda")
    where = products.Where(table, head, length)
    crews = attention.Crews.blank(S, M, torch.device("cuda"))
    for g in range(S // 8):
        crews.members[g], crews.table[g, :2] = torch.arange(8 * g, 8 * g + 8), table[8 * g, :2]
    crews.common.fill_(127)
    floor = S * 256 * c.num_kv_heads * c.head_dim * 4 / 4.3e6
    rows = []
    for warps, stages in product((1, 2, 4), (2, 3)):
        attention.TUNED = {D: {"num_warps": warps, "num_stages": stages} for D in (64, 128)}
        for n in (255, 290):
            length.fill_(n)
            us = timed(lambda i: attention.attend(q, keys[i], values[i], where, turn), layers)
            rows.append((n, us, f"{warps} warps, {stages} stages"))
    print(f"{args.shape} x {S}: floor without sharing {floor:.1f} us")
    for n in (255, 290):
        print(f"  length {n}:", "; ".join(f"{us:.1f} us {how}" for m, us, how in sorted(rows) if m == n), flush=True)
    length.fill_(255)
    print(
        f"  with crews {timed(lambda i: attention.attend(q, keys[i], values[i], where, turn, crews), layers):.1f} us",
        flush=True,
    )


if __name__ == "__main__":
    main()
