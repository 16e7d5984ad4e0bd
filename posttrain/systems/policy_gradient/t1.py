"""T1: many answers per prompt, each against the others, an entropy bonus, and a KL to a moving average of the policy."""

from __future__ import annotations

from typing import Any

from posttrain.advantages.rloo import rloo as leave_one_out
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.from_pairs import demonstrations, imitation
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import ema

# ---- what answers are worth


def degenerate(rollout: Rollout, n: int = 4, times: int = 5) -> bool:
    """Cut at the limit, or the same n words in a row `times` times."""
    words = rollout.text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return rollout.truncated or any(grams.count(g) >= times for g in set(grams))


@scorer(title="Degenerate answers punished", paper="arXiv:2501.11651")
class Punished(BaseScorer):
    """Degenerate answers punished (T1): R = -penalty where an answer was cut at the limit or repeats itself, else that of `scorer`.

    The component `degenerate` is 1 for those. High temperatures make many of them; a wrong answer that ends is worth more.
    """

    reported, by_name = ("degenerate",), {"scorer": "scorer"}

    def __init__(self, scorer: Any, penalty: float = 1.0) -> None:
        self.inner, self.penalty = scorer, penalty

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        bad = [degenerate(r) for r in answers_of(groups)]
        return [Verdict(-self.penalty if b else None, {"degenerate": float(b)}) for b in bad]


# ---- the plan


def many_answers(n: int = 64, beta: float = 0.01, bonus: float = 0.001, decay: float = 0.99) -> Method:
    """RLOO over n answers with PPO's clip, an entropy bonus, and a KL to an average of past policies."""
    return grpo.but(
        name="t1", title="T1", paper="arXiv:2501.11651", doc=__doc__,
        rollout=sample.but(n=n), advantage=leave_one_out, aggregate=token_mean, minibatches=2,
        terms=(kl.but(coef=beta), entropy.but(coef=bonus)), reference=ema.but(decay=decay),  # type: ignore[attr-defined]
    )  # fmt: skip


@plan(paper="arXiv:2501.11651", title="T1")
def t1(
    steps: int = 60, warmup: float = 1, n: int = 64, penalty: float = 1.0, beta: float = 0.01, bonus: float = 0.001,
    decay: float = 0.99,
) -> Plan:  # fmt: skip
    """T1: SFT on chains with trial, error and self-check, then RL with many answers per prompt, each against the others.

    A_i = R_i - mean of the others;  L = clipped ratio + beta KL(pi || average of past policies) - bonus H;  R = -penalty if degenerate
    warmup: passes of SFT over the written solutions of --task; 0 begins with RL (a model that reasons already). steps: of RL.

    Departures: the paper's chains are written by several models with failed attempts kept in; yours are the rows' solutions. Its
    coefficients are not printed: KL 0.01, entropy 0.001, decay 0.99, the penalty of 1 and two updates per batch are this package's;
    degenerate means cut at the limit, or four words in a row five times.
    64 answers per prompt at temperature 1.2 are the paper's.
    """
    if steps < 1 or warmup < 0 or n < 2 or penalty < 0:
        raise UserError(
            f"got steps={steps}, warmup={warmup}, n={n}, penalty={penalty}; 1 step, 2 answers, and none below 0"
        )
    worked = demonstrations()

    def rewards(context: Context) -> Punished:
        return Punished(asked_rewards(context), penalty)

    def ready(context: Context) -> None:
        if warmup:
            worked(context)

    learn = Phase("t1", many_answers(n, beta, bonus, decay), steps, asked_task, rewards=rewards)
    return Plan((*imitation(warmup, worked), learn), ready=ready, settings=(("sampling.temperature", 1.2),))
