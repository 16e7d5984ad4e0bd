"""Token rewards of an implicit process reward model: how much likelier a trained model finds a token than its start did."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.registry import scorer
from posttrain.core.types import Group
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of


@scorer(title="Implicit process rewards", paper="arXiv:2412.01981")
class Implicit(BaseScorer):
    """Implicit process rewards: how much likelier a trained model finds each token than its start did.

    r_t = beta (log pi_prm(y_t) - log pi_ref(y_t)), in reward_T;  the outcome is `scorer`'s, also as component `outcome`
    """

    def __init__(self, scorer: Any, prm: Any, reference: Any, beta: float = 0.05, rows: int = 64) -> None:
        self.inner, self.prm, self.reference, self.beta, self.rows = scorer, prm, reference, beta, rows

    @torch.no_grad()
    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts, out = answers_of(groups), []
        for begin in range(0, len(rollouts), self.rows):
            some = rollouts[begin : begin + self.rows]
            ratio_BT = self.prm.forward(some)["logp_BT"] - self.reference.forward(some)["logp_BT"]
            for r, ratio_T in zip(some, ratio_BT.cpu(), strict=True):
                outcome = NAN if r.reward is None else r.reward
                out.append(Verdict(None, {"outcome": outcome}, self.beta * ratio_T[: len(r)] * r.mask_T))
        return out
