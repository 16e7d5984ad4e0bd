"""The figures of an evaluation: means with intervals, pass@k, maj@k, the same by a column of the data, and every answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.evals.accuracy import Score
from posttrain.evals.intervals import Estimate, estimate
from posttrain.evals.majority import maj_at_k, vote_of
from posttrain.evals.pass_at_k import ladder, pass_at_k
from posttrain.evals.turns import by_turn, is_episode, turn_figures

FULL = 1.0  # an answer passes with full marks


def figures(groups: Sequence[Group], score: Score, by: str = "", grader: str = "") -> dict[str, Any]:
    """The result as plain values: the mean of the score with its 95% interval, pass@k and maj@k for k = 1, 2, 4 ... n.

    Answers that could not be graded are left out and counted; pass@k and maj@k leave a problem out unless all of its
    answers could be. They are there where scores are grades: the task's own, or 0 and 1. Votes are read as the grader reads.
    """
    made = estimate(scores(groups))
    out: dict[str, Any] = {score.name: made.mean, "interval": [made.low, made.high], "interval_by": made.how}
    out |= {"error": score.error, "problems": score.problems, "n": max((len(g.rollouts) for g in groups), default=0)}
    out |= {"pass_at_k": {}, "maj_at_k": {}}
    if is_grade(groups, score):
        out |= {"pass_at_k": passed(groups), "maj_at_k": voted(groups, grader)}
    flat = [r for g in groups for r in g.rollouts]
    out |= {"failed": score.failed, "why": score.why, "tokens_per_answer": mean([tokens(r) for r in flat])}
    out |= {"ended": mean([float(not r.truncated) for r in flat])}
    out |= turn_figures(flat) if any(map(is_episode, flat)) else {}
    return out | ({"by": by, "rows": by_column(groups, by)} if by else {})


def scores(groups: Iterable[Group]) -> list[list[float]]:
    """The scores of each problem's answers that could be graded."""
    return [[r.total for r in g.scored] for g in groups]


def is_grade(groups: Sequence[Group], score: Score) -> bool:
    """Whether full marks mean a right answer: the task's own grade, or a reward that is 0 or 1 everywhere."""
    return score.name == "accuracy" or all(x in (0.0, 1.0) for xs in scores(groups) for x in xs)


def whole(groups: Iterable[Group]) -> list[Group]:
    """The problems whose every answer was graded."""
    return [g for g in groups if g.rollouts and len(g.scored) == len(g.rollouts)]


def right(group: Group) -> list[bool]:
    return [r.total >= FULL for r in group.rollouts]


def passed(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    kept = whole(groups)
    n = min((len(g.rollouts) for g in kept), default=0)
    return {str(k): told([pass_at_k(len(g.rollouts), sum(right(g)), k) for g in kept], n) for k in ladder(n)}


def voted(groups: Sequence[Group], grader: str = "") -> dict[str, dict[str, Any]]:
    kept = whole(groups)
    n = min((len(g.rollouts) for g in kept), default=0)
    votes = [[vote_of(r.text, g.prompt, grader) for r in g.rollouts] for g in kept]
    return {
        str(k): told([maj_at_k(v, right(g), k, g.prompt.id) for g, v in zip(kept, votes, strict=True)], n)
        for k in ladder(n)
        if k > 2  # the most frequent of one is that one, and two agree or are a tie
    }


def told(values_P: Sequence[float], n: int) -> dict[str, Any]:
    """A chance per problem, from n answers each, as its mean, interval and standard error."""
    made = estimate([[x] for x in values_P], share=True, behind=n)
    var = math.fsum((x - made.mean) ** 2 for x in values_P) / max(len(values_P) - 1, 1)
    return {"mean": made.mean, "interval": [made.low, made.high], "error": math.sqrt(var / len(values_P))}


def by_column(groups: Sequence[Group], column: str) -> list[dict[str, Any]]:
    """One row per value of a column of the data: problems, mean, interval; numbers in order, other values by name."""
    shelves: dict[str, list[Group]] = {}
    for g in groups:
        shelves.setdefault(value_of(g.prompt, column), []).append(g)
    return [{"value": value, **plain(estimate(scores(shelves[value])))} for value in sorted(shelves, key=in_order)]


def plain(made: Estimate) -> dict[str, Any]:
    found = asdict(made)
    return {"problems": found["n"], "mean": made.mean, "interval": [made.low, made.high], "interval_by": made.how}


def check_column(prompts: Sequence[Prompt], column: str) -> None:
    """An error with the nearest name unless some prompt has the column."""
    known = {k for p in prompts for k in p.info} | {"answer"}
    if column and prompts and column not in known:
        shown = {k for k in known if not k.startswith("_")}
        raise UserError(f"--by {column}: {unknown('column of the data', column, shown)}")


def value_of(prompt: Prompt, column: str) -> str:
    """The value of a column in a prompt, as a text; a list or an object as JSON."""
    value = prompt.info.get(column, prompt.answer if column == "answer" else None)
    return value if isinstance(value, str) else "(none)" if value is None else json.dumps(value, default=str)


def in_order(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)


def predictions(groups: Iterable[Group], by: str = "") -> list[dict[str, Any]]:
    """Every answer as a row; `logged` and `posttrain run ... --task FILE` read them again."""
    made = [(g.prompt, row(g.prompt, r)) for g in groups for r in g.rollouts]
    return [({by: p.info.get(by)} if by in p.info and by not in told else {}) | told for p, told in made]


def row(prompt: Prompt, r: Rollout) -> dict[str, Any]:
    error = {"error": r.info["error"]} if "error" in r.info else {}
    return {
        "id": prompt.id, "sample": r.index, "prompt": list(prompt.content), "gold": prompt.answer, "answer": r.text,
        "reward": None if r.failed or r.reward is None else finite(r.total),
        "components": {k: finite(v) for k, v in r.rewards.items()}, "tokens": tokens(r),
        "stop": r.info.get("finish", r.stop), **({"turns": by_turn(r)} if is_episode(r) else {}), **error,
    }  # fmt: skip


def tokens(r: Rollout) -> int:
    """How many tokens an answer has; a server counts its own."""
    return int(r.info["tokens"]) if "tokens" in r.info else sum(len(t) for t in r.turns)


def finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs) if xs else math.nan


def lines(rows: Iterable[dict[str, Any]]) -> str:
    """As JSON lines."""
    return "".join(json.dumps(r, ensure_ascii=False, default=str) + "\n" for r in rows)
