"""Log-probability and entropy of chosen tokens from states and the head's weights, without a (N, V) tensor kept alive.

The head, the log-softmax and the entropy run in chunks of rows; backward computes each chunk's logits again. Memory is one
chunk of logits instead of three tensors of N x V; the price is one more product with the head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 4_000_000  # logits alive at a time: 16 MB in fp32


def likelihood(h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(logp_N, entropy_N) of the tempered distribution softmax(h W^T / temperature), in fp32."""
    return _Likelihood.apply(h_ND, weight_VD, token_N, temperature)


class _Likelihood(torch.autograd.Function):
    """With z = h W^T / tau, p = softmax(z), H = -sum p log p:
    dlogp/dz_j = [j = token] - p_j;    dH/dz_j = -p_j (log p_j + H)
    """

    @staticmethod
    def forward(
        ctx: Any, h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp_N = torch.empty(len(h_ND), device=h_ND.device)
        entropy_N, logz_N = torch.empty_like(logp_N), torch.empty_like(logp_N)
        for rows in _chunks(len(h_ND), len(weight_VD)):
            z = (h_ND[rows] @ weight_VD.T).float() / temperature
            logz_N[rows] = torch.logsumexp(z, -1)
            logp_N[rows] = z.gather(-1, token_N[rows].unsqueeze(-1)).squeeze(-1) - logz_N[rows]
            entropy_N[rows] = logz_N[rows] - (torch.softmax(z, -1) * z).sum(-1)
        ctx.save_for_backward(h_ND, weight_VD, token_N, logz_N, entropy_N)
        ctx.temperature = temperature
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, dlogp_N: Tensor, dentropy_N: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h_ND, weight_VD, token_N, logz_N, entropy_N = ctx.saved_tensors
        dh_ND = torch.empty_like(h_ND)
        dweight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        for rows in _chunks(len(h_ND), len(weight_VD)):
            z = (h_ND[rows] @ weight_VD.T).float() / ctx.temperature
            logp = z - logz_N[rows].unsqueeze(-1)
            # d/dz = -p (dlogp + dentropy (log p + H)), and + dlogp at the chosen token
            dz = logp + entropy_N[rows].unsqueeze(-1)
            dz = -logp.exp() * (dlogp_N[rows].unsqueeze(-1) + dentropy_N[rows].unsqueeze(-1) * dz)
            dz.scatter_add_(-1, token_N[rows].unsqueeze(-1), dlogp_N[rows].unsqueeze(-1))
            dz = (dz / ctx.temperature).to(h_ND.dtype)
            dh_ND[rows] = dz @ weight_VD
            dweight_VD += (dz.T @ h_ND[rows]).float()
        return dh_ND, dweight_VD.to(weight_VD.dtype), None, None


def _chunks(N: int, V: int) -> list[slice]:
    size = max(1, CHUNK // V)
    return [slice(at, min(at + size, N)) for at in range(0, N, size)]
