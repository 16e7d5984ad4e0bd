"""Which block, warps and stages make the decode attention fastest: time against the floor of reading keys and values.

python benchmarks/tune_attend.py
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from triton.testing import do_bench

from posttrain.engines.native import kernels

CASES = {
    "135M": (256, 9, 3, 64, 384),
    "135M-1024": (1024, 9, 3, 64, 384),
    "0.5B": (256, 14, 2, 64, 384),
    "1.5B": (256, 12, 2, 128, 384),
}


def main() -> None:
    for name, (S, H, KV, D, L) in CASES.items():
        q = torch.randn(S, H, D, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(S, KV, L, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        length = torch.full((S,), 255, device="cuda")
        best = {}
        for block, warps, stages in product((32, 64, 128), (1, 2, 4, 8), (2, 3, 4)):
            kernels.ATTEND = {"BLOCK": block, "num_warps": warps, "num_stages": stages}
            try:
                best[(block, warps, stages)] = do_bench(
                    partial(kernels.attend, q, k, v, length), warmup=2, rep=10, return_mode="median"
                )
            except Exception as error:
                print(name, block, warps, stages, type(error).__name__)
        floor = 2 * S * KV * 256 * D * 2 / 4.3e12 * 1e3
        order = sorted(best, key=best.get)  # type: ignore[arg-type]
        print(
            name,
            f"floor {floor * 1e3:.1f} us;",
            ", ".join(f"{c} {best[c] * 1e3:.1f}" for c in order[:5]),
            f"worst {best[order[-1]] * 1e3:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
