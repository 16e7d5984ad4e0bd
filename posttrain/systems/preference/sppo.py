"""SPPO: self-play: the log-ratio of an answer is fitted to how often it beats the present policy's answers."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.registry import preference_loss
from posttrain.core.types import Group, Prompt
from posttrain.environments.language.listed import Listed
from posttrain.losses.aggregate import list_mean
from posttrain.losses.preference.margin import log_ratio
from posttrain.losses.preference.ranks import scores
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.judged import count_calls
from posttrain.methods.rounds import Collect, Row
from posttrain.methods.settings import asked_judge, asked_scores, needs_judge, written
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rollouts.written import lists


def winner_and_loser(context: Context, groups: list[Group]) -> list[list[Row]]:
    """The answers that beat their siblings most and least often; every two meet in both orders. P_k is over all n answers, itself among them,
    which it beats half of the time: ((n - 1) share of the others + 1/2) / n."""
    judge = asked_judge(context)
    asked_scores(context, groups, WinRate(judge))
    count_calls(context, judge)
    out: list[list[Row]] = []
    for group in groups:
        ranked = sorted(
            (r for r in group.rollouts if not r.failed and r.reward is not None), key=lambda r: float(r.total)
        )
        apart = len(ranked) > 1 and ranked[-1].total > ranked[0].total
        n = len(group.rollouts)
        worth = [((n - 1) * float(r.total) + 0.5) / n for r in (ranked[-1], ranked[0])] if apart else []
        two = [{"text": r.text, "score": p} for r, p in zip((ranked[-1], ranked[0]), worth, strict=False)]
        out.append([{"ranked": two}] if two else [])
    return out


def judged(context: Context) -> Listed:
    """The answers of the present round, two to a prompt, with how often each wins."""
    rows = context.run.read_artifact(f"pairs{round_of(context)}")
    prompts = tuple(Prompt(r["id"], tuple(r["prompt"]), None, {"ranked": r["ranked"]}) for r in rows)
    context.notes["win_rates"] = [round(fmean(r["ranked"][i]["score"] for r in rows), 4) for i in (0, 1)]
    return Listed("pairs", prompts)


@preference_loss(
    name="sppo", paper="arXiv:2405.00675", reads=("ranked_LK", "ref_logp_BT", "reward_BT"), per="list",
)  # fmt: skip
def sppo_loss(batch: Batch, beta: float = 0.001, hard: bool = False) -> Tensor:
    """SPPO: multiplicative weights as a regression: each answer's log-ratio to the last policy is how much it wins more than half.

    L = sum_k (l_k - (P_k - 1/2) / beta)^2;  l = log pi(y) - log pi_t(y),  P_k = P(y_k beats pi_t);  hard: 1 for the winner, 0 for the loser
    """
    there_LK = batch["ranked_LK"] >= 0
    win_LK = scores(batch)
    if hard:
        win_LK = (torch.arange(win_LK.shape[1]) == 0).to(win_LK).expand_as(win_LK)
    ratio_LK = log_ratio(batch)[batch["ranked_LK"].clamp_min(0)]
    return torch.where(there_LK, (ratio_LK - (win_LK - 0.5) / beta) ** 2, 0.0).sum(-1)


@plan(paper="arXiv:2405.00675", title="SPPO", uses=("task", "reward"))
def sppo(
    rounds: int = 3, prompts: int = 2000, n: int = 5, epochs: float = 1, beta: float = 0.001, hard: bool = False
) -> Plan:  # fmt: skip
    """SPPO: in rounds, the policy's answers are compared with one another, and the winner and the loser are pushed as far as they win.

    P_k: the share of the n answers that an answer beats, by the judge in both orders, itself for a half;  reference: the policy as the round began
    prompts: new ones of each round. n: answers to each. epochs: passes over a round.

    Departures: the judge must be given: --reward mine.py:prefer of (prompt, a, b), or a reward r (`runs/NAME`), which judges by sigmoid(r_a - r_b); the
    authors' is PairRM. They take 20,000 prompts a round and up to 18 epochs at 5e-7 with RMSprop; here 2,000, one epoch and a rate by the size (`--lr`).
    5 answers, 3 rounds, beta 0.001 (1 / 1000; a YAML of theirs says 0.01 and is overridden), and the winner and the loser only are theirs; their loss is
    half of this one, the mean over the two.
    """
    if rounds < 1 or prompts < 1 or n < 2 or epochs <= 0 or beta <= 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, epochs={epochs}, beta={beta}; it takes a round, a prompt, 2 answers, and beta above 0"
        )
    method = dpo.but(rollout=lists, loss=sppo_loss.but(beta=beta, hard=hard), aggregate=list_mean)
    learn = Phase("sppo", method, epochs_of(judged, epochs), judged, rewards=written, reference="previous")
    parts = (Do("collect", Collect(prompts, n, winner_and_loser)), Copy("policy", "previous"), learn)
    return Plan((Cycle(parts, times=rounds),), ready=needs_judge("sppo"))
