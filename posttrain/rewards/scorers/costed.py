"""Rewards beside a cost: what is to be gained, and what must stay below a limit."""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.types import Group
from posttrain.rewards.runtime.score import ScoreReport


class Costed:
    """Two scorers: the reward is the first one's, the component `cost` the second one's. A failed cost masks its answer."""

    def __init__(self, reward: Any, cost: Any) -> None:
        self.reward, self.cost = reward, cost

    def score(self, groups: list[Group]) -> ScoreReport:
        rollouts = [r for g in groups for r in g.rollouts]
        dear: ScoreReport = self.cost.score(groups)
        costs = [math.nan if r.reward is None else r.reward for r in rollouts]
        report: ScoreReport = self.reward.score(groups)
        for r, cost in zip(rollouts, costs, strict=True):
            r.rewards = r.rewards | {"cost": cost}
            r.reward = math.nan if math.isnan(cost) else r.reward
        seconds = report.seconds + dear.seconds
        return ScoreReport(report.n, sum(r.failed for r in rollouts), seconds, [*report.rewards, *dear.rewards])
