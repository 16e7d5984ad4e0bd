r"""Five ways to learn from preferences on one published model and one public set of pairs: DPO, KTO, SimPO, INPO (online) and DPA, three seeds.

python -m benchmarks.preference_data --source ../shared/data/alpaca_eval_prefs --model smollm2 --out carry/prefs
python -m benchmarks.preferences --data carry/prefs --check 5e-6 1.5e-5 5e-5 --out benchmarks/sweeps/preferences.json     (rates, on a seed and prompts of their own)
python -m benchmarks.preferences --data carry/prefs --rates dpo=5e-6 kto=5e-6 --out benchmarks/sweeps/preferences.json
python -m benchmarks.preferences_page benchmarks/sweeps/preferences.json docs/preferences.md         (table and picture)

Two reward models are trained first, on pairs of different prompts: `helpful`, which INPO and DPA may use, and `judge`, which only judges. Every policy
answers the same held-out prompts at temperature 1, and so does the start; the judge says which of the two answers is better, answer by answer.
Every method runs by its registered name; each update learns from as many prompts, and there are as many updates. Rows are added to the file as runs end; a killed command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from pathlib import Path
from typing import Any

METHODS = ("dpo", "kto", "simpo", "inpo", "dpa")
ONLINE = ("inpo", "dpa")
ROUNDS = 3  # of the online ones
CHECK_SEED = 100
REWARD_MODELS = {"helpful": "policy", "judge": "judge"}  # name -> the set it learns from
RUN: dict[str, Any] = {"save_every": 10_000, "keep_checkpoints": 1, "log_rollouts": 0, "threads": 1, "eval_problems": 0}


def settings(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `pt.run` is given for a job: a registered name, its file of rows, and equal budgets."""
    data, updates = Path(job["data"]), job["steps"]
    same = {k: job[k] for k in ("model", "seed", "lr", "device", "micro_tokens", "prompts")} | RUN
    if job["method"] not in ONLINE:  # KTO's rows are answers, two of a pair
        wide = 2 if job["method"] == "kto" else 1
        return same | {
            "method": job["method"],
            "task": str(data / "policy"),
            "steps": updates,
            "prompts": wide * job["prompts"],
        }
    asked, n = job["asked"], job["n"]
    passes = updates // ROUNDS * job["prompts"] / asked
    plan = f"{job['method']}(rounds={ROUNDS}, prompts={asked}, n={n}, epochs={passes:.4f})"
    paid = {"reward": reward_of(job, folder), "reward_timeout": 600.0}
    return same | {"method": plan, "task": str(data / "ask"), "sampling": job["sampling"]} | paid


def reward_of(job: dict[str, Any], folder: Path) -> Any:
    """INPO compares answers by the reward model of the policy's pairs; DPA has that one as `helpful`, and words as `verbose`."""
    from posttrain.rewards.runtime.score import RewardSum
    from posttrain.rewards.scorers.learned import LearnedReward

    helpful = str(awaited(folder, "helpful"))
    if job["method"] == "inpo":
        return helpful
    return RewardSum([("helpful", LearnedReward(helpful, job["device"]), 1.0), ("verbose", verbose, 1.0)], 600.0)


def verbose(prompt: Any, text: str) -> float:
    """How long an answer is, in words."""
    return float(len(text.split()))


def awaited(folder: Path, name: str) -> Path:
    """The run of a reward model, once it has ended."""
    while not (folder / name / "measured").exists():
        if (folder / "failed").exists():
            raise RuntimeError(f"the reward model {name} was not trained")
        time.sleep(0.2)
    return folder / name


def rewarding(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A reward model, and its margins on the held-out pairs."""
    import posttrain as pt
    from benchmarks.preference_looks import pairs_of, released
    from posttrain.evals.reward_model import expected_calibration_error, margins
    from posttrain.rewards.scorers.reward_model import RewardModel
    from posttrain.runs.saved import load_reward_model

    began, name = time.perf_counter(), job["reward_model"]
    data = Path(job["data"])
    pt.run(
        method="reward-model", model=job["model"], task=str(data / REWARD_MODELS[name]), name=name, runs=folder, lr=job["lr"],
        steps=job["steps"], seed=job["seed"], prompts=job["prompts"], device=job["device"], micro_tokens=job["micro_tokens"], **RUN,
    )  # fmt: skip
    pairs = pairs_of(data / "judge" / "test.jsonl.gz")[: job["pairs"]]
    margin_P = margins(RewardModel(load_reward_model(folder / name, job["device"])), pairs)
    (folder / name / "measured").touch()
    longer = [len(p.info["chosen"]) - len(p.info["rejected"]) for p in pairs]
    released()
    return {**job, "margins": [round(float(x), 3) for x in margin_P], "longer": longer, "calibration_error": expected_calibration_error(margin_P),
            "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


def learning(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One run, looked at every so many updates, and judged when it has ended."""
    import posttrain as pt
    from benchmarks.preference_looks import Looks, released

    began = time.perf_counter()
    looks = Looks(job)
    with tempfile.TemporaryDirectory(dir=folder) as room:
        how = settings(job, folder)
        waited = time.perf_counter() - began
        summary = pt.run(name="run", runs=room, callbacks=(looks,), **how)
        looks.end()
        trained = time.perf_counter() - began - waited
    released()
    judges = ("helpful",) if job["split"] == "dev" else ("judge", "helpful")
    points = looks.judged({name: awaited(folder, name) for name in judges})
    row = {**job, "points": points, "curves": looks.curves, "spent": looks.spent(), "lr_used": looks.lr}
    del looks
    released()
    return row | {
        "pairs": summary.get("pairs"),
        "training_seconds": round(trained, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def work(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return rewarding(job, folder) if "reward_model" in job else learning(job, folder)


def reward_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy of each reward model on the held-out pairs, on those whose preferred answer is the shorter one, and how often both agree."""
    for r in rows:
        told = list(zip(r["margins"], r["longer"], strict=True))
        r["accuracy"] = share([m > 0 for m, _ in told])
        r["accuracy_where_chosen_is_shorter"] = share([m > 0 for m, d in told if d < 0])
        r["accuracy_of_the_longer_one"] = share([d > 0 for _, d in told])
        r["held_out_pairs"] = len(told)
    if len(rows) == 2:
        both = list(zip(*(r["margins"] for r in rows), strict=True))
        for r in rows:
            r["agreement"] = share([(a > 0) == (b > 0) for a, b in both])
    return [{k: v for k, v in r.items() if k not in ("margins", "longer")} for r in rows]


def share(xs: list[bool]) -> float:
    return round(sum(xs) / len(xs), 4) if xs else float("nan")


def jobs_of(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Reward models, and runs: on `--check` one for each rate, on a seed and prompts of their own."""
    about = json.loads((args.data / "about.json").read_text())["sets"]
    same = {
        "model": args.model,
        "data": str(args.data),
        "device": args.device,
        "micro_tokens": args.micro_tokens,
        "prompts": args.prompts,
    }
    models = [
        {"reward_model": name, "steps": args.rm_steps, "pairs": args.pairs, "seed": 0, "lr": None} | same
        for name in (("helpful",) if args.check else REWARD_MODELS)
    ]
    same |= {
        "steps": args.steps,
        "n": args.n,
        "asked": args.asked or about["policy"]["prompts"],
        "sampling": {"max_tokens": args.max_tokens},
    }
    rates = {k: float(v) for k, v in (x.split("=") for x in args.rates)}
    if args.check:
        same |= {"split": "dev", "every": args.steps, "samples": 8, "problems": args.problems, "seed": CHECK_SEED}
        return models, [{"method": m, "lr": lr} | same for lr, m in product(args.check, args.methods)]
    same |= {"split": "held_out", "every": args.every, "samples": args.samples, "problems": args.problems}
    order = sorted(
        args.methods, key=("dpo", "kto", "inpo", "dpa", "simpo").index
    )  # by when they can begin, and the shortest last
    return models, [{"method": m, "lr": rates.get(m), "seed": s} | same for m, s in product(order, args.seeds)]


def chosen_rates(rows: list[dict[str, Any]]) -> str:
    """The rate of each method that wins most, at equal length, against the start: by `helpful`, on prompts nobody else uses."""
    best: dict[str, dict[str, Any]] = {}
    for r in rows:
        rate = r["points"][-1]["helpful"]["length_controlled"]
        if rate > best.get(r["method"], {"rate": -1.0})["rate"]:
            best[r["method"]] = {"rate": rate, "lr": r["lr"]}
    return " ".join(f"{m}={x['lr']:g}" for m, x in best.items())


def main() -> None:
    args = options()
    import torch

    facts = {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    began = time.perf_counter()
    rows: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    models, runs = jobs_of(args)
    runs = [job for job in runs if job not in [{k: r.get(k) for k in job} for r in rows]]
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.runs or None, ignore_cleanup_errors=True) as room:
        left = args.limit - (time.perf_counter() - began) if args.limit else None
        for job, row in results([*models, *runs], Path(room), args.jobs, left):
            (measured if "reward_model" in job else rows).append(row | facts)
            kept = [r for r in rows if "reward_model" not in r]
            both = reward_rows([dict(r) for r in measured])
            args.out.write_text(json.dumps([*both, *kept], indent=1) + "\n")
            print(f"{time.perf_counter() - began:6.1f} s  {told(row)}", flush=True)
    if args.check:
        print("--rates", chosen_rates([r for r in rows if r.get("split") == "dev"]))


def results(
    jobs: list[dict[str, Any]], folder: Path, processes: int, seconds: float | None
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Jobs and their rows as they end, until the time is over. A run that failed is tried once more; nobody waits for a reward model that did."""
    until = time.perf_counter() + seconds if seconds else None
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    asked = {pool.submit(work, job, folder): (job, 1) for job in jobs}
    while asked:
        done, _ = wait(asked, max(until - time.perf_counter(), 0) if until else None, FIRST_COMPLETED)
        if not done:
            print(f"the time is over, {len(asked)} jobs had not ended", file=sys.stderr)
            break
        for future in done:
            (job, tries), error = asked.pop(future), future.exception()
            if error is None:
                yield job, future.result()
                continue
            print(f"FAILED {job}: {error!r}", file=sys.stderr, flush=True)
            if "reward_model" in job:
                (folder / "failed").touch()
            elif tries < 2 and not isinstance(error, BrokenProcessPool):
                asked[pool.submit(work, job, folder)] = job, tries + 1
    mine = list((pool._processes or {}).values())
    pool.shutdown(wait=not asked, cancel_futures=True)
    for process in mine if asked else ():
        process.terminate()
        process.join(20)


def told(row: dict[str, Any]) -> str:
    if "reward_model" in row:
        return f"{row['reward_model']}: {share([m > 0 for m in row['margins']]):.1%} of {len(row['margins'])} held-out pairs, {row['seconds']} s"
    last = row["points"][-1]
    who = "judge" if "judge" in last else "helpful"
    figures = ", ".join(f"{k} {last[k]:.4g}" for k in ("kl", "tokens", "ended", "per_input"))
    return (f"{row['method']} seed {row['seed']} lr {row['lr_used']:g}: wins {last[who]['win_rate']:.1%}, at equal length {last[who]['length_controlled']:.1%} "
            f"({who}), {figures}; {row['seconds']} s, of them training {row['training_seconds']}")  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("carry/prefs"), help="what benchmarks.preference_data wrote")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="updates of a run; a multiple of the rounds")
    parser.add_argument("--rm-steps", type=int, default=160, help="updates of a reward model")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of an update")
    parser.add_argument(
        "--asked", type=int, default=0, help="prompts of a round, for inpo and dpa; 0: all of the policy's"
    )
    parser.add_argument(
        "--pairs", type=int, default=10_000, help="held-out pairs that reward models are measured on, at most"
    )
    parser.add_argument("--n", type=int, default=8, help="answers to a prompt of a round, for inpo and dpa")
    parser.add_argument(
        "--rates", nargs="*", default=[], help="METHOD=RATE; the package's own for the model's size else"
    )
    parser.add_argument("--check", nargs="*", type=float, default=[], help="rates to compare, in place of the runs")
    parser.add_argument("--every", type=int, default=20, help="updates between two looks")
    parser.add_argument("--samples", type=int, default=2, help="answers to a held-out prompt")
    parser.add_argument("--problems", type=int, default=10_000, help="held-out prompts, at most")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--micro-tokens", type=int, default=4096)
    parser.add_argument("--device", default="")
    parser.add_argument("--jobs", type=int, default=8, help="processes that share the device")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds after which no run is waited for; 0: all are")
    parser.add_argument("--runs", default="", help="where runs are kept while they last")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.steps % ROUNDS:
        parser.error(f"--steps {args.steps}: the online methods go in {ROUNDS} rounds of equal size")
    return args


if __name__ == "__main__":
    main()
