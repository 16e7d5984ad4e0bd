"""Self-training in rounds: the policy answers, its good answers are kept, and it imitates them. What STaR, ReST, ReST-EM and expert iteration share.

A round's answers are an artifact, "answers<round>": rows of {"question": its number, "answers": [{"tokens", "mask", "text", "reward"}]}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Make, round_of
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import ENDLESS
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task
from posttrain.methods.sft import sft
from posttrain.rollouts.logged import logged

Row = dict[str, Any]
imitating = sft.but(rollout=logged.but(logp=False))  # SFT on answers that the policy gave, as they were sampled
TO_BASE = Copy("policy", "base")  # what a plan begins with
FROM_BASE = Make("policy", lambda context: context.role("base").clone())  # before the imitation of each round


def graded(context: Context) -> None:
    """What a plan of self-training needs before anything is loaded: somebody who says which answers are good."""
    asked_rewards(context)


def questions_of(context: Context, most: int = 0) -> list[Prompt]:
    """The first so many questions of --task; 0: all, 500 where they never end."""
    env = asked_task(context)
    size = size_of(env, "train")
    return [env.prompt(i) for i in range(min(most or size or ENDLESS, size or most or ENDLESS))]


def scored(context: Context, prompts: Sequence[Prompt], n: int, *identity: object) -> list[Group]:
    """n answers of the policy as it is to each prompt, graded; answers that could not be are gone. identity: of the draw."""
    c = context.config
    made = context.role("policy").sample(prompts, n, c.sampling, rng.key(c.seed, *identity) & 0x7FFFFFFF)
    groups = [Group(p, some) for p, some in zip(prompts, made, strict=True)]
    asked_scores(context, groups)
    return [replace(g, rollouts=[r for r in g.scored if len(r)]) for g in groups]


def told(r: Rollout) -> Row:
    """An answer as a row has it."""
    return {"tokens": r.actions.tolist(), "mask": r.mask_T.tolist(), "text": r.text, "reward": float(r.total)}


def good(answers: Iterable[Rollout], least: float, most: int = 0) -> list[Row]:
    """Those that earned `least` or more, each text once, the first `most` of them (0: all)."""
    kept: dict[str, Row] = {}
    for r in answers:
        if r.total >= least:
            kept.setdefault(r.text, told(r))
    return list(kept.values())[: most or None]


def keep(context: Context, rows: Sequence[Row], of: int, n: int, least: float) -> None:
    """The round's answers are written; a sentence where there are none."""
    i, rows = round_of(context), [row for row in rows if row["answers"]]
    count = sum(len(row["answers"]) for row in rows)
    if not count:
        raise UserError(
            f"round {i}: none of {n} answers to each of {of} questions earned {least:g}, so there is nothing to imitate; begin with a "
            "model that gets some right, sample more (--plan.n), or ask for less (--plan.least)"
        )
    context.run.write_artifact(f"answers{i}", list(rows))
    context.notes.setdefault("kept", {})[f"round {i}"] = {"answers": count, "questions": len(rows), "of": of}


def collected(every: bool = False) -> Callable[[Context], Listed]:
    """The present round's questions with their answers, one prompt for each answer; every: those of all rounds until now, each text once."""

    def env(context: Context) -> Listed:
        read, task, now = context.run.read_artifact, asked_task(context), round_of(context)
        rounds = [read(f"answers{i}") for i in range(1 if every else now, now + 1)]
        seen: set[tuple[int, str]] = set()
        prompts: list[Prompt] = []
        for row in (row for rows in rounds for row in rows):
            p: Prompt = task.prompt(row["question"])
            for a in row["answers"]:
                if (row["question"], a["text"]) not in seen:
                    seen.add((row["question"], a["text"]))
                    prompts.append(replace(p, id=f"{p.id}-{len(prompts)}", info=p.info | {"answers": [a]}))
        return Listed("kept answers", tuple(prompts))

    return env
