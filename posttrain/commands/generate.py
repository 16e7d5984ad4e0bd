"""examples:
  posttrain generate --task questions.jsonl --num-generations 4 --out answers.jsonl
  posttrain generate --model grpo-arithmetic --task arithmetic --problems 100 --out answers.jsonl --reward task
  posttrain generate --url http://127.0.0.1:8000/v1 --task questions.jsonl --out answers.jsonl
Stopped at any moment, the same command goes on where it was and ends with the same file. The file is a log:
`posttrain run sft --task answers.jsonl`, `posttrain run topr --rollout logged --task answers.jsonl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posttrain.commands.eval import fitting, policies_of, scorer_of, task_of, task_options
from posttrain.commands.parser import Parser, number, whole
from posttrain.commands.policy import load_any, policy_options, url_options
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError
from posttrain.core.registry import find

ENDLESS = 200  # problems of a task that never ends, where the user does not say
AT_ONCE = 64  # answers that are sampled together on a CPU
AT_ONCE_GPU = 2048
Key = tuple[str, int]  # (prompt id, sample)


def options(parser: Parser) -> None:
    policy_options(parser)
    url_options(parser)
    group = parser.add_argument_group("what is written")
    task_options(group)
    group.add_argument("--out", required=True, metavar="FILE", help="JSON lines, one row per answer")
    group.add_argument("--num-generations", type=whole, default=1, metavar="N", help="answers per prompt [1]")
    group.add_argument("--problems", type=whole, metavar="N", help="prompts [all of a file; 200 of an endless task]")
    group.add_argument("--split", default="all", choices=("train", "test", "all"), help="which prompts [all]")
    group.add_argument(
        "--reward", metavar="REWARD", help='score the answers by this reward; "task": the task\'s own grade'
    )
    group.add_argument("--temperature", type=number, metavar="X", help="sampling temperature [the run's, or 1]")
    group.add_argument("--max-tokens", type=whole, metavar="N", help="longest answer, in tokens [the run's, or 64]")
    group.add_argument("--seed", type=whole, default=0, metavar="N", help="seed of the draws [0]")
    group.add_argument(
        "--tokens", action=argparse.BooleanOptionalAction, default=True,
        help="write token ids and log-probabilities too, for methods that weigh answers by them [yes]",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="begin again, and throw away what the file holds")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    for key in ("num-generations", "problems"):
        if (given := getattr(args, key.replace("-", "_"))) is not None and given < 1:
            raise UserError(f"--{key} is {given}; it must be at least 1")
    out = Path(args.out)
    if out.is_dir():
        raise UserError(f"--out {out}: it is a folder; name a file, like answers.jsonl")
    policy, config = load_any(args)
    changes = {k: v for k in ("temperature", "max_tokens") if (v := getattr(args, k)) is not None}
    how = dataclasses.replace(config.sampling, **changes)
    if how.temperature == 0 and args.num_generations > 1:
        raise UserError(
            f"at temperature 0 all {args.num_generations} answers are the same; use --num-generations 1 or a temperature above 0"
        )
    policy.temperature = how.temperature or 1.0
    env = fitting(args, policy, task_of(args, config), how)
    if env.opens and args.url is not None:
        raise UserError(
            f"{env.name} has turns, which need a model that runs here; a model behind --url answers single questions"
        )
    prompts = prompts_of(args, env)
    scorer = scorer_of(args, config, env)[0] if args.reward else None
    same_settings(out, settings(args, config, how), args.fresh)
    kept = begin(out, args.fresh)
    made, lost = write(args, (policies_of(args, policy, env, config), scorer, how), prompts, kept, env)
    finish(out, prompts, args.num_generations)
    tell(args, made, len(kept), lost)
    return 0


def prompts_of(args: argparse.Namespace, env: Any) -> list[Any]:
    from posttrain.environments.base import size_of
    from posttrain.evals.accuracy import asked_for

    splits = ("test", "train") if args.split == "all" else (args.split,)
    many = args.problems or sum(size_of(env, s) for s in splits) or ENDLESS
    prompts = asked_for(env, many, args.split)
    twice = len(prompts) - len({p.id for p in prompts})
    if twice:
        raise UserError(f"{env.name}: {twice} prompts have the id of another, so their answers could not be told apart")
    return prompts


def settings(args: argparse.Namespace, config: Any, how: Any) -> dict[str, Any]:
    """What decides an answer: a file that was begun with other settings is not gone on with."""
    from posttrain.environments.contents import contents, mentioned

    newest = weights(args) if args.run else ""
    found = {
        "model": args.run or config.model,
        "adapter": args.adapter,
        "checkpoint": newest,
        "url": args.url or "",
        "user": args.user or "",
        "seed": args.seed,
    }
    named = args.task or config.task
    found |= {"task": named, "level": args.level, "think": args.think, "reward": args.reward or ""}
    said = {k: v for k in ("system", "question", "answer", "data") if (v := getattr(args, k)) is not None}
    found |= said | ({"contents": held} if (held := contents(named)) else {})
    found |= {"prefer": args.prefer} if args.prefer else {}
    tools = args.tools if args.tools is not None else config.tools if args.task in (None, config.task) else ""
    found |= {"tools": tools, "tool_files": mentioned(tools)} if tools else {}
    return found | {"tokens": args.tokens, "sampling": dataclasses.asdict(how)}


def weights(args: argparse.Namespace) -> str:
    """Which weights of a run are meant now."""
    from posttrain.runs.trained import find_trained, weights_digest

    which = find_trained(args.run, args.runs, args.phase or "")
    return weights_digest(which) if which else ""


def same_settings(out: Path, now: dict[str, Any], fresh: bool) -> None:
    """Compare with the settings beside the file, or write them."""
    from posttrain.core.config import differences
    from posttrain.runs.checkpoint import write_atomic

    beside = out.with_name(out.name + ".settings.json")
    if out.exists() and out.stat().st_size and not fresh:
        try:
            before = json.loads(beside.read_text())
        except (OSError, ValueError):
            raise UserError(
                f"{out} is there already, and {beside.name} does not say how it was made; use another --out, or --fresh"
            ) from None
        changed = differences(before, json.loads(json.dumps(now)))
        if changed:
            what = "; ".join(f"{k} was {a}, is now {b}" for k, a, b in changed)
            raise UserError(f"{out} was made with other settings ({what}); use another --out, or --fresh")
    write_atomic(beside, json.dumps(now, indent=2) + "\n")


def begin(out: Path, fresh: bool) -> set[Key]:
    """The answers that the file holds; a row that a kill cut off is taken away."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if fresh or not out.exists():
        out.write_text("")
    kept, whole_bytes = set(), 0
    for line in out.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
            kept.add((str(row["id"]), int(row["sample"])))  # type: ignore[index]
        except (ValueError, KeyError, TypeError):
            break
        whole_bytes += len(line)
    os.truncate(out, whole_bytes)
    return kept


def write(
    args: argparse.Namespace, how: tuple[Any, Any, Any], prompts: Sequence[Any], kept: set[Key], env: Any
) -> tuple[int, int]:
    """Sample what is missing, in pieces that depend on the prompts alone; returns how many came and how many did not."""
    from posttrain.evals.figures import lines

    policies, scorer, sampling = how
    made = lost = 0
    with open(args.out, "ab") as file:
        for some in pieces(args, policies["policy"], prompts):
            missing = {(p.id, i) for p in some for i in range(args.num_generations)} - kept
            if not missing:
                continue
            groups = sampled(args, policies, env, some, sampling)
            if scorer is not None:
                scorer.score(groups)
            rows = [row(g.prompt, r, args.tokens) for g in groups for r in g.rollouts if "error" not in r.info]
            rows = [r for r in rows if (r["id"], r["sample"]) in missing]
            made, lost = made + len(rows), lost + len(missing) - len(rows)
            file.write(lines(rows).encode())
            file.flush()
            os.fsync(file.fileno())
            if not args.json:
                print(f"{made + len(kept)} of {args.num_generations * len(prompts)} answers", file=sys.stderr)
    return made, lost


def sampled(args: argparse.Namespace, policies: Any, env: Any, prompts: Sequence[Any], how: Any) -> list[Any]:
    """The answers to some prompts; where the environment has turns, episodes."""
    from posttrain.core.protocols import RolloutRequest
    from posttrain.core.types import Group
    from posttrain.environments.recorded import Recorded

    n = args.num_generations
    if not env.opens:
        return [
            Group(p, rs)
            for p, rs in zip(prompts, policies["policy"].sample(prompts, n, how, args.seed, 0), strict=True)
        ]
    asked = RolloutRequest(policies, prompts, how, args.seed, 0, Recorded(env))
    return list(find("sample", "rollout").but(n=n)(asked))


def pieces(args: argparse.Namespace, policy: Any, prompts: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Prompts that are sampled together."""
    gpu = getattr(getattr(policy, "device", None), "type", "") == "cuda"
    size = max(1, (AT_ONCE_GPU if gpu else AT_ONCE) // args.num_generations)
    return (prompts[i : i + size] for i in range(0, len(prompts), size))


def row(prompt: Any, r: Any, tokens: bool) -> dict[str, Any]:
    """An answer as a row that `logged` and SFT read; an episode as a conversation, which SFT reads."""
    from posttrain.evals.figures import row as told
    from posttrain.evals.turns import conversation, is_episode

    found = told(prompt, r)
    if is_episode(r):
        out = {k: found[k] for k in ("id", "sample", "reward", "stop", "turns")}
        return out | {"messages": conversation(r)}
    out = {k: found[k] for k in ("id", "sample", "prompt", "gold")} | {"response": r.text, "stop": found["stop"]}
    if r.reward is not None:
        out |= {"reward": found["reward"], "components": found["components"]}
    if tokens and len(r):
        out |= {"tokens": r.actions.tolist(), "logp": [round(x, 6) for x in r.logp_T.tolist()]}
    return {k: v for k, v in out.items() if v is not None or k == "reward"}


def finish(out: Path, prompts: Sequence[Any], n: int) -> None:
    """Rows in the order of the prompts, whatever was asked for when."""
    from posttrain.runs.checkpoint import write_atomic

    place = {p.id: i for i, p in enumerate(prompts)}
    text = out.read_bytes().decode()  # a line separator within an answer ends no row
    before = [f"{line}\n" for line in text.split("\n")[:-1]]
    keyed = [(place.get(r["id"], len(place)), r["sample"], line) for line in before for r in [json.loads(line)]]
    after = [line for _, _, line in sorted(keyed, key=lambda k: k[:2])]
    if after != before:
        write_atomic(out, "".join(after))


def tell(args: argparse.Namespace, made: int, kept: int, lost: int) -> None:
    if args.json:
        print(json.dumps({"out": args.out, "written": made, "kept": kept, "missing": lost}))
        return
    print(f"{made} answers written to {args.out}" + (f"; {kept} were there" if kept else ""))
    if lost:
        print(f"{lost} answers did not come; the same command asks for them again", file=sys.stderr)
    print(f"\nnext: posttrain run sft --task {args.out}")
