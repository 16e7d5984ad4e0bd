"""BARFI: optimise a learned blend of the primary and a heuristic reward; judge the blend by the primary reward alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.core.method import method
from posttrain.methods.rloo import rloo
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.weights.implicit import Update, implicit_gradient

barfi = method(
    rloo.but(
        name="barfi", title="BARFI", paper="arXiv:2310.19007", doc=__doc__, shaping=(blend, kl_in_reward.but(coef=0.1))
    ),
    __file__,
)


def outer_loop(
    inner: Callable[[Tensor], Tensor], outer: Callable[[Tensor], Tensor], update: Update, phi: Tensor, rounds: int,
    lr: float = 0.3, rate: float = 0.1,
) -> Tensor:  # fmt: skip
    """The bi-level loop: train with phi (inner: phi -> theta), then step phi along the implicit gradient.

    phi is kept at length 1 (a blend's length is only the strength of the inner regulariser), and so is each step.
    """
    phi = phi / phi.norm()
    for _ in range(rounds):
        theta = inner(phi)
        grad = implicit_gradient(outer, update, theta, phi, rate)
        phi = phi + lr * torch.nn.functional.normalize(grad, dim=0)
        phi = phi / phi.norm()
    return phi
