"""Rewards beside a cost: what is to be gained, and what must stay below a limit."""

from __future__ import annotations

from posttrain.core.registry import scorer
from posttrain.core.types import Group
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Scorer, Verdict, aside


@scorer(title="Reward and cost")
class Costed(BaseScorer):
    """Reward and cost: the reward is the first scorer's, the component `cost` the second one's.

    A failed cost masks its answer.
    """

    reported, by_name = ("cost",), {"reward": "scorer", "cost": "scorer"}

    def __init__(self, reward: Scorer, cost: Scorer) -> None:
        self.inner, self.cost = reward, cost

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [Verdict(None if isinstance(x, float) else NAN, {"cost": x}) for x in aside(self.cost, groups)]
