"""One long row, forward and backward: `python -m benchmarks.long_rows` on 1 and 2 CPU processes of one thread (context parallel,
posttrain/models/context.py), `python -m benchmarks.long_rows card` on one GPU, at the shapes of published models.

Forward and backward of the sum of log-probabilities through a random decoder that is sharded by FSDP2, rows divided among all processes. Memory is
the process's peak above what it had before the first pass, of the process that had most; seconds are those that it worked (CPU time), with what
it waits for the other left out. On a card it is what was allocated at most above the weights, beside what `posttrain doctor` counts for the same
pass; and the layers that recompute their activations, which follow from the memory that is free (the rest of the card is held while it runs).
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import ClassVar

import torch

TOKENS, PROMPT, REPEATS = 4096, 64, 2
SHAPE = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 1024, "num_layers": 6, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32,
    "max_positions": TOKENS,
}  # fmt: skip
RESULTS = Path(__file__).parent / "results" / "long_rows.json"


class Tokenizer:
    all_special_ids: tuple[int, ...] = ()
    added_tokens_encoder: ClassVar[dict[str, int]] = {}


def one() -> None:
    """In each process: the numbers of all, from the first."""
    from posttrain.core.turn import Observation, Turn
    from posttrain.distributed.group import joined
    from posttrain.models.decoder import Decoder, DecoderConfig
    from posttrain.policies.language import LanguagePolicy
    from posttrain.weights.sharded import Sharded

    torch.set_num_threads(1)
    torch.manual_seed(0)

    with joined("cpu") as here:
        policy = LanguagePolicy(Decoder(DecoderConfig(**SHAPE)), Tokenizer(), "random")
        policy.layout = "packed"
        Sharded(here, here.world).wrap(policy)
        drawn = torch.randint(SHAPE["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(0))
        row = Turn.of(Observation(drawn[:PROMPT]), drawn[PROMPT:], torch.zeros(TOKENS - PROMPT))
        short = Turn.of(Observation(drawn[:PROMPT]), drawn[PROMPT : 2 * PROMPT], torch.zeros(PROMPT))
        policy.forward([short])["logp_BT"].sum().backward()  # what is made once
        before, seconds, total = peak(), [], 0.0
        for _ in range(REPEATS):
            start = time.process_time()
            logp = policy.forward([row])["logp_BT"].sum()
            logp.backward()
            seconds.append(time.process_time() - start)
            total = float(logp.detach())
        found = here.gather((min(seconds), peak() - before))
        if here.lead:
            most = max(x[1] for x in found)
            print(json.dumps({"processes": here.world, "seconds": max(x[0] for x in found), "peak_mb": most / 1024, "logp": total}))  # fmt: skip


def peak() -> int:
    """KiB of memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


CARD = (
    ("Qwen2.5-1.5B", 32_768, 0),
    ("Qwen2.5-1.5B", 131_072, 0),
    ("Qwen2.5-7B", 32_768, 0),
    ("Qwen2.5-7B", 32_768, 80),
)  # GB of the card


def card() -> None:
    """The cases of `CARD`, each in what is free of this card, or of one that has so many GB."""
    from benchmarks.rollout import SHAPES, built
    from posttrain.core.turn import Observation, Turn
    from posttrain.models.decoder import Decoder
    from posttrain.models.packed import layers_to_recompute
    from posttrain.planning.lengths import Lengths
    from posttrain.planning.memory import passing
    from posttrain.planning.shapes import KNOWN
    from posttrain.planning.work import Work
    from posttrain.policies.language import LanguagePolicy

    rows: list[dict[str, object]] = []
    whole = torch.cuda.mem_get_info()[1]
    for name, tokens, size in CARD:
        config = replace(SHAPES[name], max_positions=max(tokens, SHAPES[name].max_positions))
        model = built(name, config)
        assert isinstance(model, Decoder)
        policy = LanguagePolicy(model, Tokenizer(), "random")
        policy.layout = "packed"
        held = torch.empty(max(0, whole - size * 10**9) if size else 0, dtype=torch.uint8, device="cuda")
        drawn = torch.randint(0, SHAPES[name].vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))
        row = Turn.of(Observation(drawn[:PROMPT]), drawn[PROMPT:], torch.zeros(tokens - PROMPT))
        short = Turn.of(Observation(drawn[:PROMPT]), drawn[PROMPT : 2 * PROMPT], torch.zeros(PROMPT))
        policy.forward([short])[
            "logp_BT"
        ].sum().backward()  # kernels, and the gradients, which stay from piece to piece
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        recomputed, seconds = layers_to_recompute(model, tokens), []
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            policy.forward([row])["logp_BT"].sum().backward()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        peak_gb = (torch.cuda.max_memory_allocated() - before) / 1e9
        shape = KNOWN[f"Qwen/{name}"]
        counted, planned = passing(
            shape, Work(1, 1, Lengths(tokens - PROMPT, tokens - PROMPT), PROMPT, tokens - PROMPT), float(free)
        )
        counted_gb = sum(counted.values()) / 1e9
        same = {"hardware": torch.cuda.get_device_name(), "versions": f"torch {torch.__version__}", "command": "python -m benchmarks.long_rows card",
                "date": date.today().isoformat(), "note": f"{recomputed} of {shape.layers} layers recompute, {planned} by the plan; {free / 1e9:.1f} GB were free"
                f" beside weights and gradients{f', as on a card of {size} GB' if size else ''}; first pass {seconds[0]:.2f} s"}  # fmt: skip
        what = f"long rows: {name}, {tokens} tokens{f', {size} GB' if size else ''}"
        none = {"peer": None, "peer_value": None, "ratio": None, "bar": None, "met": None}
        rows.append(
            {"name": f"{what}, forward and backward", "value": round(min(seconds), 3), "unit": "s"} | none | same
        )
        rows.append({"name": f"{what}, memory above weights and gradients", "value": round(peak_gb, 2), "unit": "GB"}
                    | none | {"peer": "posttrain doctor's count", "peer_value": round(counted_gb, 2), "ratio": round(peak_gb / counted_gb, 2)} | same)  # fmt: skip
        print(
            *(f"{row['name']}: {row['value']} {row['unit']}; {row['note']}" for row in rows[-2:]), sep="\n", flush=True
        )
        keep(rows)
        del model, policy, held
        gc.collect()
        torch.cuda.empty_cache()


def keep(rows: list[dict[str, object]]) -> None:
    """Rows take the place of those of the same name."""
    new = {row["name"] for row in rows}
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([row for row in old if row["name"] not in new] + rows, indent=1) + "\n")


def main() -> None:
    rows = []
    for world in (1, 2):
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "-m", "benchmarks.long_rows", "one"]  # fmt: skip
        told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads([line for line in told.splitlines() if line.startswith("{")][-1]))
        print(rows[-1])
    keep([row for made in rows for row in told_as(made)])


def told_as(made: dict[str, float]) -> list[dict[str, object]]:
    """Memory and time of a process as rows of results."""
    same = {
        "peer": None, "peer_value": None, "ratio": None, "bar": None, "met": None, "hardware": "2 CPU cores, one thread each",
        "versions": f"torch {torch.__version__}", "command": "python -m benchmarks.long_rows", "date": date.today().isoformat(),
        "note": f"one row of {TOKENS} tokens, forward and backward, 6 layers of width 256; the most of all processes",
    }  # fmt: skip
    what = f"long rows: {TOKENS} tokens on {int(made['processes'])} process" + ("es" if made["processes"] > 1 else "")
    return [
        {"name": f"{what}, peak memory", "value": round(made["peak_mb"], 1), "unit": "MB", **same},
        {"name": f"{what}, CPU time", "value": round(made["seconds"], 2), "unit": "s", **same},
    ]


if __name__ == "__main__":
    {"one": one, "card": card}.get(sys.argv[-1], main)()
