"""The fastest configuration of decode attention: slots per program, warps, stages, positions per iteration.

python -m benchmarks.tune_attend --shape SmolLM2-135M --answers 256
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.rollout import SHAPES
from posttrain.inference import attention, products


def timed(once: Callable[[int, int], Any], slots_per_program: int, layers: int) -> float:
    """Microseconds per call, over layers 0, 1, ... captured in one graph."""
    once(0, slots_per_program)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(layers):
            once(i, slots_per_program)
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
    c, S, layers, M = SHAPES[args.shape], args.answers, 8, 8
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(S, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, **options)
    cos = torch.rand(512, c.head_dim // 2, device="cuda")
    transform = products.QKVTransform(None, None, (cos, cos), 1e-5)
    keys, values = (torch.randn(layers, S * M + 1, c.num_kv_heads, 64, c.head_dim, **options) for _ in range(2))
    table = torch.arange(1, S * M + 1, device="cuda", dtype=torch.int32).view(S, M)
    for s in range(S):
        table[s, :2] = table[s - s % 8, :2]  # groups of 8 share a prompt of 128 tokens
    cache_len, prefix_len = torch.full((S,), 255, device="cuda"), torch.full((S,), 127, device="cuda")
    place = products.Placement(table, prefix_len, cache_len)
    floor = S * 256 * c.num_kv_heads * c.head_dim * 4 / 4.3e6
    print(f"{args.shape} x {S}: floor without sharing {floor:.1f} us, with {floor * 144 / 256:.1f}", flush=True)

    def once(i: int, slots_per_program: int) -> torch.Tensor:
        return attention.attend(q, keys[i], values[i], place, transform, slots_per_program)

    configs = product((1, 2, 4), (1, 2, 4), (2, 3, 4), (32, 64))
    for slots_per_program, warps, stages, step in configs:
        chosen = {"num_warps": warps, "num_stages": stages, "STEP": step}
        attention.launch_config = lambda *_: chosen  # noqa: B023 (called before the next one is chosen)
        schedule = attention.span_schedule(
            np.full(S, M), attention.pages_per_span(S, c.num_kv_heads), slots_per_program
        )
        place.schedule = torch.from_numpy(
            schedule
        ).cuda()  # beforehand: no copy from the host can be captured in a graph
        out = []
        for n in (160, 255, 350):
            cache_len.fill_(n)
            out.append(timed(once, slots_per_program, layers))
        told = " ".join(f"{us:6.1f}" for us in out)
        print(
            f"  {slots_per_program} slots per program, {warps} warps, {stages} stages, {step} positions: {told}  mean {sum(out) / 3:6.1f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
