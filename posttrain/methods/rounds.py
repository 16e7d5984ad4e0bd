"""Rounds of preference learning: the policy answers new prompts, somebody judges, what was said is written down and learned from.

    parts = (Do("collect", Collect(prompts, n, knockout).work), Copy("policy", "previous"), Phase("dpo", ..., collected, reference="previous"))
    Cycle(parts, times=rounds)

A pairing turns the answers to a prompt into rows: best and worst by the reward, the winner and the loser of a knockout by a judge, two at
random. Rows are an artifact of the run (`pairs1.jsonl` is the first round's), so a restart asks nobody twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, round_of
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.methods.judged import count_calls
from posttrain.methods.settings import asked_judge, asked_scores, asked_task
from posttrain.prompts.uniform import distinct
from posttrain.rewards.scorers.judging import Judging
from posttrain.rewards.scorers.pairwise import Match, compare

Row = dict[str, Any]
Pairing = Callable[
    [Context, list[Group]], list[list[Row]]
]  # for each group a row without its prompt, None where it says nothing


def new_prompts(context: Context, count: int) -> list[Prompt]:
    """The prompts of the present round: each round has the next ones; a file with fewer is gone through again."""
    i = round_of(context)
    return distinct(asked_task(context), range((i - 1) * count, i * count))


def sampled(context: Context, prompts: list[Prompt], n: int, role: str = "policy") -> list[Group]:
    """n answers of a role to each prompt, other ones in every round."""
    c = context.config
    seed = rng.key(c.seed, "round", round_of(context), *(() if role == "policy" else (role,))) & 0x7FFFFFFF
    made = context.role(role).sample(prompts, n, c.sampling, seed)
    return [Group(p, some) for p, some in zip(prompts, made, strict=True)]


@dataclass(frozen=True)
class Collect:
    """The work of a round before it is learned from."""

    prompts: int
    n: int
    pairing: Pairing

    def __call__(self, context: Context) -> None:
        i = round_of(context)
        groups = sampled(context, new_prompts(context, self.prompts), self.n)
        rows = [
            {"id": f"{g.prompt.id}-{i}" + (f".{k}" if k else ""), "prompt": list(g.prompt.content)}
            | known(g.prompt)
            | row
            for g, some in zip(groups, self.pairing(context, groups), strict=True)
            for k, row in enumerate(some)
        ]
        if not rows:
            raise UserError(
                f"round {i}: of {self.n} answers to each of {self.prompts} prompts none was preferred to another, so there is nothing to learn from; "
                "ask for more answers (--plan.n) or prompts, sample warmer (--sampling.temperature), or judge more finely (--reward)"
            )
        write(context, rows)


def known(prompt: Prompt) -> Row:
    """What else is known of a prompt, as far as it is plain: policies of other kinds than language know it by that."""
    plain = {k: v for k, v in prompt.info.items() if isinstance(v, (bool, int, float))}
    return {"info": plain} if plain else {}


def write(context: Context, rows: list[Row]) -> None:
    """Keep the rows of the present round, and note how many there are."""
    i = round_of(context)
    context.run.write_artifact(f"pairs{i}", rows)
    context.notes.setdefault("pairs", {})[f"round {i}"] = len(rows)


def collected(context: Context) -> Listed:
    """The pairs of the present round."""
    return from_rows("pairs", context.run.read_artifact(f"pairs{round_of(context)}"), 0.0)


# ---- pairings


def told(group: Group) -> list[Rollout]:
    """The answers whose reward is known, worst first."""
    return sorted((r for r in group.rollouts if not r.failed and r.reward is not None), key=lambda r: float(r.total))


def best_and_worst(context: Context, groups: list[Group], penalty: float = 0.0) -> list[list[Row]]:
    """By --reward, less a penalty for each character; equal ones say nothing."""
    asked_scores(context, groups)

    def worth(r: Rollout) -> float:
        return r.total - penalty * len(r.text)

    out: list[list[Row]] = []
    for group in groups:
        ranked = sorted(told(group), key=worth)
        apart = len(ranked) > 1 and worth(ranked[-1]) > worth(ranked[0])
        out.append([{"chosen": ranked[-1].text, "rejected": ranked[0].text}] if apart else [])
    return out


def knockout(context: Context, groups: list[Group], k: float = 1.0) -> list[list[Row]]:
    """The winner and the loser of two knockouts of the same first matches, by the judge in both orders; left out where the winner does not
    beat the loser."""
    judge = asked_judge(context, k)
    texts = [[r.text for r in g.rollouts] for g in groups]
    heard: list[float] = []
    first = _played(judge, groups, [list(range(len(some))) for some in texts], texts, heard)
    best, worst = (_reduced(judge, groups, texts, first, heard, upwards) for upwards in (True, False))
    matches = [(g.prompt, t[a], t[b]) for g, t, a, b in zip(groups, texts, best, worst, strict=True)]
    sure = verdicts(judge, matches, heard)
    was_heard(heard)
    count_calls(context, judge)
    return [
        [{"chosen": a, "rejected": b}] if p > 0.5 and a != b else [] for (_, a, b), p in zip(matches, sure, strict=True)
    ]


def verdicts(judge: Judging, matches: list[Match], heard: list[float]) -> list[float]:
    """P(first beats second) for each match, NaN where the judge cannot say; what it said of different answers is added to `heard`."""
    sure = compare(judge, matches)
    heard += [p for (_, a, b), p in zip(matches, sure, strict=True) if a != b]
    return sure


def was_heard(heard: list[float]) -> None:
    """A sentence where the judge could not say anything of any pair."""
    if heard and all(p != p for p in heard):
        raise UserError(
            f"the judge gave no number for any of {len(heard)} pairs, so there is nothing to learn from; it must give the chance "
            "that the first answer is better, between 0 and 1, or points for each answer"
        )


def random_two(context: Context, groups: list[Group], k: float = 1.0) -> list[list[Row]]:
    """The first two answers, which are as good as any; which one is preferred is drawn with the judge's probability, as when somebody is
    asked once."""
    judge = asked_judge(context, k)
    matches: list[Match] = [(g.prompt, g.rollouts[0].text, g.rollouts[1].text) for g in groups]
    heard: list[float] = []
    sure = verdicts(judge, matches, heard)
    was_heard(heard)
    count_calls(context, judge)
    out: list[list[Row]] = []
    for (prompt, a, b), p in zip(matches, sure, strict=True):
        first = rng.python("asked once", context.config.seed, context.phase, prompt.id).random() < p
        best, worst = (a, b) if first else (b, a)
        out.append([] if a == b or p != p else [{"chosen": best, "rejected": worst}])
    return out


Outcome = list[tuple[list[int], list[int]]]  # of each group: who won its match, who lost; an odd one out is both


def _played(
    judge: Judging, groups: list[Group], places: list[list[int]], texts: list[list[str]], heard: list[float]
) -> Outcome:
    """One round of matches between neighbours, all groups in one call. A judge that cannot say lets the first one win."""
    twos = [[(p[i], p[i + 1]) for i in range(0, len(p) - 1, 2)] for p in places]
    matches = [(g.prompt, t[a], t[b]) for g, t, some in zip(groups, texts, twos, strict=True) for a, b in some]
    sure = iter(verdicts(judge, matches, heard))
    out = []
    for some, p in zip(twos, places, strict=True):
        ahead = [(b, a) if next(sure) < 0.5 else (a, b) for a, b in some]
        left = [p[-1]] if len(p) % 2 else []
        out.append(([a for a, _ in ahead] + left, [b for _, b in ahead] + left))
    return out


def _reduced(
    judge: Judging, groups: list[Group], texts: list[list[str]], first: Outcome, heard: list[float], upwards: bool
) -> list[int]:
    """Who is left of the winners (or of the losers, who lose on) of the first matches."""
    places = [won if upwards else lost for won, lost in first]
    while any(len(p) > 1 for p in places):
        places = [won if upwards else lost for won, lost in _played(judge, groups, places, texts, heard)]
    return [p[0] for p in places]
