"""Rollouts and rewards elsewhere, measured: what a lag hides, what killed workers cost, what Ray and publishing add to a step.

python -m benchmarks.scale hide        sync against --lag 1, with a reward that takes half a step (bar: 80% of it is hidden)
python -m benchmarks.scale kills       a worker killed every so often (bar: 1.2 times the measured restarts and lost shards)
python -m benchmarks.scale overhead    seconds a step besides sampling, with processes and with Ray (bar: 50 ms with Ray, without weights)
python -m benchmarks.scale tail        a step in sync, with a lag of 1 and opportunistic, and the accuracy after as many steps
python -m benchmarks.scale publish     weights from the trainer to a worker
    --out benchmarks/results/scale.json keeps the rows. Every comparison is made side by side in one call; medians of its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import posttrain.api as api
from benchmarks.rollout import SHAPES, scaled
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.distributed import choose
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.pool import Died, Pool
from posttrain.distributed.process import Process
from posttrain.distributed.setup import setup
from posttrain.distributed.versions import Versions, load
from posttrain.distributed.worker import Worker
from posttrain.environments.task import task
from posttrain.methods.grpo import grpo
from posttrain.models.decoder import Decoder
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_tokenizer
from posttrain.runs.build import load_policy
from posttrain.runs.run import Run
from posttrain.runs.wire import pack, unpack

REWARD = """
import os, time

def slow(prompts, texts):
    time.sleep(float(os.environ["SLOW"]))
    return [float(p.answer is not None and t.rstrip().endswith(str(p.answer))) for p, t in zip(prompts, texts)]
"""
SKIP = 2  # first steps of a run, which are not counted


class Steps:
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step(self, loop: Any, step: int, metrics: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def median(self) -> float:
        return statistics.median(b - a for a, b in zip(self.ends[SKIP:], self.ends[SKIP + 1 :], strict=False))


def train(folder: Path, name: str, **changes: Any) -> Steps:
    """A run of the embedded model; how long its steps took."""
    plain: dict[str, Any] = {
        "name": name, "task": "word_problems", "steps": 12, "threads": 1, "eval_problems": 0, "save_every": 1000,
        "sampling": Sampling(max_tokens=48), "shards": 4, "reward_timeout": 60.0,
    }  # fmt: skip
    steps = Steps()
    api.run_config(Config(**(plain | changes)), folder, method=grpo, callbacks=(steps,))
    return steps


def hide(folder: Path, steps: int, sampler: str) -> list[dict[str, Any]]:
    """A reward that takes half a step: seconds of a step without it, with it, and with it under a lag of 1."""
    (folder / "mine.py").write_text(REWARD)
    reward, found = f"{folder / 'mine.py'}:slow", {}
    os.environ["SLOW"] = "0"
    step = train(folder, "size", reward=reward, steps=steps, sampler=sampler).median
    for lag in (0, 1):
        for slow in (0.0, step / 2):
            os.environ["SLOW"] = str(slow)
            name = f"lag {lag}, {'slow' if slow else 'quick'} reward"
            found[name] = train(
                folder, name.replace(", ", "-").replace(" ", "_"), reward=reward, steps=steps, sampler=sampler, lag=lag
            ).median
    hidden = 1 - (found["lag 1, slow reward"] - found["lag 1, quick reward"]) / (step / 2)
    return [{
        "name": f"share of a reward of half a step that --lag 1 hides, --sampler {sampler}", "value": hidden, "unit": "share",
        "peer": "sync, seconds a step", "peer_value": found["lag 0, slow reward"],
        "ratio": found["lag 0, slow reward"] / found["lag 1, slow reward"], "bar": "at least 0.80", "met": hidden >= 0.8,
        "reward_s": step / 2, "step_s": found,
    }]  # fmt: skip


def tail(folder: Path, steps: int) -> list[dict[str, Any]]:
    """One worker, answers of unequal length: who waits for the longest, and what it does to the accuracy."""
    found: dict[str, Any] = {}
    for name, how in (("sync", {}), ("lag 1", {"lag": 1}), ("at most 1", {"max_staleness": 1})):
        folder_of = name.replace(" ", "_")
        step = train(folder, folder_of, sampler="process", shards=8, steps=steps, eval_problems=200, **how).median  # type: ignore[arg-type]
        accuracy = json.loads((folder / folder_of / "summary.json").read_text())["accuracy_after"]
        found[name] = {"step_s": step, "accuracy": accuracy}
    value = found["at most 1"]["step_s"] / found["lag 1"]["step_s"]
    return [{
        "name": f"a step of opportunistic sampling in steps of a lag of 1, {steps} steps", "value": value, "unit": "x", "peer": "sync, seconds a step",
        "peer_value": found["sync"]["step_s"], "ratio": found["sync"]["step_s"] / found["at most 1"]["step_s"], "bar": None, "met": None,
        "found": found,
    }]  # fmt: skip


class Watched(Process):
    """A worker that notes how long it took to begin, and how far it was in what its death lost."""

    every: list[Watched] = []
    starts: list[float] = []
    lost: list[float] = []

    def __init__(self, told: bytes, index: int) -> None:
        super().__init__(told, index)
        self.every.append(self)

    def start(self) -> bytes:
        had, began = self.pid, time.perf_counter()
        reply = super().start()
        if self.pid != had:
            self.starts.append(time.perf_counter() - began)
        return reply

    def ask(self, message: bytes, timeout: float) -> bytes:
        began = time.perf_counter()
        try:
            return super().ask(message, timeout)
        except Died:
            self.lost.append(time.perf_counter() - began)
            raise


def kills(folder: Path, steps: int, every: float) -> list[dict[str, Any]]:
    """The same run with and without a worker that is killed every so many seconds."""
    choose.Process = Watched  # type: ignore[misc]
    how = {"sampler": "process", "rollout_workers": 1, "lag": 1, "steps": steps}
    calm = _timed(lambda: train(folder, "calm", **how))
    Watched.every, Watched.starts, Watched.lost = [], [], []
    over = threading.Event()

    def hunt() -> None:
        while not over.wait(every):
            alive = [w for w in Watched.every if w.popen is not None and w.popen.poll() is None]
            if alive and len(Watched.starts) > len(Watched.lost):
                alive[0].popen.kill()  # type: ignore[union-attr]

    hunter = threading.Thread(target=hunt, daemon=True)
    hunter.start()
    wild = _timed(lambda: train(folder, "wild", **how))
    over.set()
    same = [_answers(folder / name) for name in ("calm", "wild")]
    spent = sum(Watched.starts[1:]) + sum(Watched.lost)
    ratio = (wild - calm) / max(spent, 1e-9)
    return [{
        "name": f"seconds that kills of the one worker every {every:g} s cost, in those of its restarts and lost shards", "value": ratio,
        "unit": "x", "peer": "without kills, seconds", "peer_value": calm, "ratio": wild / calm, "bar": "at most 1.2",
        "met": ratio <= 1.2 and same[0] == same[1], "kills": len(Watched.lost), "restarts_s": Watched.starts[1:],
        "lost_s": Watched.lost, "seconds": wild, "same_samples": same[0] == same[1],
    }]  # fmt: skip


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _answers(folder: Path) -> list[Any]:
    with Run.open(folder) as run:
        return [(r["step"], r["prompt_id"], r["text"], r["reward"], r["version"]) for r in run.store.rollouts()]


def overhead(folder: Path, steps: int) -> list[dict[str, Any]]:
    """Steps of 8 shards of a model that takes next to no time, asked in turn of this process, of another and of a Ray actor; the weights
    are there. What is subtracted is the same work in this process, step by step."""
    config = Config(model=light(folder), task="word_problems", threads=1, sampling=Sampling(max_tokens=8))
    torch.set_num_threads(1)
    told = setup(config, grpo.rollout.but(n=4))
    weights = Versions(folder / "versions").publish(0, load_policy(config))
    env, ledger = task("word_problems"), Ledger(folder / "ledger")
    plain = {"do": "make", "step": 0, "version": 0, "path": weights.path, "weights": weights.digest}
    asked = [pack(plain | {"prompts": [env.prompt(2 * i), env.prompt(2 * i + 1)]}) for i in range(8)]
    here, pools = Worker(told), {}
    for name in ("process", "ray"):
        pools[name] = Pool(choose.Elsewhere(_but(config, sampler=name), folder).handles(told, 1), 600.0)

    def remote(k: int, pool: Pool) -> None:
        futures = [pool.submit((k, i), m, "") for i, m in enumerate(asked)]
        for i, future in enumerate(futures):
            ledger.write(k, 0, i, reply := future.result())
            unpack(reply)

    for pool in pools.values():
        remote(-1, pool)  # it loads its weights
    seconds: dict[str, list[float]] = {"local": [], "process": [], "ray": []}
    for k in range(steps):
        seconds["local"].append(_timed(lambda: [unpack(here.reply(m)[1:]) for m in asked]))
        for name, pool in pools.items():
            seconds[name].append(_timed(lambda pool=pool, k=k: remote(k, pool)))  # type: ignore[misc]
    rows = []
    for name, pool in pools.items():
        pool.close()
        extra = 1000 * statistics.median(x - y for x, y in zip(seconds[name], seconds["local"], strict=True))
        local = statistics.median(seconds["local"])
        rows.append({
            "name": f"overhead of a step of 8 shards, --sampler {name}, ledger and all, without weights", "value": extra, "unit": "ms",
            "peer": "this process, seconds a step", "peer_value": local, "ratio": statistics.median(seconds[name]) / local,
            "bar": "at most 50 ms" if name == "ray" else None, "met": extra <= 50 if name == "ray" else None, "seconds": seconds,
        })  # fmt: skip
    return rows


def light(folder: Path) -> str:
    """A model of a few thousand weights with the embedded model's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from posttrain.policies.load import find_folder, load_tokenizer

    tokenizer = load_tokenizer(find_folder("pocket"))
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": len(tokenizer),
    }
    end = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape, **end)).save_pretrained(folder / "light")
    tokenizer.save_pretrained(folder / "light")
    return str(folder / "light")


def _but(config: Config, **changes: Any) -> Config:
    import dataclasses

    return dataclasses.replace(config, **changes)


def _median(n: int, work: Callable[[int], Any]) -> float:
    work(0)  # leaves what there is to be read
    return statistics.median(_timed(lambda k=k: work(k)) for k in range(1, n + 1))  # type: ignore[misc]


def publish(folder: Path, steps: int, shape: str = "") -> list[dict[str, Any]]:
    """One hash and three copies: out of the weights into the page cache, from there into a table, and into the worker's own. Of the embedded
    model, or of random weights of a known shape, on a GPU where there is one."""
    policy, versions = load_policy(Config()) if not shape else random_policy(shape), Versions(folder)
    other = policy.clone()
    out = _median(steps, lambda k: versions.publish(1, policy))
    into = _median(steps, lambda k: load(other, versions.find(1).path))
    size = Path(versions.find(1).path).stat().st_size
    return [{
        "name": f"weights of {size / 1e6:.1f} MB published and loaded", "value": 1000 * (out + into), "unit": "ms", "peer": "writing and hashing",
        "peer_value": 1000 * out, "ratio": (out + into) / out, "bar": None, "met": None, "copies": 3, "hashes": 1, "bytes": size,
    }]  # fmt: skip


def random_policy(shape: str) -> LanguagePolicy:
    cuda = torch.cuda.is_available()
    with torch.device("cuda" if cuda else "cpu"):
        model = scaled(Decoder(SHAPES[shape])).to(torch.bfloat16)
    return LanguagePolicy(model, load_tokenizer(str(Path(api.__file__).parent / "models" / "pocket")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["hide", "kills", "overhead", "tail", "publish"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between kills")
    parser.add_argument("--sampler", default="local", help="of hide")
    parser.add_argument("--shape", default="", choices=["", *SHAPES], help="of publish")
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        more = {"kills": [args.every], "hide": [args.sampler], "publish": [args.shape]}.get(args.what, [])
        rows = globals()[args.what](at, args.steps, *more)
    for row in rows:
        row |= {
            "hardware": f"{os.cpu_count()} CPU cores" + (f", {args.note}" if args.note else ""),
            "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
            "command": " ".join(["python -m benchmarks.scale", *sys.argv[1:]]).partition(" --note")[0], "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        print(json.dumps(row, indent=1), flush=True)
    if args.out:
        old = json.loads(args.out.read_text()) if args.out.exists() else []
        args.out.write_text(json.dumps([*old, *rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
