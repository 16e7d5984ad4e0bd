"""The database of a run: what storing costs a step, and how long its readers take on a large run.

python -m benchmarks.store                                            # 256 answers of 200 tokens per step
python -m benchmarks.store --steps 20000 --answers 25 --queries       # half a million answers, then every reader
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posttrain.core.types import Group, Prompt, Rollout
from posttrain.runs.reader import Reader
from posttrain.runs.store import Store

PROMPTS = 1000
METRICS = {f"metric {i:02}": float(i) for i in range(20)}


def groups(answers: int, tokens: int, size: int, step: int) -> list[Group]:
    """A step of groups of `size`, with random ids and log-probabilities; the prompts come back every so many steps."""
    generator = torch.Generator().manual_seed(step)
    out = []
    for g in range(-(-answers // size)):
        number = (step * 7 + g) % PROMPTS
        prompt = Prompt.text(f"p{number}", f"question {number} " * 12, "42")
        made = []
        for s in range(min(size, answers - g * size)):
            ids = torch.randint(0, 49_000, (tokens,), generator=generator)
            logp = -torch.rand(tokens, generator=generator)
            reward = float(torch.rand((), generator=generator))
            own = torch.ones(tokens, dtype=torch.bool)
            r = Rollout.single(
                prompt, torch.arange(60), ids, logp, own, "word " * tokens, reward, rewards={"right": reward}
            )
            r.index = s
            r.set_stream("adv", torch.full((tokens,), reward - 0.5))
            made.append(r)
        out.append(Group(prompt, made))
    return out


def write(store: Store, args: argparse.Namespace) -> dict[str, float]:
    """Seconds of the main thread per step, the thread beside it left to itself for `pause` seconds after each."""
    took, some = [], [groups(args.answers, args.tokens, args.group, k) for k in range(8)]
    for step in range(args.steps):
        began = time.perf_counter()
        store.log("train", step, METRICS | {"reward": step % 97 / 97}, some[step % 8], 1.0)
        took.append(time.perf_counter() - began)
        time.sleep(args.pause)
    began = time.perf_counter()
    store.sync()
    return {
        "log_ms": 1e3 * statistics.median(took),
        "log_max_ms": 1e3 * max(took),
        "sync_ms": 1e3 * (time.perf_counter() - began),
    }


def queries(path: Path, steps: int) -> dict[str, float]:
    """Milliseconds of each reader, best of three."""
    with Reader(path) as run:
        at = steps // 2
        asked: dict[str, Callable[[], Any]] = {
            "one series": lambda: run.series("reward"),
            "names": run.names,
            "by hundred steps": lambda: run.buckets("reward", "train"),
            "a step": lambda: run.rollouts(step=at, phase="train"),
            "one answer by turns": lambda: run.turns("train", at, 0, 0),
            "best 50": lambda: run.scores(order="best", limit=50, phase="train"),
            "worst 50": lambda: run.scores(order="worst", limit=50, phase="train"),
            "a prompt over time": lambda: run.scores(prompt_id="p7", phase="train"),
            "failed, count": lambda: run.scores(failed=1, phase="train"),
        }
        return {name: round(min(_ms(call) for _ in range(3)), 2) for name, call in asked.items()}


def _ms(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--answers", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between steps: those in which training would go on"
    )
    parser.add_argument("--queries", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        with Store(path, background=True) as store:
            found = write(store, args)
        size = path.stat().st_size / args.steps / args.answers
        out: dict[str, Any] = {k: round(v, 2) for k, v in found.items()} | {"kB_per_answer": round(size / 1e3, 2)}
        if args.queries:
            out["queries_ms"] = queries(path, args.steps)
    print(json.dumps(vars(args) | out, indent=2))


if __name__ == "__main__":
    main()
