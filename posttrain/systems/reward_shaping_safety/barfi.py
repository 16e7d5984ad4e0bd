"""BARFI: optimise a learned blend of the primary and a heuristic reward; judge the blend by the primary reward alone.

Departures: as run this is RLOO with a KL of 0.1 on the task's own grade: the blend starts at (0, 1, 0), where the
heuristic has no weight, and nothing moves it. The paper's outer loop is here as functions for Python (`outer_loop`,
`implicit_gradient`), for policies of a few parameters whose expected update is known; it needs exact derivatives that
no language model gives, and has no learned discount. A fixed blend can be given:
`--reward "task + 0*mine.py:aux" --shaping "blend(phi=(0, 1, 0.5)) + kl_in_reward(coef=0.1)"`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.core.method import method
from posttrain.methods.rloo import rloo
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- how weights move
# The gradient through a fixed point: what an outer objective gains when the parameters of an inner update change.

Update = Callable[[Tensor, Tensor], Tensor]  # (theta, phi) -> the inner update, 0 at the fixed point


def implicit_gradient(
    outer: Callable[[Tensor], Tensor], update: Update, theta: Tensor, phi: Tensor, rate: float = 0.1, terms: int = 100
) -> Tensor:
    """dJ/dphi at theta(phi), where update(theta, phi) = 0 (implicit function theorem, as in BARFI, arXiv:2310.19007).

    dJ/dphi = -(dJ/dtheta) (dU/dtheta)^-1 (dU/dphi);  with A = -dU/dtheta,  A^-1 g = rate sum_{i < terms} (1 - rate A)^i g
    The Neumann series converges where the update is a contraction (0 < rate A < 2): give it an L2 or KL term.
    """
    theta, phi = (x.detach().clone().requires_grad_() for x in (theta, phi))
    (term,) = torch.autograd.grad(outer(theta), theta)
    moved = update(theta, phi)
    total = torch.zeros_like(term)
    for _ in range(terms):
        total = total + rate * term
        (back,) = torch.autograd.grad(moved, theta, term, retain_graph=True)
        term = term + rate * back  # (1 - rate A)^T term
    (out,) = torch.autograd.grad(moved, phi, total)
    return out


# ---- the method


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


barfi = method(
    rloo.but(
        name="barfi", title="BARFI", paper="arXiv:2310.19007", doc=__doc__, shaping=(blend, kl_in_reward.but(coef=0.1))
    )
)
