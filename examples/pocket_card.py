"""Measure the embedded model on held-out problems of every task, level and mode, and write its model card.

python examples/pocket_card.py --model posttrain/models/pocket --problems 200
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from posttrain.core.sampling import Sampling
from posttrain.environments.school import LEVELS, TASKS, school
from posttrain.evals.accuracy import accuracy
from posttrain.policies.load import load_model


def measure(model: str, problems: int, levels: list[int] | None, device: str) -> list[dict[str, Any]]:
    """One row per task, level and mode: accuracy sampled at temperature 1 and greedy."""
    policy = load_model(model, device)
    rows = []
    for name, module in TASKS.items():
        for level in levels or [module.DEFAULT_LEVEL]:
            for think in (True, False):
                env = school(name, level, think)
                sampled = accuracy(policy, env, problems, Sampling(192))
                greedy = accuracy(policy, env, problems, Sampling(192, temperature=0.0))
                rows.append({
                    "task": name, "level": level, "default": level == module.DEFAULT_LEVEL, "think": think,
                    "sampled": sampled.accuracy, "greedy": greedy.accuracy, "error": sampled.error,
                    "tokens": sampled.tokens, "problems": sampled.problems,
                })  # fmt: skip
    return rows


def card(rows: list[dict[str, Any]], trained: dict[str, Any]) -> str:
    """The model card as Markdown."""
    out = [
        "# Pocket", "",
        "The small model inside posttrain: a Llama-style decoder trained from scratch on school tasks that the project",
        "writes itself, so that every method has something to sharpen on a laptop. It knows no facts worth trusting.", "",
        f"- Parameters: {trained['parameters']:,} (bf16), vocabulary 512, digits single, chat template included.",
        f"- Trained by `examples/pocket.py` for {trained['minutes']:g} minutes on {trained['hardware']}.",
        "- Half of its written answers follow a wrong habit on purpose (carries forgotten, the wrong end of a list, one short):",
        "  the right way 62% of the time in some wordings of a question, 30% in others. It knows better; RL makes it careful.", "",
        "Accuracy on held-out problems at each task's default level, one answer sampled at temperature 1 (and greedy):", "",
        "| task | level | thinking: sampled | greedy | tokens | answer only: sampled | greedy |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    default = [r for r in rows if r["default"]]
    for name in dict.fromkeys(r["task"] for r in default):
        a, b = sorted((r for r in default if r["task"] == name), key=lambda r: not r["think"])
        out.append(
            f"| {name} | {a['level']} | {a['sampled']:.0%} | {a['greedy']:.0%} | {a['tokens']:.0f} "
            f"| {b['sampled']:.0%} | {b['greedy']:.0%} |"
        )
    problems = default[0]["problems"]
    return "\n".join(
        [*out, "", f"{problems} problems a cell; standard error at most {max(r['error'] for r in default):.1%}.", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="posttrain/models/pocket")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--all-levels", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.time()
    rows = measure(args.model, args.problems, list(LEVELS) if args.all_levels else None, args.device)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    for r in rows:
        print(
            f"{r['task']:14} {r['level']} {'think' if r['think'] else 'direct':6} {r['sampled']:.2f} {r['greedy']:.2f} {r['tokens']:.0f}"
        )
    trained = json.loads((Path(args.model) / "trained.json").read_text())
    (Path(args.model) / "MODEL_CARD.md").write_text(card(rows, trained))
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
