"""Whether the same packed pass has the same gradient twice on a GPU, to the bit, and what it costs to make torch choose kernels that do.

python -m benchmarks.repeated_pass --out benchmarks/sweeps/repeated_pass.json          (random weights of the 135M shape, bf16)
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.long_rows import Tokenizer
from benchmarks.rollout import built
from posttrain.core.turn import Observation, Turn
from posttrain.policies.language import LanguagePolicy

SHAPE, ROWS, PROMPT, TIMES = "SmolLM2-135M", 64, 128, 8


def measured(tokens: int, fixed: bool) -> dict[str, Any]:
    """Eight passes over the same rows; fixed: with torch's deterministic algorithms while the gradient is made. The first two compile."""
    policy = LanguagePolicy(built(SHAPE), Tokenizer(), "random")
    policy.layout = "packed"
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 49152, (PROMPT + tokens,), generator=draw) for _ in range(ROWS)]
    rows = [Turn.of(Observation(x[:PROMPT]), x[PROMPT:], torch.zeros(tokens)) for x in ids]
    grads, ms = [], []
    for _ in range(TIMES):
        for p in policy.model.parameters():
            p.grad = None
        torch.cuda.synchronize()
        began = time.perf_counter()
        total = policy.forward(rows)["logp_BT"].sum()
        torch.use_deterministic_algorithms(fixed)
        try:
            total.backward()  # type: ignore[no-untyped-call]
        finally:
            torch.use_deterministic_algorithms(False)
        torch.cuda.synchronize()
        ms.append(1000 * (time.perf_counter() - began))
        grads.append([p.grad.clone() for p in policy.model.parameters() if p.grad is not None])
    equal = [all(torch.equal(a, b) for a, b in zip(one, grads[-1], strict=True)) for one in grads[2:-1]]
    return {"deterministic": fixed, "rows": ROWS, "prompt": PROMPT, "tokens": tokens, "ms": min(ms[2:]), "equal": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    about = {"hardware": torch.cuda.get_device_name(), "versions": f"torch {torch.__version__}", "shape": SHAPE,
             "date": time.strftime("%Y-%m-%d"), "command": "python -m benchmarks.repeated_pass"}  # fmt: skip
    rows = [measured(tokens, fixed) | about for tokens in (256, 1024) for fixed in (False, True)]
    print(json.dumps(rows, indent=1))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
