"""Feedback of a judge as data: answers of a pool of models, what a judge says of them, and the file of pairs that is learned from.

Phases that plans of AI feedback share. What they make are artifacts of the run: answers.jsonl, and pairs.jsonl, which
`posttrain run dpo --task runs/NAME/artifacts/pairs.jsonl` reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.fields import with_system
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.methods.settings import asked_task
from posttrain.policies.load import find_folder
from posttrain.policies.peft_folder import base_of
from posttrain.prompts.uniform import distinct
from posttrain.rewards.scorers.judging import Case
from posttrain.runs.build import load_policy
from posttrain.runs.trained import find_trained

ENDLESS = 500  # prompts of a task that never ends
SELF = "self"  # the policy that is trained, as one of a pool


@dataclass(frozen=True)
class Principle:
    """What a model is told before it answers, and for which quality."""

    kind: str = ""
    text: str = ""


Told = Callable[
    [int, Prompt, int], Principle
]  # (number of the prompt, the prompt, number of the answer) -> its principle


def nothing(number: int, prompt: Prompt, answer: int) -> Principle:
    return Principle()


def asked_prompts(context: Context, count: int, first: int = 0) -> list[Prompt]:
    """So many different prompts of --task from the `first` on; 0: all of them (500 where they never end)."""
    env = asked_task(context)
    size = size_of(env, "train")
    return distinct(env, range(first, first + (count or size or ENDLESS)))


# ---- answers


def pooled(models: str) -> list[str]:
    """The models of `A,B,C`; none named: the policy itself."""
    named = [name.strip() for name in models.split(",") if name.strip()] or [SELF]
    if len(set(named)) < len(named):
        raise UserError(f"--plan.models names one model twice: {models}; each answers by itself")
    return named


def pool_is_there(models: str) -> None:
    """Each model of a pool but the policy is a run or a model that is found, before anything is loaded."""
    for name in pooled(models):
        if name != SELF and find_trained(name) is None:
            find_folder(base_of(name))


def assigned(models: Sequence[str], n: int, *identity: object) -> list[str]:
    """Who gives each of n answers: different models where there are as many, else each as often as any other; drawn by identity."""
    out: list[str] = []
    for again in range(-(-n // len(models))):
        some = list(models)
        rng.python("pool", again, *identity).shuffle(some)
        out += some
    return out[:n]


def collect(context: Context, prompts: Sequence[Prompt], models: str, n: int, told: Told = nothing) -> None:
    """n answers to each prompt, by models of the pool, each under the principle that it is told; written as answers.jsonl.

    One model is in memory at a time, besides the policy.
    """
    c, pool = context.config, pooled(models)
    who = [assigned(pool, n, c.seed, p.id) for p in prompts]
    said: list[list[dict[str, Any]]] = [[{} for _ in range(n)] for _ in prompts]
    for name in pool:
        policy = context.role("policy") if name == SELF else load_policy(plain(c, name))
        places = [(i, j) for i, row in enumerate(who) for j, m in enumerate(row) if m == name]
        rules = [told(i, prompts[i], j) for i, j in places]
        asked = [
            replace(prompts[i], id=f"{prompts[i].id}|{j}", content=with_system(prompts[i].content, rule.text))
            for (i, j), rule in zip(places, rules, strict=True)
        ]
        made = policy.sample(asked, 1, c.sampling, rng.key(c.seed, "answers", context.phase, name) & 0x7FFFFFFF)
        for (i, j), rule, (answer,) in zip(places, rules, made, strict=True):
            said[i][j] = {"text": answer.text, "model": name, "principle": rule.kind, "told": rule.text}
    rows = [{"id": p.id, "prompt": list(p.content), "answers": row} for p, row in zip(prompts, said, strict=True)]
    context.run.write_artifact("answers", rows)


def plain(config: Any, model: str) -> Any:
    """Settings that load a model as it comes, without what is trained of the policy."""
    return replace(config, model=model, lora=0, adapter="", bits=0)


def cases(context: Context, prompts: Sequence[Prompt]) -> list[Case]:
    """The prompts with the answers that were collected."""
    rows = context.run.read_artifact("answers")
    return [(p, [a["text"] for a in row["answers"]]) for p, row in zip(prompts, rows, strict=True)]


# ---- what a judge said


def count_calls(context: Context, judge: Any) -> None:
    """The questions that a judge was asked since it was last counted, in the notes of the run."""
    context.notes["judge_calls"] = context.notes.get("judge_calls", 0) + judge.taken()


def by_mean(points: Mapping[str, Sequence[float]]) -> list[float]:
    """The mean over aspects of each answer's points; NaN where one is missing."""
    return [sum(row) / len(row) for row in zip(*points.values(), strict=True)]


def best_and_worst(points: Sequence[float], ties: str, *identity: object) -> tuple[int, int] | None:
    """The places of the highest and of the lowest points among those that are numbers; of equals one is drawn.

    ties: "drawn" also takes two of answers that are all equal, "drop" does not. None where there is no pair.
    """
    known = [i for i, x in enumerate(points) if x == x]
    if len(known) < 2 or (ties == "drop" and max(points[i] for i in known) == min(points[i] for i in known)):
        return None
    draw = rng.python("ties", *identity)
    high, low = max(points[i] for i in known), min(points[i] for i in known)
    best = draw.choice([i for i in known if points[i] == high])
    worst = draw.choice([i for i in known if points[i] == low])
    return None if best == worst else (best, worst)


def every_pair(points: Sequence[float]) -> list[tuple[int, int]]:
    """(better, worse) of every two answers with different points."""
    found = [(i, j) if points[i] > points[j] else (j, i) for i, j in combinations(range(len(points)), 2)]
    return [(i, j) for i, j in found if points[i] > points[j]]


def pair_rows(
    case: Case, places: Sequence[tuple[int, int]], points: Sequence[float], **more: Any
) -> list[dict[str, Any]]:
    """Rows of a preference file; pairs of the same text say nothing and are left out."""
    prompt, texts = case
    return [
        {"id": f"{prompt.id}-{k}", "prompt": list(prompt.content), "chosen": texts[i], "rejected": texts[j]}
        | {"score_chosen": points[i], "score_rejected": points[j]} | more
        for k, (i, j) in enumerate(places) if texts[i] != texts[j]
    ]  # fmt: skip


def write_pairs(context: Context, rows: list[dict[str, Any]], asked: int, name: str = "pairs") -> None:
    """The file of pairs; a sentence where there are none. Its path is in the notes of the run."""
    if not rows:
        raise UserError(
            f"{context.phase}: of {asked} prompts the judge preferred no answer to another, or could not say, so there is no pair; it must tell answers apart"
        )
    path = context.run.write_artifact(name, rows)
    context.notes |= {"pairs": context.notes.get("pairs", 0) + len(rows), "pairs_file": str(path)}


def made_pairs(name: str = "pairs", held_out: float = 0.0) -> Callable[[Context], Listed]:
    """The pairs of a file that an earlier part wrote."""
    return lambda context: from_rows(name, context.run.read_artifact(name), held_out)
