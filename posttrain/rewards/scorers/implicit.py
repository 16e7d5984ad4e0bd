"""Token rewards of an implicit process reward model: how much likelier a trained model finds a token than its start did."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.types import Group
from posttrain.rewards.runtime.score import ScoreReport


class Implicit:
    """A scorer: the outcome by `scorer` as it is (also as the component `outcome`), and for each token in reward_T

    r_t = beta (log pi_prm(y_t) - log pi_ref(y_t))
    """

    def __init__(self, scorer: Any, prm: Any, reference: Any, beta: float = 0.05, rows: int = 64) -> None:
        self.scorer, self.prm, self.reference, self.beta, self.rows = scorer, prm, reference, beta, rows

    @torch.no_grad()
    def score(self, groups: list[Group]) -> ScoreReport:
        report: ScoreReport = self.scorer.score(groups)
        rollouts = [r for g in groups for r in g.rollouts]
        for begin in range(0, len(rollouts), self.rows):
            some = rollouts[begin : begin + self.rows]
            ratio_BT = self.prm.forward(some)["logp_BT"] - self.reference.forward(some)["logp_BT"]
            for r, ratio_T in zip(some, ratio_BT.cpu(), strict=True):
                r.set_stream("reward", self.beta * ratio_T[: len(r)] * r.mask_T)
                r.rewards = r.rewards | {"outcome": float("nan") if r.reward is None else r.reward}
        return report
