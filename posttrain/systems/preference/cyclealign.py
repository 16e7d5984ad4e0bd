"""CycleAlign: a judge that cannot be trained ranks by examples, the student learns its rankings, and what both agree on is the next example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.judged import asked_prompts, count_calls
from posttrain.methods.settings import asked_judge, asked_pairs, needs_feedback, written
from posttrain.rewards.scorers.judging import Case, Criterion, Example
from posttrain.systems.preference.rrhf import rrhf

RUBRIC = "Which answer is the most helpful, honest and harmless?"
UPDATES = ("agreement", "judge", "none")
AT_ONCE = 32  # answers of a forward pass

# ---- what the student thinks, and what both agree on


@torch.no_grad()
def student_order(policy: Any, rollouts: Sequence[Rollout]) -> tuple[int, ...]:
    """The places of answers by the policy's own mean log-probability per token, the likeliest first."""
    was, means = policy.training, []
    policy.eval()
    for at in range(0, len(rollouts), AT_ONCE):
        some = list(rollouts[at : at + AT_ONCE])
        logp_B = policy.forward(some, ("logp_BT",))["logp_BT"].sum(-1).tolist()
        means += [x / max(len(r), 1) for x, r in zip(logp_B, some, strict=True)]
    policy.train(was)
    return tuple(sorted(range(len(means)), key=lambda i: -means[i]))


def agreement(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The longest order in which two rankings agree: their longest common subsequence, of several the one that comes first in `one`."""
    best: list[list[tuple[int, ...]]] = [[() for _ in range(len(other) + 1)] for _ in range(len(one) + 1)]
    for i in range(len(one) - 1, -1, -1):
        for j in range(len(other) - 1, -1, -1):
            both = (one[i], *best[i + 1][j + 1]) if one[i] == other[j] else ()
            best[i][j] = max(both, best[i][j + 1], best[i + 1][j], key=len)
    return best[0][0]


# ---- the plan


def by_rank(nll: float = 1.0) -> Method:
    return rrhf.but(
        name="cyclealign", title="CycleAlign", paper="arXiv:2310.16271", doc=__doc__, loss=rrhf.loss.but(nll=nll)
    )


@plan(paper="arXiv:2310.16271", title="CycleAlign")
def cyclealign(
    rounds: int = 8, prompts: int = 64, n: int = 4, nll: float = 1.0, static: str = "", shown: int = 1, update: str = "agreement"
) -> Plan:  # fmt: skip
    """CycleAlign: rounds in which the student teaches the judge by examples, and the judge the student by rankings.

    In each round the policy gives n answers to new prompts of --task; the judge (--reward) ranks them with examples before its eyes, static ones and
    `shown` dynamic ones; the policy ranks them by s = 1/|y| log pi(y | x); where both agree, the longest common subsequence of the two orders,
    is the next round's example. L = sum over y_i ranked above y_j of max(0, s_j - s_i) - nll s_best, one pass over the round's lists
    prompts: in each round. static: a file of ranked answers (prompt, responses, and ranks or scores) that are shown in every round. shown: dynamic
    examples, of the prompts with the longest agreement; update: where they come from, agreement, judge (its own rankings) or none. The judge must be able to read examples:
    judge(url=...), model_judge(folder=...), or a function with a parameter `demonstrations`. Artifacts: lists-N.jsonl, which
    `posttrain run rrhf --task` reads, and examples-N.jsonl.

    Departures: no authors' code is known; that agreement is the longest common subsequence, and the form of the loss (RRHF's), are from descriptions of the paper; its
    number of answers, of rounds and of examples, the weight of the imitation, and its prompts could not be checked and are this package's. Its answers are made different by prompts that ask for more and less
    aligned ones; here they are sampled as the settings say. Examples change once a round, not after each instruction. An agreement of fewer than two answers is no example.
    """
    if update not in UPDATES:
        raise unknown("source of examples", update, UPDATES)
    if rounds < 1 or prompts < 1 or n < 2 or shown < 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, shown={shown}; it takes 1 round, 1 prompt, 2 answers and 0 examples at least"
        )

    dynamic = shown if update != "none" else 0

    def fixed(context: Context) -> tuple[Example, ...]:
        found = asked_pairs(context, static, "lists") if static else Listed("none", ())
        return tuple(Example(p, tuple(a["text"] for a in p.info["ranked"])) for p in (*found.train, *found.test))

    def ready(context: Context) -> None:
        needs_feedback("cyclealign")(context)
        if not asked_judge(context).learns:
            raise UserError(
                "cyclealign shows its judge examples, and this one reads none; give a served model, --reward \"judge(url='http://...')\", a "
                "folder, --reward \"model_judge(folder='...')\", or a function with a parameter for them: "
                "def judge(prompt, texts, demonstrations)"
            )
        fixed(context)

    def examples(context: Context) -> tuple[Example, ...]:
        """Static ones, and those that the round before left."""
        if (i := round_of(context)) == 1:
            return fixed(context)
        before = {p.id: p for p in asked_prompts(context, prompts, (i - 2) * prompts)}
        rows = context.run.read_artifact(f"examples-{i - 1}")
        return fixed(context) + tuple(Example(before[r["id"]], tuple(r["ranked"])) for r in rows)

    def cycle(context: Context) -> None:
        c, i, policy = context.config, round_of(context), context.role("policy")
        asked = asked_prompts(context, prompts, (i - 1) * prompts)
        made = policy.sample(asked, n, c.sampling, rng.key(c.seed, "cyclealign", i) & 0x7FFFFFFF)
        answers = [distinct_texts(some) for some in made]
        known: list[Case] = [(p, [r.text for r in some]) for p, some in zip(asked, answers, strict=True)]
        judge = asked_judge(context)
        orders = judge.rank(known, Criterion(RUBRIC, "alignment", examples=examples(context)))
        lists = [
            (p, [texts[k] for k in order]) for (p, texts), order in zip(known, orders, strict=True) if len(order) > 1
        ]
        if not lists:
            raise UserError(
                f"round {i}: the judge ranked the answers to none of {len(asked)} prompts, so there is nothing to learn"
            )
        told = [
            {"id": f"{p.id}-{i}", "prompt": list(p.content), "responses": ranked, "ranks": list(range(1, len(ranked) + 1))}
            for p, ranked in lists
        ]  # fmt: skip
        context.notes["lists_file"] = str(context.run.write_artifact(f"lists-{i}", told))
        both = [agreement(order, student_order(policy, some)) for order, some in zip(orders, answers, strict=True)]
        chosen = both if update == "agreement" else orders
        rows = next_examples(known, chosen, dynamic)
        context.run.write_artifact(f"examples-{i}", rows)
        shares = [len(x) / len(order) for x, order in zip(both, orders, strict=True) if order]
        context.notes.setdefault("agreement", {})[f"round {i}"] = sum(shares) / len(shares)
        count_calls(context, judge)

    def lists_of(context: Context) -> Listed:
        rows = context.run.read_artifact(f"lists-{round_of(context)}")
        return Listed("lists", tuple(
            Prompt(r["id"], tuple(r["prompt"]), None, {"ranked": [{"text": t} for t in r["responses"]]}) for r in rows
        ))  # fmt: skip

    learn = Phase("learn", by_rank(nll), epochs_of(lists_of, 1), lists_of, rewards=written)
    return Plan((Cycle((Do("cycle", cycle), learn), times=rounds),), ready=ready)


def distinct_texts(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """One of each text: equal answers have no order."""
    return list({r.text: r for r in rollouts}.values())


def next_examples(known: Sequence[Case], orders: Sequence[tuple[int, ...]], count: int) -> list[dict[str, Any]]:
    """The `count` longest of orders of two answers or more, the first of equals, as rows."""
    length: Callable[[int], int] = lambda k: len(orders[k])  # noqa: E731
    best = sorted((k for k in range(len(known)) if len(orders[k]) > 1), key=length, reverse=True)[:count]
    return [
        {"id": known[k][0].id, "prompt": list(known[k][0].content), "ranked": [known[k][1][i] for i in orders[k]]} for k in best
    ]  # fmt: skip
