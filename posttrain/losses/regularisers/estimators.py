"""Estimates of KL(pi || ref) from the log-probabilities of sampled tokens (Schulman, "Approximating KL divergence").

All three have a mean of KL(pi || ref) or close to it; as *losses* their gradients are quite different things: see `kl`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.errors import unknown

KINDS = ("k1", "k2", "k3")


def kl_estimate(logp_BT: Tensor, ref_logp_BT: Tensor, kind: str) -> Tensor:
    """k1 = logp - ref (unbiased, may be negative);  k2 = k1^2 / 2 (low variance, biased);
    k3 = exp(-k1) - 1 + k1 (unbiased, never negative)."""
    k1_BT = logp_BT - ref_logp_BT
    if kind == "k1":
        return k1_BT
    if kind == "k2":
        return 0.5 * k1_BT**2
    if kind == "k3":
        return torch.expm1(-k1_BT) + k1_BT
    raise unknown("KL estimate", kind, KINDS)
