"""Which learning rate suits: short runs over rates, tasks, sizes and adapters, as `posttrain run` makes them; one row per run.

python -m benchmarks.learning_rate --models pocket smollm2 --tasks word_problems arithmetic counting --jobs 8 \
    --out benchmarks/sweeps/learning_rate.json
python -m benchmarks.learning_rate --tasks word_problems arithmetic --prompts 4 64 --rates 2e-5 7e-5 2e-4 5e-4 --jobs 16 --device cuda \
    --out benchmarks/sweeps/learning_rate.json             (tokens a step)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

RATES = (2e-6, 7e-6, 2e-5, 5e-5, 1.5e-4, 5e-4, 1.5e-3)


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One run; held-out score before and after, and the mean reward of its first and last five steps."""
    import torch

    from posttrain.api import run_config
    from posttrain.core.config import Config, from_dict
    from posttrain.runs.run import Run

    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = {k: v for k, v in job.items() if v is not None}
        config = from_dict(Config, settings | {"name": "run", "save_every": 10_000, "log_rollouts": 0})
        try:
            summary = run_config(config, folder)
        except Exception as error:  # a rate that is far too large may break a run: that is a finding
            return job | {"error": f"{type(error).__name__}: {error}"[:200]}
        with Run.open(Path(folder) / "run") as run:
            reward = [x for _, x in run.store.series("reward")]
            logp = [x for _, x in run.store.series("nll")]
            moved = [x for _, x in run.store.series("policy_shift")]
    score = {k: v for k, v in summary.items() if k.endswith(("_before", "_after")) and not k.startswith("ungraded")}
    mean = lambda xs: round(sum(xs) / max(len(xs), 1), 4)  # noqa: E731
    return job | score | {
        "reward_first": mean(reward[:5]), "reward_last": mean(reward[-5:]), "nll_first": mean(logp[:5]), "nll_last": mean(logp[-5:]),
        "tokens": summary["tokens"], "policy_shift": moved, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["pocket"])
    parser.add_argument("--tasks", nargs="+", default=["word_problems"], help="task, or task:level")
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--loras", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", nargs="+", type=int, default=[16], help="questions a step, 8 answers each")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="")
    parser.add_argument("--think", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, required=True, help="rows are added to what is there")
    args = parser.parse_args()
    jobs = []
    what = (args.models, args.tasks, args.loras, args.rates, args.seeds, args.prompts)
    for model, task, lora, lr, seed, prompts in product(*what):
        name, _, level = task.partition(":")
        job = {
            "method": args.method,
            "model": model,
            "task": name,
            "level": int(level) if level else None,
            "lora": lora,
        }
        job |= {"lr": lr, "seed": seed, "steps": args.steps, "prompts": prompts, "device": args.device}
        drawn = {
            "sampling": {"max_tokens": args.max_tokens},
            "think": args.think,
        }  # what compares written pairs draws none
        jobs.append(job | {"eval_problems": 200} | (drawn if args.method not in ("dpo", "reward-model") else {}))
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    import torch

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
    facts = {"hardware": where, "versions": f"torch {torch.__version__}", "date": time.strftime("%Y-%m-%d")}
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap_unordered(one, jobs):
            rows.append(row | facts)
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
            told = {
                k: row[k]
                for k in row
                if k in ("model", "task", "lora", "lr", "seconds", "error")
                or k.endswith(("_before", "_after", "_last"))
            }
            print(told, flush=True)


if __name__ == "__main__":
    main()
