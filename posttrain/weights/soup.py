from __future__ import annotations

import torch

from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.weights.reference import Frozen


@reference(title="Soup (SALSA)", paper="arXiv:2411.01798", base="fixed")
class soup(Frozen):
    """Soup (SALSA): the average of the weights of the policies it is started with, one after another.

    ref = alpha theta_1 + (1 - alpha) theta_2, of two fine-tunings of one model;  started once it is `fixed`
    """

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def start(self, policy: Policy) -> None:
        if self._policy is None:
            super().start(policy)
            return
        blend(self.policy, policy, self.alpha)


@torch.no_grad()
def blend(policy: Policy, other: Policy, alpha: float) -> None:
    """The policy's weights become alpha of its own and 1 - alpha of the other's, in place."""
    theirs = dict(other.named_parameters())
    for name, p in policy.named_parameters():
        p.lerp_(theirs[name].detach(), 1 - alpha)
