"""Rollout throughput of the native engine on one GPU: random weights of well-known shapes, prefill and transfer counted.

    python -m benchmarks.rollout --out benchmarks/results/rollout.json

tokens/s is new tokens over the wall time of one call that returns token ids and log-probabilities on the host. The floor is
the time per step to read the weights once and every slot's keys and values once at 4.3 TB/s.
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
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
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
TIMES = {("SmolLM2-135M", 256): 8, ("Qwen2.5-0.5B", 256): 6, ("Qwen2.5-1.5B", 256): 4}  # times vLLM's speed, at least
VLLM = "vLLM 0.24 with logprobs"
PROMPT, NEW, BANDWIDTH = 128, 256, 4.3e12


def floor(c: DecoderConfig, rows: int) -> float:
    """Tokens/s if nothing but memory traffic counted: the weights once per step, and each row's keys and values so far."""
    per_layer = (
        c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.hidden_size * c.intermediate_size
    )
    weights = 2 * (c.num_layers * per_layer + c.vocab_size * c.hidden_size)
    cache = rows * (PROMPT + NEW / 2) * 2 * 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return rows / ((weights + cache) / BANDWIDTH)


def scaled(model: Decoder) -> Decoder:
    """Weights small enough that the random model's distributions are broad: log-probabilities worth comparing."""
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    return model


def built(name: str, config: DecoderConfig | None = None) -> Decoder:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return scaled(Decoder(config or SHAPES[name])).to(torch.bfloat16).eval()


def best_of(
    engine: Engine, contexts: list[torch.Tensor], n: int, limits: list[list[int]] | None = None, calls: int = 3
) -> tuple[float, Any]:
    """Tokens/s of the fastest of `calls` calls (each with new random identities), and the last answers."""
    most = max(max(row) for row in limits) if limits else NEW
    engine.generate(contexts, [[rng.key(-1, p, i) for i in range(n)] for p in range(len(contexts))], Sampling(most), [],
                    limits=[[min(32, x) for x in row] for row in limits] if limits else None)  # fmt: skip
    best = 0.0
    for repeat in range(calls):
        keys = [[rng.key(repeat, p, i) for i in range(n)] for p in range(len(contexts))]
        torch.cuda.synchronize()
        began = time.perf_counter()
        made = engine.generate(contexts, keys, Sampling(most), [], limits=limits)
        seconds = time.perf_counter() - began
        best = max(best, sum(len(s.tokens) for g in made for s in g) / seconds)
    return best, made


def prompts(name: str, count: int, length: int = PROMPT) -> list[torch.Tensor]:
    return [torch.randint(0, SHAPES[name].vocab_size, (length,)) for _ in range(count)]


def measure(name: str, rows: int) -> dict[str, Any]:
    """Groups of 8 answers per prompt, as in a GRPO step; and every answer with a prompt of its own."""
    model = built(name)
    engine, contexts = Engine(model), prompts(name, rows // 8)
    began = time.perf_counter()
    engine.generate(contexts, [[rng.key(0, p, i) for i in range(8)] for p in range(len(contexts))], Sampling(16), [])
    first = time.perf_counter() - began
    speed, made = best_of(engine, contexts, 8)
    alone, _ = best_of(engine, prompts(name, rows), 1)
    return {"tokens_s": speed, "distinct_prompts_tokens_s": alone, "first_call_s": first, "floor": floor(SHAPES[name], rows),
            "logp_gap": mismatch(model, contexts, made), "peak_gib": torch.cuda.max_memory_allocated() / 2**30}  # fmt: skip


def unequal(name: str, slots: int, answers: int) -> dict[str, Any]:
    """Answers of log-normal length (mean 256, at most 2,048) against answers of 256, in as many slots, as many tokens."""
    engine, contexts = Engine(built(name), max_slots=slots), prompts(name, answers // 8)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.exp(torch.randn(len(contexts), 8, generator=generator) * 0.8)
    lengths = (drawn * 256 / drawn.mean()).round().clamp(1, 2048).long()
    even, _ = best_of(engine, contexts, 8, [[256] * 8] * len(contexts), calls=2)
    uneven, _ = best_of(engine, contexts, 8, lengths.tolist(), calls=2)  # the first captures what it needs
    return {
        "even": even,
        "uneven": uneven,
        "ratio": uneven / even,
        "mean_length": float(lengths.float().mean()),
        "longest": int(lengths.max()),
    }


def shared_prefill(name: str) -> dict[str, float]:
    """Seconds to the first token of 64 prompts of 1,024 tokens, with one answer each and with sixteen."""
    engine, contexts = Engine(built(name)), prompts(name, 64, 1024)
    out = {}
    for n in (1, 16, 1, 16, 1, 16):
        keys = [[rng.key(p, i) for i in range(n)] for p in range(64)]
        before = engine.prefill_tokens
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.generate(contexts, keys, Sampling(1), [])
        out[f"seconds_{n}"], out[f"read_{n}"] = time.perf_counter() - began, engine.prefill_tokens - before
    return out


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
             "command": "python -m benchmarks.rollout", "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    rows: list[dict[str, Any]] = []

    def note(name: str, value: float, unit: str, bar: str, met: bool, **more: Any) -> None:
        no_peer = {"peer": None, "peer_value": None, "ratio": None}
        rows.append({"name": name, "value": value, "unit": unit, **no_peer, "bar": bar, "met": met, **more, **about})
        print(f"{name:44} {value:>10,.3g} {unit:9} bar {bar:28} met {met}  {more}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")

    for (name, count), (bar, peer) in BARS.items():
        got = measure(name, count)
        value = got["tokens_s"]
        met = value >= bar if bar > 1 else value >= bar * got["floor"]
        said = f"{bar:,.0f} tokens/s" if bar > 1 else f"{bar:.0%} of {got['floor']:,.0f}"
        against = {"peer": VLLM, "peer_value": peer, "ratio": value / peer} if peer else {}
        note(
            f"rollout {name}, {count} answers",
            value,
            "tokens/s",
            said,
            met,
            **against,
            share_of_floor=value / got["floor"],
            **got,
        )
        if peer and (name, count) in TIMES:
            times = TIMES[name, count]
            note(
                f"rollout {name}, {count} answers, against vLLM",
                value / peer,
                "x",
                f"{times}",
                value / peer >= times,
                **against,
            )
        torch.cuda.empty_cache()
    for answers in (2048, 4096, 8192):
        got = unequal("SmolLM2-135M", 256, answers)
        name = f"unequal lengths, {answers:,} answers in 256 slots"
        equal = {"peer": "answers of equal length, tokens/s", "peer_value": got["even"]}
        note(name, got["ratio"], "of equal", "0.7", got["ratio"] >= 0.7, **equal, **got)
    pre = shared_prefill("SmolLM2-135M")
    ratio = pre["read_16"] / pre["read_1"]
    note("prefill of 64 x 16 answers / of 64 x 1, tokens read", ratio, "x", "1", ratio <= 1, **pre)


if __name__ == "__main__":
    main()
