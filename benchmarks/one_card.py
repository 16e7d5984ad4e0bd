"""One GPU shared in four ways: one process; the same sharded by FSDP2 in a world of one; trainer and rollout worker as two processes on the card,
in turn and with a lag of 1, weights from files or from the card's memory. The same run each time, started as users start it: 32 questions, 8 answers of 128 tokens, random weights of a known shape.

python -m benchmarks.one_card --shape SmolLM2-135M --steps 12 --out benchmarks/sweeps/one_card.json

Seconds are medians over the steps after the first three; the arms take turns, so many rounds. `posttrain run` itself checks sampler against trainer at
every step: its largest gap is kept beside the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.rollout import SHAPES, scaled
from posttrain.models.decoder import Decoder
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model, save_model
from posttrain.runs.run import Run

ARMS: dict[str, list[str]] = {
    "one process": [],
    "FSDP2, world of 1": ["--gpus", "1"],
    "two processes, in turn": ["--sampler", "process", "--shards", "1"],
    "two processes, lag 1": ["--sampler", "process", "--shards", "1", "--lag", "1", "--loss", "tis"],
    "two processes, lag 1, ipc": [
        *("--sampler", "process", "--shards", "1", "--lag", "1", "--loss", "tis", "--weights-over", "ipc")
    ],
    "one process, lag 1": ["--shards", "1", "--lag", "1", "--loss", "tis"],
}
SKIP = 3  # first steps, in which kernels are compiled and buffers grow
STAGES = ("seconds", "sampling/seconds", "training/seconds", "storing/seconds")


def model_folder(shape: str, folder: Path) -> Path:
    """Random weights of that shape, with the embedded model's tokenizer."""
    small = load_model("pocket", "cpu")
    torch.manual_seed(0)
    policy = LanguagePolicy(scaled(Decoder(SHAPES[shape])), small.tokenizer)
    save_model(policy, folder)
    return folder


def one(arm: str, model: Path, args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """One run from the command line: medians of its stages, and what went wrong if anything did."""
    name = "run"
    words = [
        sys.executable,
        "-m",
        "posttrain",
        "run",
        "grpo",
        "--model",
        str(model),
        "--task",
        "word_problems",
        "--name",
        name,
    ]
    words += [
        "--steps",
        str(args.steps),
        "--prompts",
        str(args.prompts),
        "--num-generations",
        "8",
        "--eval-problems",
        "0",
    ]
    words += ["--sampling.max-tokens", str(args.tokens), "--save-every", "1000", "--no-think", "--device", args.device]
    words += ["--seed", str(args.seed), "--fresh", *ARMS[arm]]
    began = time.perf_counter()
    done = subprocess.run(words, cwd=runs, env=place(), capture_output=True, text=True, timeout=args.limit, check=False)
    row: dict[str, Any] = {"arm": arm, "whole_s": round(time.perf_counter() - began, 1), "options": " ".join(ARMS[arm])}
    if done.returncode:
        return row | {"error": done.stderr[-1500:]}
    with Run.open(runs / "runs" / name) as run:
        series = {k: [x for _, x in run.store.series(k)] for k in (*STAGES, "logp_gap", "tokens")}
    return row | {k: round(statistics.median(series[k][SKIP:]), 4) for k in (*STAGES, "tokens") if len(series[k]) > SKIP} | {
        "largest_gap": max(series["logp_gap"], default=None), "steps_s": [round(x, 4) for x in series["seconds"]],
    }  # fmt: skip


def place() -> dict[str, str]:
    """The environment, in which the runs find this checkout."""
    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="SmolLM2-135M", choices=SHAPES)
    parser.add_argument("--model", type=Path, help="a folder instead of random weights of a shape")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    facts = {"hardware": torch.cuda.get_device_name() if args.device == "cuda" else f"{os.cpu_count()} CPU cores", "shape": args.shape,
             "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "date": time.strftime("%Y-%m-%d"),
             "command": f"python -m benchmarks.one_card --shape {args.shape} --steps {args.steps} --prompts {args.prompts} --tokens {args.tokens} --rounds {args.rounds}"}  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    with tempfile.TemporaryDirectory() as there:
        model = args.model.resolve() if args.model else model_folder(args.shape, Path(there) / args.shape)
        for arm in args.arms * args.rounds:
            try:
                row = one(arm, model, args, Path(there))
            except subprocess.TimeoutExpired as late:
                last = (late.stderr or b"").decode(errors="replace")[-1500:]
                row = {"arm": arm, "error": f"longer than {args.limit:g} s; it had said: {last}"}
            rows.append(row | facts)
            print({k: row.get(k) for k in ("arm", "whole_s", *STAGES, "largest_gap", "error") if k in row}, flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
