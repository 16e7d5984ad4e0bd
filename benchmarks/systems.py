r"""Twelve systems on one published language model: the same questions and as many answers each, three seeds, two tasks.

python examples/smollm2_tasks.py --out tasks
python -m benchmarks.systems --model smollm2 --tasks tasks/word-problems tasks/two-digit-sums --jobs 4 --out benchmarks/sweeps/systems.json
python -m benchmarks.systems --out benchmarks/sweeps/systems.json --table        (no run: what is there, as Markdown)

Every method runs as registered but for what makes arms equal: 8 answers to each of 16 questions a step, at most 4 updates a step (those that
leave groups out have none for some), no refill of dropped groups: DAPO runs without its dynamic sampling. A task with turns is scored by the mean reward of held-out episodes. How credit is given over turns:

python -m benchmarks.systems --model pocket --tasks examples/guess.py:Guess --systems "ppo(advantage='turn_gae')" ppo gigpo grpo \
    "grpo(advantage='turns')" --seeds 0 1 2 3 4 5 6 7 --steps 25 --problems 200 --max-tokens 16 --device cpu --jobs 20 \
    --out benchmarks/sweeps/turn_credit.json

Rows are added to the file as runs end; a killed command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

SYSTEMS = (
    "grpo", "ppo", "rloo", "reinforce-pp", "dr-grpo", "dapo", "gspo", "cispo", "lite-ppo", "maxrl", "kimi-k1-5", "raft",
)  # fmt: skip
UPDATES = 4  # a step


def equal(id: str, n: int) -> Any:
    """The registered method with as many answers as the others, no updates more, and no other prompts in the place of groups left out."""
    from posttrain.core.method import find_method

    method = find_method(id)
    return method.but(rollout=method.rollout.but(n=n), epochs=1, minibatches=UPDATES, rounds=1)


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One run and its evaluation on held-out questions before and after."""
    import torch

    from claims.machinery.arms import Tally
    from posttrain.api import run

    torch.set_num_threads(1)
    began, tally = time.perf_counter(), Tally()
    settings = {k: job[k] for k in ("model", "task", "steps", "prompts", "seed", "device", "sampling", "eval_problems")}
    with tempfile.TemporaryDirectory() as folder:
        summary = run(
            method=equal(job["system"], job["n"]), name="run", runs=folder, callbacks=(tally,), threads=1, save_every=10_000,
            log_rollouts=0, think=False, **settings,
        )  # fmt: skip
    curve = tally.curves["train"]
    keep = {k: curve[k] for k in ("reward", "length") if k in curve}
    score = "accuracy" if "accuracy_after" in summary else "reward"
    found = {"accuracy_before": summary[f"{score}_before"], "accuracy_after": summary[f"{score}_after"]}
    return job | found | {"spent": tally.spent(), "curve": keep, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", nargs="+", default=["word_problems"])
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--device", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from posttrain.view.systems_table import systems_table

    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    if args.table:
        print("\n".join(systems_table(rows)))
        return
    import torch

    gpu = torch.cuda.is_available() and args.device != "cpu"
    facts = {
        "hardware": torch.cuda.get_device_name() if gpu else f"{os.cpu_count()} CPU cores",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
    }
    same = {"model": args.model, "steps": args.steps, "prompts": args.prompts, "n": args.n, "device": args.device,
            "sampling": {"max_tokens": args.max_tokens}, "eval_problems": args.problems}  # fmt: skip
    jobs = [{"system": s, "task": t, "seed": k} | same for t, k, s in product(args.tasks, args.seeds, args.systems)]
    done = [{k: r.get(k) for k in jobs[0]} for r in rows]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap_unordered(one, [job for job in jobs if job not in done]):
            rows.append(row | facts)
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(
                {k: row[k] for k in ("system", "task", "seed", "accuracy_before", "accuracy_after", "seconds")},
                flush=True,
            )
    print("\n".join(systems_table(rows)))


if __name__ == "__main__":
    main()
