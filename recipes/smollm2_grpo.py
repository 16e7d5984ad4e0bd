"""GRPO on SmolLM2-135M-Instruct's real weights, several tasks and seeds, whole and with LoRA: curves and samples in one JSON.

python recipes/smollm2_grpo.py --model smollm2 --tasks arithmetic word-problems --seeds 3 --out learning.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from posttrain.core.config import Config
from posttrain.core.method import find_method
from posttrain.core.sampling import Sampling
from posttrain.recipe import run


def learn(task: str, seed: int, lora: int, args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """One run; its curve is the mean reward of each step."""
    name = f"{task}-{seed}-{lora}"
    method = find_method("grpo").but(terms=())
    lr = args.lr * (10 if lora else 1)
    config = Config(
        task=task, model=args.model, name=name, seed=seed, steps=args.steps, prompts=32, n=8, lora=lora, lr=lr,
        sampling=Sampling(args.max_tokens), micro_tokens=65536, eval_problems=300, save_every=10_000, log_rollouts=2,
    )  # fmt: skip
    began = time.perf_counter()
    summary = run(config, runs, method=method)
    seconds = time.perf_counter() - began
    with sqlite3.connect(runs / name / "run.sqlite") as db:
        curve = [v for (v,) in db.execute("SELECT value FROM metrics WHERE name = 'reward' ORDER BY step")]
        last = db.execute("SELECT prompt, text, reward FROM rollouts ORDER BY step DESC LIMIT 3").fetchall()
    kept = ("accuracy_before", "accuracy_after", "seconds", "tokens")
    return {"task": task, "seed": seed, "lora": lora, "wall_seconds": seconds, **{k: summary[k] for k in kept},
            "curve": [round(x, 4) for x in curve], "samples": last}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", nargs="+", default=["arithmetic", "word-problems"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--lora", type=int, nargs="+", default=[0, 16], help="ranks; 0 trains the weights")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    about = {"hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
             "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "date": time.strftime("%Y-%m-%d"),
             "command": "python recipes/smollm2_grpo.py", "steps": args.steps, "lr": args.lr}  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as runs:
        for lora in args.lora:
            for task in args.tasks:
                for seed in range(args.seeds):
                    got = learn(task, seed, lora, args, Path(runs))
                    rows.append(got | about)
                    print(
                        f"{task} seed {seed} lora {lora}: {got['accuracy_before']:.1%} -> {got['accuracy_after']:.1%} in {got['wall_seconds']:.0f} s",
                        flush=True,
                    )
                    args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
