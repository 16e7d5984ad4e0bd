"""`posttrain eval` on preference pairs: a reward model by its scores, any other model by its log-probabilities."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError


def pair_columns(args: argparse.Namespace, trained: Mapping[str, Any]) -> dict[str, str]:
    """field -> column, as the options say, else as the run did where the pairs are its own."""
    own = args.task is None or args.task == trained.get("task")
    found = {k: getattr(args, k) or (trained.get(k) if own else "") for k in ("question", "chosen", "rejected")}
    return {k: str(v) for k, v in found.items() if v}


def holds_pairs(spec: str, columns: Mapping[str, str]) -> bool:
    """Whether a task is one of preference pairs: by name, or by the columns of the file's first row."""
    from posttrain.core.registry import parse
    from posttrain.environments.feedback import kind_of_source
    from posttrain.environments.presets import PREFERRED
    from posttrain.environments.task import looks_like_file

    name, given = parse(spec) if spec.strip().endswith(")") else (spec.strip(), {})
    if name.removeprefix("data/").replace("-", "_") in PREFERRED:
        return True
    if not looks_like_file(name) or not Path(name).exists():
        return False
    named = {**columns, **{k: str(v) for k, v in given.items()}}
    return {"chosen", "rejected"} <= set(named) or bool(kind_of_source(name, None, named))


def evaluate_pairs(args: argparse.Namespace, judge: Path | None = None, policy: Any = None, config: Any = None) -> int:
    """Accuracy, margin and calibration on pairs; `judge` is the folder of a reward model."""
    from posttrain.evals.figures import check_column, lines
    from posttrain.evals.pair_figures import answers_of, margins_of, pair_figures
    from posttrain.runs.checkpoint import write_atomic

    refuse(args)
    values, trained = scorer_of(args, judge, policy, config)
    trained_on = str(trained.get("task", ""))
    rows = pairs_of(args, args.task or trained_on, trained)
    pairs, window = fitting(rows, values if policy is None else policy)
    left_out = len(rows) - len(pairs)
    if not pairs:
        raise UserError(
            f"all {left_out:,} pairs are longer than the model's window of {window:,} tokens; use shorter texts"
        )
    pairs = pairs[: args.problems]
    check_column(pairs, args.by)
    margins = margins_of(values, pairs)
    found = pair_figures(pairs, margins, judge is not None, args.by)
    if pairs and found["failed"] == len(pairs):
        raise UserError(f"not one of {len(pairs)} pairs has finite scores; the model is damaged, or was never trained")
    found |= {"task": args.task or trained_on, "model": args.model or "pocket", "left_out": left_out}
    found["scored_by"] = "the reward model" if judge is not None else "log-probability"
    if args.save:
        rows = [answers_of(p, m, args.by) for p, m in zip(pairs, margins, strict=True)]
        write_atomic(Path(args.save), lines(rows))
        print(f"every pair is in {args.save}", file=sys.stderr)
    show(found, args.json, f"pairs of more than {window:,} tokens with their answers, which is the model's window")
    return 0


def scorer_of(args: argparse.Namespace, judge: Path | None, policy: Any, config: Any) -> tuple[Any, dict[str, Any]]:
    """A function that scores answers, and the settings that the model was trained with."""
    from posttrain.core.config import to_dict
    from posttrain.rewards.scorers.learned import run_of, values_of
    from posttrain.runs import saved as saved  # so that a run can be read
    from posttrain.runs.settings import read_config

    if judge is None:
        from posttrain.evals.pair_figures import log_probability

        return log_probability(policy), to_dict(config)
    folder, _ = run_of(judge)
    trained = read_config(folder) if (folder / "run.sqlite").exists() else {}
    if not trained.get("task") and not args.task:
        raise UserError("say which pairs to score: --task pairs.jsonl")
    return values_of(judge, args.device), trained


def pairs_of(args: argparse.Namespace, task: str, trained: Mapping[str, Any]) -> list[Any]:
    """The pairs, asked as in training: those held out of the model's own task, all of another."""
    from posttrain.environments.mapped import with_system_message
    from posttrain.environments.task import pair_task

    env: Any = pair_task(task, args.data or trained.get("data") or None, **pair_columns(args, trained))
    system = args.system if args.system is not None else trained.get("system")
    env = with_system_message(env, str(system)) if system else env
    split = args.split or ("test" if task == trained.get("task") else "all")
    rows = [*(env.train if split != "test" else ()), *(env.test if split != "train" else ())]
    if not rows:
        raise UserError(f"{task} has no {split} pairs; use --split all")
    return rows


def fitting(pairs: list[Any], reader: Any) -> tuple[list[Any], int]:
    """The pairs that fit into the model's window with both their answers, as in training; and the window, 0 where none is known."""
    from posttrain.core.sampling import Sampling
    from posttrain.policies.window import positions
    from posttrain.runs.fit import needed

    policy = getattr(reader, "policy", reader)  # of a reward model
    window = int(getattr(policy, "window", 0) or positions(getattr(reader, "model", None)))

    def length(p: Any) -> int:
        if policy is reader and hasattr(reader, "pieces"):  # a classifier, with its own template
            return max(len(reader.encode(p, p.info[k])) for k in ("chosen", "rejected"))
        return needed(policy, p, "pairs", Sampling(), window)

    return [p for p in pairs if not window or length(p) <= window], window


def refuse(args: argparse.Namespace) -> None:
    """Options of answers mean nothing for pairs."""
    for name in ("reward", "rollout", "temperature", "max_tokens", "url"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for answers that a model writes; pairs are written already")
    if args.num_generations > 1:
        raise UserError("--num-generations is for answers that a model writes; pairs are written already")


def show(found: dict[str, Any], as_json: bool, reason: str) -> None:
    from posttrain.commands.eval import strict

    if as_json:
        print(json.dumps(strict(found)))
        return
    from rich.console import Console

    from posttrain.view.eval_tables import pair_tables

    if found["left_out"]:
        print(f"left out: {found['left_out']:,} {reason}")
    pair_tables(Console(highlight=False), found)
