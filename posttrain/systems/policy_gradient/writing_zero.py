"""Writing-Zero (BRPO): each answer is judged beside one of its siblings, drawn at random; win or lose is the advantage itself."""

from __future__ import annotations

import math
from typing import Any

from posttrain.advantages.outcome import outcome
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import scorer, select
from posttrain.core.types import Group
from posttrain.environments.language.listed import Listed
from posttrain.losses.aggregate import token_mean
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_judge, asked_pairs, asked_task, needs_judge, written
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict
from posttrain.rewards.scorers.pairwise import Compares, compare
from posttrain.rewards.scorers.policy_judge import PolicyJudge, lessons
from posttrain.rollouts.sample import sample
from posttrain.select.valid import reward_of, valid_rollouts

# ---- what answers are worth
# Pairwise reward against a reference answer that the policy itself just gave (BRPO, arXiv:2506.00103).


@scorer(title="Bootstrapped reference", paper="arXiv:2506.00103")
class Bootstrapped(BaseScorer):
    """Bootstrapped reference: one answer of each group, drawn at random, is the reference; the others earn 1 if they beat it, else -1.

    R_i = 1 if P(y_i > y_ref) > 1/2, else -1 (a tie earns what `tie` says: -1);  n - 1 comparisons a group instead of n (n - 1) / 2
    The reference says so (`info["reference"]`) and earns 0; the filter `balanced` takes it out. It must be drawn: were it
    the best of them, nearly all would be blamed. An answer that could not be compared is masked. `calls` counts questions.
    """

    reported, by_name = ("beats_reference",), {"judge": "judge"}

    def __init__(self, judge: Compares, orders: str = "drawn", seed: int = 0, tie: float = -1.0) -> None:
        self.judge, self.orders, self.seed, self.tie, self.calls, self._told = judge, orders, seed, tie, 0, 0

    def counts(self) -> dict[str, float]:
        since, self._told = self.calls - self._told, self.calls
        return {"judge_calls": float(since)}

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rivals = [(r, g.rollouts[at]) for g in groups for at in [self.drawn(g)] for r in g.rollouts]
        matches = [(r.prompt, r.text, ref.text) for r, ref in rivals if r is not ref]
        self.calls += sum(a != b for _, a, b in matches) * (2 if self.orders == "both" else 1)
        said = iter(compare(self.judge, matches, self.orders))
        out = []
        for r, ref in rivals:
            p = 0.5 if r is ref else next(said)
            tie = 0.0 if r is ref else self.tie
            won = NAN if p != p else math.copysign(1.0, p - 0.5) if p != 0.5 else tie
            r.info = r.info | {"reference": r is ref}
            out.append(Verdict(won, {"beats_reference": won}))
        return out

    def drawn(self, group: Group) -> int:
        """Which of its answers is a group's reference, by identity."""
        step = max((r.version for r in group.rollouts), default=0)
        return rng.python(self.seed, "reference", step, group.prompt.id).randrange(max(len(group.rollouts), 1))


# ---- which groups are learned from


@select(title="Balanced (BRPO)", paper="arXiv:2506.00103")
def balanced(groups: list[Group], limit: float = 0.6) -> list[Group]:
    """Balanced (BRPO): the reference answer leaves its group, and a group goes that nearly all won or nearly all lost.

    keep iff |mean_i R_i| <= limit over the others, R = 1, 0, -1;  a reference far too good or too bad compares nobody
    """
    others = [g.only([i for i, r in enumerate(g.rollouts) if not r.info.get("reference")]) for g in groups]
    return [
        g for g in others if (n := len(valid_rollouts(g))) and abs(sum(map(reward_of, valid_rollouts(g)))) <= limit * n
    ]


# ---- the plan


def brpo(n: int = 16, limit: float = 0.6) -> Method:
    """PPO's clip on +-1 as they are: the reference is drawn from the same policy, so that they have the mean 0 already."""
    return grpo.but(
        name="writing-zero", title="Writing-Zero (BRPO)", paper="arXiv:2506.00103", doc=__doc__,
        rollout=sample.but(n=n), select=balanced.but(limit=limit), advantage=outcome, aggregate=token_mean, terms=(),
    )  # fmt: skip


# A judge of one's own: a copy of the policy that learns to say which of two answers is better, first by imitation, then by RL.

COLD = 3  # passes over the pairs by imitation


class RightVerdict(BaseScorer):
    """1 for a judge that names the preferred answer, 0 for one that does not."""

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [
            Verdict(float(r.text.strip() == r.prompt.info["demonstration"]), {}) for g in groups for r in g.rollouts
        ]


def own_judge(pairs: str, passes: float) -> tuple[Any, ...]:
    """Imitation of the verdicts on a file of preferences, in both orders, then GRPO on being right about them; none without a file."""

    def taught(context: Context) -> Listed:
        known = asked_pairs(context, pairs).train
        return Listed("verdicts", tuple(lessons((p, p.info["chosen"], p.info["rejected"]) for p in known)))

    def judge(context: Context) -> Any:
        return context.role("policy").clone()

    imitate = Phase("judge", sft, epochs_of(taught, COLD), taught, role="judge", make=judge, rewards=written)
    learn = Phase("judge-rl", grpo, epochs_of(taught, passes), taught, role="judge", rewards=lambda c: RightVerdict())
    return (imitate, *((learn,) if passes else ())) if pairs else ()


@plan(paper="arXiv:2506.00103", title="Writing-Zero (BRPO)")
def writing_zero(
    steps: int = 60, n: int = 16, limit: float = 0.6, k: float = 1.0, orders: str = "drawn", pairs: str = "", passes: float = 1.0
) -> Plan:  # fmt: skip
    """Writing-Zero (BRPO): bootstrapped relative policy optimisation, for tasks where answers can only be compared.

    A_i = R_i = 1 if y_i beats y_ref, else -1;  y_ref: one of the n, at random;  groups with |mean R| > limit go
    The judge: trained here from a file of preferences (pairs: prompt, chosen, rejected), or given as --reward FILE.py:FUNCTION of (prompt, a,
    b), or as any reward r, which judges by sigmoid(k (r_a - r_b)). passes: of the judge's RL over the pairs.

    Departures: the paper's judge states principles, writes a critique and scores two texts before RL rewards it for the right order; the
    one of `pairs` names the better answer at once, after three passes of imitation and RL for being right. Without pairs a judge must be
    given; without one it ends with a sentence before anything is loaded. Groups that go are not replaced; the limit 0.6 is this
    package's. 16 answers per prompt, a reference drawn among them, and -1 for what does not beat it, ties too, are the paper's.
    """
    if steps < 1 or n < 3 or passes < 0:
        raise UserError(
            f"got steps={steps}, n={n}, passes={passes}; it takes 1 step, a reference with 2 others, and 0 passes or more"
        )

    def learned(context: Context) -> Bootstrapped:
        return Bootstrapped(PolicyJudge(context.role("judge")), orders, context.config.seed)

    def named(context: Context) -> Bootstrapped:
        return Bootstrapped(asked_judge(context, k), orders, context.config.seed)

    def ready(context: Context) -> None:
        if pairs:
            asked_pairs(context, pairs)
        else:
            needs_judge("writing-zero", k)(context)

    phase = Phase("brpo", brpo(n, limit), steps, asked_task, rewards=learned if pairs else named)
    return Plan((*own_judge(pairs, passes), phase), ready=ready, uses=("task",) if pairs else None)
