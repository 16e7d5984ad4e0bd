"""How far one model's distribution over the vocabulary is from another's, from hidden states and heads, without keeping a (N, V) tensor.

As in `likelihood.py`: the heads and softmaxes run in chunks of rows, and backward recomputes each chunk. A gradient goes to the first
model alone; the second (a teacher, a reference) is given. Log-probabilities of given ids, and a model's likeliest ids, are here too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.models.likelihood import accumulate_, chunks, matmul_fp32

STREAMS = ("hidden_BTD", "head_VD", "temperature_B", "ref_hidden_BTD", "ref_head_VD")  # what `divergence_of` reads
_SHARE = 4  # tensors as large as a chunk's logits that are there at one time, for a chunk of the usual size


def divergence_of(batch: Batch, beta: float) -> Tensor:
    """D_beta of the policy from its reference at every own action (B, T), 0 elsewhere, in the place of the mask."""
    h_BTD, ref_BTD = batch["hidden_BTD"], batch["ref_hidden_BTD"]
    own_BT = batch.mask_BT > 0
    there_BT = own_BT.to(h_BTD.device)
    heat_BT = batch["temperature_B"].to(h_BTD.device).unsqueeze(-1).expand(there_BT.shape)
    ref_ND = ref_BTD[own_BT.to(ref_BTD.device)].to(h_BTD.device)
    ref_VD = batch["ref_head_VD"].to(h_BTD.device)
    found_N = divergence(h_BTD[there_BT], batch["head_VD"], ref_ND, ref_VD, heat_BT[there_BT], beta)
    return placed(found_N, own_BT)


def logp_at(batch: Batch, id_BTK: Tensor) -> Tensor:
    """The policy's log-probabilities of given ids at every own action (N, K), where the hidden states are."""
    h_BTD = batch["hidden_BTD"]
    there_BT = (batch.mask_BT > 0).to(h_BTD.device)
    heat_BT = batch["temperature_B"].to(h_BTD.device).unsqueeze(-1).expand(there_BT.shape)
    return at_ids(h_BTD[there_BT], batch["head_VD"], id_BTK.to(h_BTD.device)[there_BT].long(), heat_BT[there_BT])


@torch.no_grad()
def collision_of(batch: Batch) -> Tensor:
    """log sum_v pi(v)^2 at every own action (B, T), 0 elsewhere: the log of what a token sampled there has on average as its probability."""
    h_BTD, head_VD = batch["hidden_BTD"], batch["head_VD"]
    own_BT = batch.mask_BT > 0
    there_BT = own_BT.to(h_BTD.device)
    heat_N = batch["temperature_B"].to(h_BTD.device).unsqueeze(-1).expand(there_BT.shape)[there_BT]
    h_ND = h_BTD[there_BT]
    found_N = torch.empty(len(h_ND), dtype=_exact(h_ND), device=h_ND.device)
    for rows in chunks(h_ND, head_VD, _SHARE):
        found_N[rows] = (2 * _log_softmax(h_ND[rows], head_VD, heat_N[rows])).logsumexp(-1)
    return placed(found_N, own_BT)


def placed(x_N: Tensor, own_BT: Tensor) -> Tensor:
    """Values of own actions where these stand, 0 elsewhere."""
    return torch.zeros(own_BT.shape, dtype=x_N.dtype, device=own_BT.device).masked_scatter(
        own_BT, x_N.to(own_BT.device)
    )


def divergence(
    h_ND: Tensor, weight_VD: Tensor, ref_ND: Tensor, ref_weight_VD: Tensor, temperature_N: Tensor, beta: float
) -> Tensor:
    """The generalised Jensen-Shannon divergence of q = softmax(h W^T / temperature) from p, the reference's, row by row (N,).

    D = beta KL(p || m) + (1 - beta) KL(q || m);  m = beta p + (1 - beta) q;  beta = 0: KL(p || q);  beta = 1: KL(q || p)
    Ids that only one of the two heads has (rows that pad a vocabulary) are left out of both.
    """
    if not 0 <= beta <= 1:
        raise UserError(
            f"beta is {beta}; it is a share between 0, KL(teacher || student), and 1, KL(student || teacher)"
        )
    V = min(len(weight_VD), len(ref_weight_VD))
    inputs = (h_ND, weight_VD[:V], ref_ND.detach(), ref_weight_VD[:V].detach(), temperature_N)
    out: Tensor = _Divergence.apply(*inputs, float(beta))  # type: ignore[no-untyped-call]
    return out


def at_ids(h_ND: Tensor, weight_VD: Tensor, id_NK: Tensor, temperature_N: Tensor) -> Tensor:
    """Log-probabilities of K ids of each row (N, K) under softmax(h W^T / temperature)."""
    out: Tensor = _AtIds.apply(h_ND, weight_VD, id_NK, temperature_N)  # type: ignore[no-untyped-call]
    return out


@torch.no_grad()
def likeliest(h_ND: Tensor, weight_VD: Tensor, k: int, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    """The k likeliest ids of each row and their log-probabilities, likeliest first: (N, k) each; all of a smaller vocabulary."""
    k = min(k, len(weight_VD))
    id_NK = torch.empty(len(h_ND), k, dtype=torch.long, device=h_ND.device)
    logp_NK = torch.empty(len(h_ND), k, dtype=_exact(h_ND), device=h_ND.device)
    for rows in chunks(h_ND, weight_VD, _SHARE):
        logp_NK[rows], id_NK[rows] = _log_softmax(h_ND[rows], weight_VD, temperature_N[rows]).topk(k, -1)
    return id_NK, logp_NK


class _Divergence(torch.autograd.Function):
    """With z = h W^T / tau and q = softmax(z): dD/dq_v = (1 - beta) log(q_v / m_v) + a constant, so that
    dD/dz_v = (1 - beta) q_v (log(q_v / m_v) - KL(q || m));  beta = 0: q_v - p_v;  beta = 1: q_v (log(q_v / p_v) - KL(q || p))
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, ref_h: Tensor, ref_w: Tensor, heat: Tensor, beta: float) -> Tensor:
        out_N = torch.empty(len(h), dtype=_exact(h), device=h.device)
        inner_N = torch.empty_like(out_N)
        for rows in chunks(h, w, _SHARE):
            logq = _log_softmax(h[rows], w, heat[rows])
            logp = _log_softmax(ref_h[rows], ref_w, heat[rows]).to(logq.dtype)
            out_N[rows], inner_N[rows] = _value(logq, logp, beta)
        ctx.save_for_backward(h, w, ref_h, ref_w, heat, inner_N)
        ctx.beta = beta
        return out_N

    @staticmethod
    def backward(ctx: Any, up_N: Tensor) -> tuple[Tensor | None, ...]:
        h, w, ref_h, ref_w, heat, inner_N = ctx.saved_tensors
        dh, dw = torch.empty_like(h), None
        for rows in chunks(h, w, _SHARE):
            logq = _log_softmax(h[rows], w, heat[rows])
            logp = _log_softmax(ref_h[rows], ref_w, heat[rows]).to(logq.dtype)
            dz = _gradient(logq, logp, inner_N[rows].unsqueeze(-1), ctx.beta)
            dz = (dz * (up_N[rows] / heat[rows]).unsqueeze(-1)).to(h.dtype)
            dh[rows] = dz @ w
            dw = accumulate_(dw, dz.T, h[rows]) if ctx.needs_input_grad[1] else None
        return dh, None if dw is None else dw.to(w.dtype), None, None, None, None


def mixture(logq: Tensor, logp: Tensor, beta: float) -> Tensor:
    """log m, m = beta p + (1 - beta) q; finite where both are too small for a number of their own."""
    return torch.logaddexp(logp + math.log(beta), logq + math.log1p(-beta))


def _value(logq: Tensor, logp: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """D of each row, and the KL of q that its gradient needs."""
    if beta == 0:
        found_N = (logp.exp() * (logp - logq)).sum(-1)
        return found_N, torch.zeros_like(found_N)
    if beta == 1:
        found_N = (logq.exp() * (logq - logp)).sum(-1)
        return found_N, found_N
    logm = mixture(logq, logp, beta)
    of_q_N = (logq.exp() * (logq - logm)).sum(-1)
    return beta * (logp.exp() * (logp - logm)).sum(-1) + (1 - beta) * of_q_N, of_q_N


def _gradient(logq: Tensor, logp: Tensor, inner_N1: Tensor, beta: float) -> Tensor:
    """dD/dz of each row, before the temperature."""
    if beta == 0:
        return logq.exp() - logp.exp()
    if beta == 1:
        return logq.exp() * (logq - logp - inner_N1)
    return (1 - beta) * logq.exp() * (logq - mixture(logq, logp, beta) - inner_N1)


class _AtIds(torch.autograd.Function):
    """With F = sum_k w_k log q(id_k): dF/dz_v = sum_k w_k [v = id_k] - q_v sum_k w_k;  divided by tau."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, id_NK: Tensor, heat: Tensor) -> Tensor:
        out_NK = torch.empty(id_NK.shape, dtype=_exact(h), device=h.device)
        for rows in chunks(h, w, _SHARE):
            out_NK[rows] = _log_softmax(h[rows], w, heat[rows]).gather(-1, id_NK[rows])
        ctx.save_for_backward(h, w, id_NK, heat)
        return out_NK

    @staticmethod
    def backward(ctx: Any, up_NK: Tensor) -> tuple[Tensor | None, ...]:
        h, w, id_NK, heat = ctx.saved_tensors
        dh, dw = torch.empty_like(h), None
        for rows in chunks(h, w, _SHARE):
            up = (up_NK[rows] / heat[rows].unsqueeze(-1)).to(_exact(h))
            dz = _log_softmax(h[rows], w, heat[rows]).exp_().mul_(-up.sum(-1, keepdim=True))
            dz = dz.scatter_add_(-1, id_NK[rows], up).to(h.dtype)
            dh[rows] = dz @ w
            dw = accumulate_(dw, dz.T, h[rows]) if ctx.needs_input_grad[1] else None
        return dh, None if dw is None else dw.to(w.dtype), None, None


def _log_softmax(h: Tensor, w: Tensor, temperature_N: Tensor) -> Tensor:
    z = h @ w.T if h.dtype == torch.float64 else matmul_fp32(h, w)
    return torch.log_softmax(z.div_(temperature_N.unsqueeze(-1).to(z.dtype)), -1)


def _exact(h: Tensor) -> torch.dtype:
    """Sums are in float32, of float64 in float64."""
    return torch.float64 if h.dtype == torch.float64 else torch.float32
