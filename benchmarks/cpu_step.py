"""A GRPO step on two CPU cores in fp32, SmolLM2-135M, 8 prompts x 4 answers x 32 tokens, here and in TRL, side by side.

    python -m benchmarks.cpu_step --model smollm2 [--trl] --out benchmarks/results/cpu_step.json

Each runs in a process of its own, in turns, so that neither has the machine to itself and peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 3


def ours(model: str) -> list[float]:
    from benchmarks.grpo_step import steps_of
    from posttrain.policies.load import load_model

    return steps_of(load_model(model, "cpu", "float32"), 8, 4, 32, STEPS)


def trl(model: str) -> list[float]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from benchmarks.grpo_step import texts, worth
    from posttrain.policies.load import find_folder

    folder = find_folder(model)
    ticks: list[float] = []

    class Tick(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ticks.append(time.perf_counter())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), num_generations=4, per_device_train_batch_size=32, max_completion_length=32, max_steps=STEPS,
        use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), args=config,
        processing_class=AutoTokenizer.from_pretrained(folder), train_dataset=Dataset.from_dict({"prompt": texts(64)}),
        reward_funcs=lambda completions, **_: [worth(None, c) for c in completions], callbacks=[Tick()],
    )  # fmt: skip
    trainer.train()
    ticks.append(time.perf_counter())
    return [b - a for a, b in zip(ticks, ticks[1:], strict=False)]


def apart(which: str, model: str) -> dict[str, Any]:
    """One of the two in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu_step", "--only", which, "--model", model], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trl", action="store_true", help="measure TRL too")
    parser.add_argument("--rounds", type=int, default=2, help="how often each runs, in turns")
    parser.add_argument("--only", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.only:
        seconds = (ours if args.only == "ours" else trl)(args.model)
        print(json.dumps({"seconds": seconds, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))
        return
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for which in (("ours", "trl") if args.trl else ("ours",)) * args.rounds:
        runs[which].append(apart(which, args.model))
        print(which, runs[which][-1], flush=True)
    mine, theirs = ([x for r in runs[k] for x in r["seconds"][1:]] for k in ("ours", "trl"))
    value, peer = statistics.median(mine), statistics.median(theirs) if theirs else None
    import torch

    row = {"name": "GRPO step on two CPU cores, SmolLM2-135M, 8 x 4 x 32 tokens, fp32", "value": value, "unit": "s", "peer": "TRL 1.16",
           "peer_value": peer, "ratio": peer / value if peer else None, "bar": "2x TRL, peak memory below 4.4 GB",
           "met": None if peer is None else peer >= 2 * value and max(r["peak_gb"] for r in runs["ours"]) <= 4.4, "runs": runs,
           "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
           "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "command": f"python -m benchmarks.cpu_step --trl --rounds {args.rounds}",
           "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    print(row)
    if args.out:
        args.out.write_text(json.dumps([row], indent=1) + "\n")


if __name__ == "__main__":
    main()
