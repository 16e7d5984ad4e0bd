"""One long row on 1 and 2 CPU processes of one thread: `python -m benchmarks.long_rows` (context parallel, posttrain/models/context.py).

Forward and backward of the sum of log-probabilities through a random decoder that is sharded by FSDP2, rows divided among all processes. Memory is
the process's peak above what it had before the first pass, of the process that had most; seconds are those that it worked (CPU time), with what
it waits for the other left out.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

TOKENS, PROMPT, REPEATS = 4096, 64, 2
SHAPE = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 1024, "num_layers": 6, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32,
    "max_positions": TOKENS,
}  # fmt: skip
RESULTS = Path(__file__).parent / "results" / "long_rows.json"


def one() -> None:
    """In each process: the numbers of all, from the first."""
    from posttrain.core.turn import Observation, Turn
    from posttrain.distributed.group import joined
    from posttrain.models.decoder import Decoder, DecoderConfig
    from posttrain.policies.language import LanguagePolicy
    from posttrain.weights.sharded import Sharded

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Tokenizer:
        all_special_ids, added_tokens_encoder = (), {}

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


def main() -> None:
    rows = []
    for world in (1, 2):
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "-m", "benchmarks.long_rows", "one"]  # fmt: skip
        told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads([line for line in told.splitlines() if line.startswith("{")][-1]))
        print(rows[-1])
    RESULTS.write_text(json.dumps([row for made in rows for row in told_as(made)], indent=1) + "\n")


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
    one() if sys.argv[1:] == ["one"] else main()
