"""The gradient through a fixed point: what an outer objective gains when the parameters of an inner update change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
