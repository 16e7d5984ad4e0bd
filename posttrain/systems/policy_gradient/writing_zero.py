"""Writing-Zero (BRPO): each answer is judged beside one of its siblings, drawn at random; win or lose is the advantage itself."""

from __future__ import annotations

import math

from posttrain.advantages.outcome import outcome
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import scorer, select
from posttrain.core.types import Group
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_judge, asked_task, needs_judge
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict
from posttrain.rewards.scorers.pairwise import Judge, compare
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

    def __init__(self, judge: Judge, orders: str = "drawn", seed: int = 0, tie: float = -1.0) -> None:
        self.judge, self.orders, self.seed, self.tie, self.calls = judge, orders, seed, tie, 0

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


@plan(paper="arXiv:2506.00103", title="Writing-Zero (BRPO)")
def writing_zero(steps: int = 60, n: int = 16, limit: float = 0.6, k: float = 1.0, orders: str = "drawn") -> Plan:
    """Writing-Zero (BRPO): bootstrapped relative policy optimisation, for tasks where answers can only be compared.

    A_i = R_i = 1 if y_i beats y_ref, else -1;  y_ref: one of the n, at random;  groups with |mean R| > limit go

    Departures: the paper's judge is a model that states principles, writes a critique and scores two texts, trained
    by RL; it is not built and must be given: `--reward FILE.py:FUNCTION` of (prompt, a, b), or any reward r, which
    judges by sigmoid(k (r_a - r_b)); without one it ends with a sentence before anything is loaded. Groups that go are not replaced; the limit 0.6 is this
    package's. 16 answers per prompt, a reference drawn among them, and -1 for what does not beat it, ties too, are the paper's.
    """
    if steps < 1 or n < 3:
        raise UserError(f"got steps={steps}, n={n}; it takes 1 step, and a reference with 2 others")

    def rewards(context: Context) -> Bootstrapped:
        return Bootstrapped(asked_judge(context, k), orders, context.config.seed)

    phase = Phase("brpo", brpo(n, limit), steps, asked_task, rewards=rewards)
    return Plan((phase,), ready=needs_judge("writing-zero"))
