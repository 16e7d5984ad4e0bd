"""Training throughput on one GPU: the learner's own update (forward, backward, fused AdamW with fp32 masters) on packed rows.

    python -m benchmarks.train --out benchmarks/results/train.json

Model FLOPs utilisation counts 6 FLOPs per parameter and token plus causal attention, no recomputation, against 790 TFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.rollout import SHAPES, scaled
from posttrain.core.assemble import assemble
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.grpo import grpo
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.weights.learner import Learner

PEAK = 790e12
# (shape, rows, tokens per row) -> bar on the share of the peak
BARS = {("Qwen2.5-0.5B", 8, 2048): 0.30, ("Qwen2.5-1.5B", 8, 2048): 0.40, ("Qwen2.5-1.5B", 1, 32768): None,
        ("SmolLM2-135M", 64, 256): None}  # fmt: skip


def flops(c: DecoderConfig, rows: int, length: int) -> float:
    """Of one update: 6 per matrix element and token, 6 per head dimension, token and earlier position (half of the length)."""
    per_layer = (
        c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.hidden_size * c.intermediate_size
    )
    matrices = c.num_layers * per_layer + c.vocab_size * c.hidden_size
    return rows * length * (6 * matrices + 6 * c.num_layers * c.num_heads * c.head_dim * length)


def batch_of(c: DecoderConfig, rows: int, length: int, context: int = 16) -> list[Group]:
    made = []
    for i in range(rows):
        tokens = torch.randint(0, c.vocab_size, (length,))
        actions = tokens[context:]
        T = len(actions)
        r = Rollout.single(
            Prompt.text(str(i), ""), tokens[:context], actions, torch.full((T,), -10.0), torch.ones(T, dtype=torch.bool)
        )
        r.reward = float(i % 2)
        made.append(Group(r.prompt, [r]))
    return made


def measure(name: str, rows: int, length: int, steps: int = 5) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    c = SHAPES[name]
    with torch.device("cuda"):
        model = scaled(Decoder(c)).to(torch.bfloat16)
    method = grpo.but(terms=())
    learner = Learner(LanguagePolicy(model, None), method, lr=1e-6, micro_tokens=1 << 20)
    rollouts, batch = assemble(batch_of(c, rows, length))
    batch = batch.but(adv_BT=torch.randn_like(batch.mask_BT) * batch.mask_BT)
    times = []
    for step in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        seen = learner.update(rollouts, batch, step)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    best = min(times[1:])
    return {"seconds": best, "first_s": times[0], "tokens_s": rows * length / best, "mfu": flops(c, rows, length) / best / PEAK,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "grad_norm": seen["grad_norm"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    about = {"hardware": torch.cuda.get_device_name(), "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
             "command": "python -m benchmarks.train", "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    rows = []
    for (name, count, length), bar in BARS.items():
        got = measure(name, count, length)
        rows.append({"name": f"training {name}, {count} rows of {length:,} tokens", "value": got["mfu"], "unit": "MFU", "peer": None,
                     "peer_value": None, "ratio": None, "bar": bar, "met": None if bar is None else got["mfu"] >= bar, **got, **about})  # fmt: skip
        print(f"{rows[-1]['name']:50} MFU {got['mfu']:.1%}  {got}", flush=True)
        torch.cuda.empty_cache()
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
