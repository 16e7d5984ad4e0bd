"""examples:
  posttrain eval --task arithmetic
  posttrain eval --model grpo-arithmetic --num-generations 8 --save predictions.jsonl
  posttrain eval --model path/to/model --task test.jsonl --split all --by subject --temperature 0
  posttrain eval --task arithmetic --reward "numeric + 0.2*format"
  posttrain eval --url http://127.0.0.1:8000/v1 --task arithmetic
  posttrain eval --model runs/my-rm --task pairs.jsonl --by subset
A reward model, and any model on preference pairs, is asked which answer of each pair it scores higher.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.commands.policy import load_any, policy_options, reward_model_folder, url_options
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts

PROBLEMS = 200  # where the user does not say


def options(parser: Parser) -> None:
    policy_options(parser)
    url_options(parser)
    group = parser.add_argument_group("what is measured")
    task_options(group)
    group.add_argument(
        "--reward", metavar="REWARD", help="score by this reward, as in posttrain run [the task's grade]"
    )
    group.add_argument("--by", default="", metavar="COLUMN", help="a table by the values of a column of the data")
    group.add_argument("--problems", type=whole, metavar="N", help="problems, or pairs [200 problems, all pairs]")
    group.add_argument(
        "--num-generations", type=whole, default=1, metavar="N", help="answers per problem, for pass@k and maj@k [1]"
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
    group.add_argument(
        "--split", choices=("train", "test", "all"),
        help="split the problems come from [test; pairs that the model was not trained on: all]",
    )  # fmt: skip
    for field in ("chosen", "rejected"):
        group.add_argument(
            f"--{field}", default="", metavar="COLUMN", help=f"column of pairs that holds the {field} answer"
        )
    parser.add_argument("--save", metavar="FILE", help="write every answer with its reward, as JSON lines")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    use_option(parser)


def task_options(group: Any) -> None:
    group.add_argument("--task", metavar="TASK", help="a task as in posttrain run [the run's, or arithmetic]")
    group.add_argument("--level", type=whole, metavar="N", help="difficulty of a school task")
    group.add_argument("--think", action=argparse.BooleanOptionalAction, help="ask for a written chain of thought")
    group.add_argument("--system", metavar="TEXT", help="a system message for every prompt [the run's]")
    group.add_argument("--question", metavar="COLUMN", help="column of a data file that holds the question")
    group.add_argument("--answer", metavar="COLUMN", help="column of a data file that holds the answer")
    group.add_argument("--data", metavar="DIR", help="folder of data sets, for presets")
    group.add_argument(
        "--tools", metavar="FILE",
        help="functions that the model may call, as in posttrain run, with --tools.max-turns and the like [the run's]",
    )  # fmt: skip
    group.add_argument(
        "--user", metavar="MODEL", help="a model that plays the user, in a task with that role [the run's]"
    )


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    for key in ("problems", "num-generations"):
        if (given := getattr(args, key.replace("-", "_"))) is not None and given < 1:
            raise UserError(f"--{key} is {given}; it must be at least 1")
    if args.save and Path(args.save).is_dir():
        raise UserError(f"--save {args.save}: it is a folder; name a file, like predictions.jsonl")
    from posttrain.commands.eval_pairs import evaluate_pairs, holds_pairs, pair_columns
    from posttrain.core.config import to_dict

    judge = None if args.url is not None else reward_model_folder(args.model or "", args.runs)
    if judge is not None:
        return evaluate_pairs(args, judge=judge)
    policy, config = load_any(args)
    if holds_pairs(args.task or config.task, pair_columns(args, to_dict(config))):
        return evaluate_pairs(args, policy=policy, config=config)
    return evaluate_answers(args, policy, config)


def evaluate_answers(args: argparse.Namespace, policy: Any, config: Any) -> int:
    """Answers to held-out problems, scored by the task or by --reward."""
    from posttrain.evals.accuracy import asked_for, graded
    from posttrain.evals.figures import check_column, figures, lines, predictions
    from posttrain.runs.checkpoint import write_atomic

    how = sampling_of(args, config)
    policy.temperature = how.temperature or 1.0
    env = fitting(args, policy, task_of(args, config), how)
    scorer, name = scorer_of(args, config, env)
    prompts = asked_for(env, args.problems or PROBLEMS, args.split or "test")
    check_column(prompts, args.by)
    groups = answers_of(args, policy, env, prompts, how, config)
    score = graded(groups, scorer, name)
    failed_alike(score)
    result = figures(groups, score, args.by, grader_of(args, env)) | {
        "task": args.task or config.task,
        "model": args.run or config.model,
    }
    result |= {"temperature": how.temperature, "split": args.split or "test", "reward_by": args.reward or "the task"}
    result |= {"prefer": args.prefer} if args.prefer else {}
    if args.save:
        write_atomic(Path(args.save), lines(predictions(groups, args.by)))
        result["saved"] = args.save
    if args.json:
        print(json.dumps(strict(result)))
    else:
        show(result, score, args)
    return 0


def fitting(args: argparse.Namespace, policy: Any, env: Any, how: Any) -> Any:
    """The task without the prompts that are longer than the model's window; how many is told."""
    from posttrain.runs.fit import fit

    if getattr(args, "rollout", None) or args.url is not None:
        return env
    env = fit(env, policy, None, how)
    for reason, n in getattr(env, "left_out", {}).items():
        if n and not args.json:
            print(f"left out: {n:,} {reason}")
    return env


def failed_alike(score: Any) -> None:
    """Nothing could be scored: that is an error, and the reason is in it."""
    if score.rollouts and score.failed == len(score.rollouts):
        lost = next((r.info["error"] for r in score.rollouts if "error" in r.info), "")
        raise UserError(f"not one of {score.failed} answers could be graded: {lost or score.why}")
    lost = [r.info["error"] for r in score.rollouts if "error" in r.info]
    if lost:
        score.why = "; ".join(filter(None, (f"{len(lost)} answers did not come ({lost[0]})", score.why)))


def sampling_of(args: argparse.Namespace, config: Any) -> Any:
    changes = {k: v for k in ("temperature", "max_tokens") if (v := getattr(args, k)) is not None}
    how = dataclasses.replace(config.sampling, **changes)
    if how.temperature == 0 and args.num_generations > 1:
        raise UserError(
            f"at temperature 0 all {args.num_generations} answers are the same; use --num-generations 1 or a temperature above 0"
        )
    return how


def scorer_of(args: argparse.Namespace, config: Any, env: Any) -> tuple[Any, str]:
    """What scores the answers, and what the score is called: --reward, the task's grade, the turns' rewards, the run's reward."""
    from posttrain.environments.tooled import Tooled
    from posttrain.rewards.runtime.scorer import Prescored
    from posttrain.rewards.scorers.spec import build_scorer, task_scorer
    from posttrain.runs import saved as saved  # so that a reward may name a run

    own = args.task is None or args.task == config.task
    if args.reward:
        return build_scorer(args.reward, env, config.reward_timeout, args.device), "reward"
    if env.opens and (env.graded or not isinstance(env, Tooled)):
        return Prescored(), "reward"
    if env.graded:
        return task_scorer(env, config.reward_timeout), "accuracy"
    if own and config.reward:
        return build_scorer(config.reward, env, config.reward_timeout, args.device), "reward"
    raise UserError(
        f"{env.name} has no gold answers, so nothing says which answers are right; say what is good with --reward NAME, or "
        "use another --task"
    )


def grader_of(args: argparse.Namespace, env: Any) -> str:
    """The name of the rule that reads the answers: --reward, or what was chosen for the rows of a file."""
    return (
        args.reward.partition("(")[0].strip() if args.reward else str(getattr(getattr(env, "reward", None), "name", ""))
    )


def answers_of(args: argparse.Namespace, policy: Any, env: Any, prompts: list[Any], how: Any, config: Any) -> list[Any]:
    from posttrain.environments.recorded import Recorded
    from posttrain.evals.accuracy import answers

    part = rollout_of(args.rollout)
    if args.url is not None and (part is not None or env.opens):
        what = f"--rollout {part.name}" if part is not None else f"{env.name} (a task with turns)"
        raise UserError(f"{what} needs a model that runs here; a model behind --url answers single questions")
    if part is None and env.opens:
        part, env = find("sample", "rollout"), Recorded(env)
    return answers(policies_of(args, policy, env, config), env, prompts, how, args.num_generations, part)


def policies_of(args: argparse.Namespace, policy: Any, env: Any, config: Any) -> dict[str, Any]:
    """The policy, and whoever plays the other roles of the task: --user, or of a run's own task the run's."""
    from posttrain.core.config import Config
    from posttrain.runs.users import users

    own = args.task is None or args.task == config.task
    plays = args.user if args.user is not None else config.user if own else ""
    found = Config(user=plays, device=args.device, dtype=args.dtype or "", sampling=config.sampling)
    return {"policy": policy, **users(found, env, args.runs)}


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
    from posttrain.environments.mapped import with_prefill, with_system_message
    from posttrain.environments.task import task
    from posttrain.runs.tool_files import with_named_tools

    own = args.task is None or args.task == config.task
    level = args.level if args.level is not None else config.level if own else None
    think = args.think if args.think is not None else config.think if own else None
    said: dict[str, Any] = {
        k: getattr(args, k) or (getattr(config, k) if own else "") or None for k in ("question", "answer")
    }
    said |= {"stream": (config.stream if own else False) or None, "data": args.data or config.data or None}
    env = task(args.task or config.task, level=level, think=think, **said)
    system = args.system if args.system is not None else config.system
    env = with_system_message(env, system) if system else env
    env = with_prefill(env, config.prefill) if config.prefill else env
    tools = args.tools if args.tools is not None else config.tools if own else ""
    return with_named_tools(env, tools, args.reward or "") if tools else env


def strict(x: Any) -> Any:
    """Strict JSON has no NaN: null."""
    if isinstance(x, dict):
        return {k: strict(v) for k, v in x.items()}
    if isinstance(x, list):
        return [strict(v) for v in x]
    return None if isinstance(x, float) and x != x else x


def show(result: dict[str, Any], score: Any, args: argparse.Namespace) -> None:
    from rich.console import Console

    from posttrain.view.eval_tables import answer_tables
    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    answer_tables(console, result, score.name, score.told)
    if args.save:
        print(f"every answer is in {args.save}", file=sys.stderr)
    if args.url is not None:
        return
    where = "" if args.runs == "runs" else f" --runs {shlex.quote(args.runs)}"
    which = f"--model {shlex.quote(result['model'])}{where if args.run else ''}"
    steps = [(f"posttrain chat {which}", "chat with it")]
    if not args.run:
        steps.append((f"posttrain run grpo {which} --task {shlex.quote(result['task'])}", "train it further"))
    next_steps(console, steps)
