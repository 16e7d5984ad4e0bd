"""Whom answers are compared with: m answers of a mixture between the policy as it is and a reference."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group


class Opponent:
    """Answers from the geometric mixture pi^(1 - beta) ref^beta / Z, for `WinRate(judge, others=Opponent(...))`.

    It is made of weights, (1 - beta) theta + beta theta_ref: for logits linear in the weights (a table) that is each token's
    geometric mixture exactly; for a network it is so to first order (the paper mixes logits; its Nash-EMA mixes weights).
    beta = 0 is the policy itself, 1 the reference.
    """

    def __init__(
        self, policy: Any, reference: Any, how: Sampling, beta: float = 0.125, m: int = 1, seed: int = 0
    ) -> None:
        if not 0 <= beta <= 1 or m < 1:
            raise UserError(f"got beta={beta}, m={m}; beta is a share between 0 and 1, and m at least 1")
        self.policy, self.reference, self.how, self.beta, self.m, self.seed = policy, reference, how, beta, m, seed
        self.mixed = reference.clone()

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        """m texts for each group, by the identity of its prompt and step."""
        mixed = self.mixture()
        step = max((r.version for g in groups for r in g.rollouts), default=0)
        seed = rng.key(self.seed, "opponent") & 0x7FFFFFFF  # other draws than the policy's own
        made = mixed.sample([g.prompt for g in groups], self.m, self.how, seed, step)
        return [[r.text for r in rollouts] for rollouts in made]

    @torch.no_grad()
    def mixture(self) -> Any:
        """The mixture as it is now."""
        live, ref = dict(self.policy.named_parameters()), dict(self.reference.named_parameters())
        for name, p in self.mixed.named_parameters():
            p.copy_(torch.lerp(live[name].detach().to(ref[name]), ref[name].detach(), self.beta))
        return self.mixed
