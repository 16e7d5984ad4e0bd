"""Rollout throughput of the native engine on one GPU: random weights of well-known shapes, prefill and transfer counted.

    python benchmarks/rollout.py --out benchmarks/results/rollout.json

tokens/s is new tokens over the wall time of one call that returns token ids and log-probabilities on the host. The floor is
the time to read the weights once and every slot's keys and values once a step at 4.3 TB/s.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from posttrain.core import rng
from posttrain.engines.native.engine import Engine
from posttrain.engines.sampling import Sampling
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig

SHAPES = {
    "SmolLM2-135M": DecoderConfig(49152, 576, 1536, 30, 9, 3, 64, rope_theta=1e5, tied=True),
    "Qwen2.5-0.5B": DecoderConfig(
        151936, 896, 4864, 24, 14, 2, 64, rope_theta=1e6, tied=True, qkv_bias=True, model_type="qwen2"
    ),
    "Qwen2.5-1.5B": DecoderConfig(
        151936, 1536, 8960, 28, 12, 2, 128, rope_theta=1e6, tied=True, qkv_bias=True, model_type="qwen2"
    ),
    "Qwen2.5-7B": DecoderConfig(
        152064, 3584, 18944, 28, 28, 4, 128, rope_theta=1e6, tied=False, qkv_bias=True, model_type="qwen2"
    ),
}
# (shape, answers) -> (bar in tokens/s or share of the floor, vLLM 0.24 with log-probabilities on the same card)
BARS: dict[tuple[str, int], tuple[float, float | None]] = {
    ("SmolLM2-135M", 256): (200_000, 25_407), ("SmolLM2-135M", 1024): (400_000, 24_759),
    ("Qwen2.5-0.5B", 256): (0.5, 27_643), ("Qwen2.5-1.5B", 256): (0.5, 24_028), ("Qwen2.5-7B", 256): (0.5, None),
}  # fmt: skip
PROMPT, NEW, BANDWIDTH = 128, 256, 4.3e12


def floor(c: DecoderConfig, rows: int) -> float:
    """Tokens/s if nothing but memory counted: weights once a step, and each row's keys and values so far."""
    per_layer = (
        c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.hidden_size * c.intermediate_size
    )
    weights = 2 * (c.num_layers * per_layer + c.vocab_size * c.hidden_size)
    cache = rows * (PROMPT + NEW / 2) * 2 * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return rows / ((weights + cache) / BANDWIDTH)


def scaled(model: Decoder) -> Decoder:
    """Weights small enough that the random model is undecided: log-probabilities worth comparing."""
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    return model


def measure(name: str, rows: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device(device):
        model = scaled(Decoder(SHAPES[name])).to(torch.bfloat16).eval()
    engine = Engine(model)
    contexts = [torch.randint(0, SHAPES[name].vocab_size, (PROMPT,)) for _ in range(rows // 8)]
    began = time.perf_counter()
    engine.generate(contexts, [[rng.key(0, p, i) for i in range(8)] for p in range(len(contexts))], Sampling(16), [])
    first = time.perf_counter() - began
    best = 0.0
    for repeat in range(3):
        keys = [[rng.key(repeat, p, i) for i in range(8)] for p in range(len(contexts))]
        torch.cuda.synchronize()
        began = time.perf_counter()
        made = engine.generate(contexts, keys, Sampling(NEW), [])
        seconds = time.perf_counter() - began
        best = max(best, sum(len(s.tokens) for g in made for s in g) / seconds)
    gap = mismatch(model, contexts, made)
    return {"tokens_s": best, "first_call_s": first, "floor": floor(SHAPES[name], rows), "mismatch": gap,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30}  # fmt: skip


@torch.no_grad()
def mismatch(model: Decoder, contexts: list[torch.Tensor], made: list[list[Any]]) -> float:
    """Mean |log-probability of the sampler - of the trainer's forward pass| over one answer of each of four prompts."""
    gaps = []
    for context, samples in list(zip(contexts, made, strict=True))[:4]:
        s = samples[0]
        row = torch.cat((context, s.tokens)).to(model.lm_head.weight.device)
        logp = torch.log_softmax(model.logits(model.hidden(row[None]))[0].float(), -1)[len(context) - 1 : -1]
        gaps.append((logp.gather(-1, row[len(context) :, None]).squeeze(-1).cpu() - s.logp_T).abs().mean())
    return float(torch.stack(gaps).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    about = {"hardware": torch.cuda.get_device_name(), "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
             "command": "python benchmarks/rollout.py", "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    rows = []
    for (name, count), (bar, peer) in BARS.items():
        got = measure(name, count, "cuda")
        value = got["tokens_s"]
        met = value >= bar if bar > 1 else value >= bar * got["floor"]
        rows.append({"name": f"rollout {name}, {count} answers", "value": value, "unit": "tokens/s", "peer": "vLLM 0.24 with logprobs",
                     "peer_value": peer, "ratio": value / peer if peer else None,
                     "bar": f"{bar:,.0f} tokens/s" if bar > 1 else f"{bar:.0%} of the floor {got['floor']:,.0f}", "met": met,
                     **got, **about})  # fmt: skip
        print(f"{rows[-1]['name']:36} {value:>10,.0f} tokens/s  {value / got['floor']:.0%} of floor  mismatch {got['mismatch']:.4f} "
              f"first call {got['first_call_s']:.1f} s  met {met}", flush=True)  # fmt: skip
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
