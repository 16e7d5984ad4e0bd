"""Pairwise reward against a reference answer that the policy itself just gave (BRPO, arXiv:2506.00103)."""

from __future__ import annotations

import math

from posttrain.core import rng
from posttrain.core.registry import scorer
from posttrain.core.types import Group
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict
from posttrain.rewards.scorers.pairwise import Judge, compare


@scorer(title="Bootstrapped reference", paper="arXiv:2506.00103")
class Bootstrapped(BaseScorer):
    """Bootstrapped reference: one answer of each group, drawn at random, is the reference; the others earn 1 if they beat it, else -1.

    R_i = sign(P(y_i > y_ref) - 1/2), 0 for a tie;  n - 1 comparisons a group instead of n (n - 1) / 2
    The reference says so (`info["reference"]`) and earns 0; the filter `balanced` takes it out. It must be drawn: were it
    the best of them, nearly all would be blamed. An answer that could not be compared is masked. `calls` counts questions.
    """

    reported, by_name = ("beats_reference",), {"judge": "judge"}

    def __init__(self, judge: Judge, orders: str = "drawn", seed: int = 0) -> None:
        self.judge, self.orders, self.seed, self.calls = judge, orders, seed, 0

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rivals = [(r, g.rollouts[at]) for g in groups for at in [self.drawn(g)] for r in g.rollouts]
        matches = [(r.prompt, r.text, ref.text) for r, ref in rivals if r is not ref]
        self.calls += sum(a != b for _, a, b in matches) * (2 if self.orders == "both" else 1)
        said = iter(compare(self.judge, matches, self.orders))
        out = []
        for r, ref in rivals:
            p = 0.5 if r is ref else next(said)
            won = NAN if p != p else math.copysign(1.0, p - 0.5) if p != 0.5 else 0.0
            r.info = r.info | {"reference": r is ref}
            out.append(Verdict(won, {"beats_reference": won}))
        return out

    def drawn(self, group: Group) -> int:
        """Which of its answers is a group's reference, by identity."""
        step = max((r.version for r in group.rollouts), default=0)
        return rng.python(self.seed, "reference", step, group.prompt.id).randrange(max(len(group.rollouts), 1))
