"""examples:
posttrain eval --task arithmetic
posttrain eval --model grpo-arithmetic --num-generations 8
posttrain eval --model path/to/model --task gsm8k --data path/to/data --problems 500 --temperature 0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.commands.policy import load, policy_options
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts


def options(parser: Parser) -> None:
    policy_options(parser)
    group = parser.add_argument_group("what is measured")
    group.add_argument("--task", metavar="TASK", help="a task as in posttrain run [the run's, or arithmetic]")
    group.add_argument("--level", type=whole, metavar="N", help="difficulty of a school task")
    group.add_argument("--think", action=argparse.BooleanOptionalAction, help="ask for a written chain of thought")
    group.add_argument("--system", metavar="TEXT", help="a system message for every prompt [the run's]")
    group.add_argument("--question", metavar="COLUMN", help="column of a data file that holds the question")
    group.add_argument("--answer", metavar="COLUMN", help="column of a data file that holds the answer")
    group.add_argument("--data", metavar="DIR", help="folder of data sets, for presets")
    group.add_argument("--problems", type=whole, default=200, metavar="N", help="held-out problems [200]")
    group.add_argument(
        "--num-generations", type=whole, default=1, metavar="N", help="answers per problem, for pass@k [1]"
    )
    group.add_argument(
        "--temperature", type=number, metavar="X", help="sampling temperature; 0 is greedy [the run's, or 1]"
    )
    group.add_argument("--max-tokens", type=whole, metavar="N", help="longest answer, in tokens [the run's, or 64]")
    group.add_argument(
        "--rollout",
        metavar="ROLLOUT",
        help='how answers are generated: "memory" or "memory(reading=(2, 64))" [in one pass]',
    )
    group.add_argument("--split", default="test", choices=("train", "test"), help="split the problems come from [test]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    for key in ("problems", "num-generations"):
        if (given := getattr(args, key.replace("-", "_"))) < 1:
            raise UserError(f"--{key} is {given}; it must be at least 1")
    policy, config = load(args)
    changes = {k: v for k in ("temperature", "max_tokens") if (v := getattr(args, k)) is not None}
    how = dataclasses.replace(config.sampling, **changes)
    if how.temperature == 0 and args.num_generations > 1:
        raise UserError(
            f"at temperature 0 all {args.num_generations} answers are the same; use --num-generations 1 or a temperature above 0"
        )
    policy.temperature = how.temperature or 1.0
    env = task_of(args, config)
    if not env.graded:
        raise UserError(f"{env.name} has no gold answers, so nothing says which answers are right; use another --task")
    from posttrain.evals.accuracy import answers, graded, held_out
    from posttrain.rewards.scorers.spec import task_scorer
    from posttrain.runs.fit import fit

    if not args.rollout:
        env = fit(env, policy, None, how)
        for reason, n in getattr(env, "left_out", {}).items():
            if n and not args.json:
                print(f"left out: {n:,} {reason}")
    made = answers(
        policy, env, held_out(env, args.problems, args.split), how, args.num_generations, rollout_of(args.rollout)
    )
    score = graded(made, task_scorer(env, config.reward_timeout), "accuracy")
    if score.rollouts and score.failed == len(score.rollouts):
        raise UserError(f"not one of {score.failed} answers could be graded: {score.why}")
    result = figures(score, args.num_generations) | {
        "task": args.task or config.task,
        "model": args.run or config.model,
    }
    result |= {"temperature": how.temperature, "split": args.split}
    if args.json:
        print(json.dumps(result))
    else:
        show(result, score, args)
    return 0


def rollout_of(spec: str | None) -> Any:
    """The rollout part by name; it must be one that can be used at test time."""
    if not spec:
        return None
    part = find(spec, "rollout")
    if not part.card.at_test:
        ways = " or ".join(p.name for p in parts("rollout") if p.card.at_test)
        raise UserError(f"--rollout {part.name}: not a way to answer a test; use {ways}, or leave it out")
    return part


def task_of(args: argparse.Namespace, config: Any) -> Any:
    """The task asked for; options that were not given are the run's, if it is the run's task."""
    from posttrain.environments.mapped import with_system_message
    from posttrain.environments.task import task

    own = args.task is None or args.task == config.task
    level = args.level if args.level is not None else config.level if own else None
    think = args.think if args.think is not None else config.think if own else None
    said: dict[str, Any] = {
        k: getattr(args, k) or (getattr(config, k) if own else "") or None for k in ("question", "answer")
    }
    said |= {"stream": (config.stream if own else False) or None, "data": args.data or config.data or None}
    env = task(args.task or config.task, level=level, think=think, **said)
    system = args.system if args.system is not None else config.system
    return with_system_message(env, system) if system else env


def figures(score: Any, n: int) -> dict[str, Any]:
    """Accuracy, and pass@k for k = 1, 2, 4 ... n: an answer passes with full marks; pass@k leaves a problem out unless all
    of its answers could be graded."""
    from posttrain.evals.pass_at_k import ladder, mean_pass_at_k

    rows = [score.rollouts[i : i + n] for i in range(0, len(score.rollouts), n)]
    rows = [row for row in rows if not any(math.isnan(r.reward or 0.0) for r in row)]
    right = [sum((r.reward or 0.0) >= 1.0 for r in row) for row in rows]
    passed = {k: mean_pass_at_k(n, right, k) for k in ladder(n) if right}
    return {
        "accuracy": score.accuracy, "error": score.error, "problems": score.problems, "n": n,
        "pass_at_k": {str(k): {"mean": m, "error": e} for k, (m, e) in passed.items()},
        "failed": score.failed, "why": score.why, "tokens_per_answer": score.tokens, "ended": sum(not r.truncated for r in score.rollouts) / len(score.rollouts),
    }  # fmt: skip


def show(result: dict[str, Any], score: Any, args: argparse.Namespace) -> None:
    import shlex

    from rich.console import Console
    from rich.table import Table

    from posttrain.view.figures import percent
    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    title = f"{result['model']} on {result['task']}: {result['problems']} problems, {result['n']} answers each"
    table = Table("", "mean", "± standard error", title=title, title_justify="left")
    table.add_row("accuracy", percent(result["accuracy"]), f"{100 * result['error']:.1f}")
    for k, p in result["pass_at_k"].items() if result["n"] > 1 else ():
        table.add_row(f"pass@{k}", percent(p["mean"]), f"{100 * p['error']:.1f}")
    table.add_row("tokens per answer", f"{result['tokens_per_answer']:.1f}", "")
    table.add_row("finished answers", percent(result["ended"]), "")
    console.print(table)
    if score.told:
        console.print(score.told, style="yellow", markup=False)
    where = "" if args.runs == "runs" else f" --runs {shlex.quote(args.runs)}"
    which = f"--model {shlex.quote(result['model'])}{where if args.run else ''}"
    steps = [(f"posttrain chat {which}", "chat with it")]
    if not args.run:
        steps.append((f"posttrain run grpo {which} --task {shlex.quote(result['task'])}", "train it further"))
    next_steps(console, steps)
