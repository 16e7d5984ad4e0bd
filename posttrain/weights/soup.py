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


@torch.no_grad()
def sce(base: Policy, experts: list[Policy], keep: float = 1.0) -> None:
    """SCE merge (arXiv:2408.07990) into the first expert, tensor by tensor.

    Of the differences d_e to the base the `keep` share of entries that vary most is selected; w_e = mean d_e^2 / sum_e mean d_e^2;
    entries against the sign of sum_e d_e are erased, and theta = base + sum_e w_e d_e / sum_e w_e over those that are left.
    """
    start = dict(base.named_parameters())
    others = [dict(e.named_parameters()) for e in experts]
    for name, p in experts[0].named_parameters():
        delta_E = torch.stack([o[name] - start[name] for o in others])
        spread = delta_E.var(0, correction=0)
        k = max(1, round(keep * spread.numel()))
        delta_E = delta_E * (spread >= spread.flatten().topk(k).values[-1])
        weight_E = (delta_E**2).flatten(1).mean(1)
        if float(weight_E.sum()) < 1e-12:
            weight_E = torch.ones_like(weight_E)
        weight_E = (weight_E / weight_E.sum()).view(-1, *[1] * (delta_E.dim() - 1))
        left_E = weight_E * (delta_E.sign() == delta_E.sum(0).sign())
        p.copy_(start[name] + (left_E * delta_E).sum(0) / left_E.sum(0).clamp_min(1e-12))
