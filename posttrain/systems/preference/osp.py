"""OSP: the policy compares its own answers, and learns from each pair as surely as it preferred one of the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.registry import preference_loss
from posttrain.environments.language.listed import Listed
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.judged import asked_prompts, count_calls, made_pairs, write_pairs
from posttrain.methods.settings import asked_judge, asked_pairs, asked_task, written
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.judging import Case
from posttrain.rewards.scorers.pairwise import compare, mean
from posttrain.rewards.scorers.policy_judge import PolicyJudge, lessons

PASSES = 3  # over a file of pairs, that the policy learns to judge by
LABELS = ("soft", "hard", "even")
PAIRINGS = ("ends", "neighbours", "all")

# ---- which pairs are learned from


def strengths(judge: Any, cases: Sequence[Case]) -> list[dict[tuple[int, int], float]]:
    """P(i is better than j) of every two answers to each prompt, asked in both orders."""
    met = [(k, i, j) for k, (_, texts) in enumerate(cases) for i, j in combinations(range(len(texts)), 2)]
    said = compare(judge, [(cases[k][0], cases[k][1][i], cases[k][1][j]) for k, i, j in met])
    out: list[dict[tuple[int, int], float]] = [{} for _ in cases]
    for (k, i, j), p in zip(met, said, strict=True):
        out[k][i, j] = p
    return out


def ranked_pairs(n: int, won: dict[tuple[int, int], float], pairing: str = "ends") -> list[tuple[int, int, float]]:
    """(better, worse, P(better is preferred)) between answers that are ranked by their mean win probability.

    ends: the best with the worst, the second with the last but one ...; neighbours: each with the next; all: every two
    """
    rates = [mean([p if k == i else 1 - p for (i, j), p in won.items() if k in (i, j)]) for k in range(n)]
    if any(x != x for x in rates):
        return []
    order = sorted(range(n), key=lambda k: -rates[k])
    places = {
        "ends": [(k, n - 1 - k) for k in range(n // 2)],
        "neighbours": [(k, k + 1) for k in range(n - 1)],
        "all": list(combinations(range(n), 2)),
    }[pairing]
    out = []
    for a, b in ((order[x], order[y]) for x, y in places):
        p = won[a, b] if (a, b) in won else 1 - won[b, a]
        out += [] if p != p else [(a, b, p)] if p >= 0.5 else [(b, a, 1 - p)]
    return out


def labelled(rows: list[dict[str, Any]], labels: str) -> list[dict[str, Any]]:
    """Pairs as sure as the judge was (soft), for certain (hard), or each as sure as all are on average (even)."""
    if labels == "soft":
        return rows
    sure = mean([row["preferred"] for row in rows]) if labels == "even" and rows else 1.0
    return [row | {"preferred": sure} for row in rows]


# ---- what is minimised


@preference_loss(
    name="spce", paper="arXiv:2405.14103", base="dpo", reads=("chosen_P", "preferred_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def spce(batch: Batch, beta: float = 0.1) -> Tensor:
    """SPCE (OSP): DPO whose labels are as sure as the judge was: the margin is drawn to the log-odds of the preference, not beyond.

    L = -p log sigmoid(beta u) - (1 - p) log sigmoid(-beta u);  p = P(chosen is preferred);  dL/du = beta (sigmoid(beta u) - p)
    """
    logit_P, p = beta * margin(batch), batch["preferred_P"]
    return -p * logsigmoid(logit_P) - (1 - p) * logsigmoid(-logit_P)


def by_strength(beta: float = 0.1) -> Method:
    return dpo.but(name="osp", title="OSP", paper="arXiv:2405.14103", doc=__doc__, loss=spce.but(beta=beta))


# ---- the plan


@plan(paper="arXiv:2405.14103", title="OSP")
def osp(
    rounds: int = 3, prompts: int = 500, n: int = 4, beta: float = 0.1, pairing: str = "ends", pairs: str = "", labels: str = "soft"
) -> Plan:  # fmt: skip
    """OSP: in each round the policy answers new prompts, compares its answers itself, and learns by soft preferences.

    p_ij = (pi(A | x, y_i, y_j) + pi(B | x, y_j, y_i)) / 2, each normalised over A and B;  answers are ranked by their mean p
    L = -p log sigmoid(beta u) - (1 - p) log sigmoid(-beta u);  u: by how much more than the start the policy prefers the pair's first
    prompts: of --task, in each round. n: answers to each. pairing: which of the ranked answers are paired: ends (best with worst, second with
    last but one), neighbours or all. pairs: a file of preferences (prompt, chosen, rejected) by which the policy first learns to judge and to answer; without it
    the model must be able to say which of two answers is better. labels: hard takes every preference for certain, even takes each
    for as sure as all of its round are on average. --reward: another judge in the policy's place. Each round's file is artifacts/pairs-N.jsonl.

    Departures: no authors' code is known, and the paper's judge prompt, number of answers, beta, rounds, its rule of pairing and its reference (here the policy
    before the first round) could not be checked; those here are this package's. The first stage learns verdicts in both orders and the chosen answers, three passes. Each round is
    one pass over its pairs. The loss and the probability of the choice as strength are the paper's.
    """
    if pairing not in PAIRINGS:
        raise unknown("pairing", pairing, PAIRINGS)
    if labels not in LABELS:
        raise unknown("kind of labels", labels, LABELS)
    if rounds < 1 or prompts < 1 or n < 2:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}; it takes 1 round, 1 prompt and 2 answers at least"
        )

    def ready(context: Context) -> None:
        asked_task(context)
        if pairs and has_reward(context):
            raise UserError(
                "osp is judged by itself, taught by --plan.pairs, or by --reward, not by both; leave one away"
            )
        if pairs:
            asked_pairs(context, pairs)
        elif has_reward(context):
            asked_judge(context)

    def taught(context: Context) -> Listed:
        """Verdicts in both orders, and the chosen answers as they are."""
        known = asked_pairs(context, pairs).train
        verdicts = lessons((p, p.info["chosen"], p.info["rejected"]) for p in known)
        answers = [replace(p, info=p.info | {"demonstration": p.info["chosen"]}) for p in known]
        return Listed("judging", (*verdicts, *answers))

    def collect(context: Context) -> None:
        c, i = context.config, round_of(context)
        asked = asked_prompts(context, prompts, (i - 1) * prompts)
        judge = asked_judge(context) if has_reward(context) else PolicyJudge(context.role("policy"))
        made = context.role("policy").sample(asked, n, c.sampling, rng.key(c.seed, "osp", i) & 0x7FFFFFFF)
        known: list[Case] = [(p, [r.text for r in some]) for p, some in zip(asked, made, strict=True)]
        rows = []
        for (p, texts), won in zip(known, strengths(judge, known), strict=True):
            for k, (a, b, sure) in enumerate(ranked_pairs(n, won, pairing)):
                row = {"id": f"{p.id}-{i}-{k}", "prompt": list(p.content), "chosen": texts[a], "rejected": texts[b]}
                rows += [row | {"preferred": sure}] if texts[a] != texts[b] else []
        write_pairs(context, labelled(rows, labels), len(asked), f"pairs-{i}")
        count_calls(context, judge)

    def collected(context: Context) -> Listed:
        return made_pairs(f"pairs-{round_of(context)}")(context)

    learn = Phase("osp", by_strength(beta), epochs_of(collected, 1), collected, rewards=written, reference="start")
    parts = (
        *((Phase("judging", sft, epochs_of(taught, PASSES), taught, rewards=written),) if pairs else ()),
        Copy("policy", "start"),
        Cycle((Do("collect", collect), learn), times=rounds),
    )
    return Plan(parts, ready=ready)
