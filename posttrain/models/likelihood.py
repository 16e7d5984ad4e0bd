"""Log-probability and entropy of chosen tokens from hidden states and the head's weights, without keeping a (N, V) tensor.

The head, the log-softmax and the entropy run in chunks of rows; backward recomputes each chunk's logits. Memory is one chunk of
logits instead of three tensors of N x V; the price is one more product with the head. On a GPU each chunk is read once forward
and once backward by a kernel; elsewhere plain torch computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.models.kernels import tl, triton, use_kernels

CHUNK = 4_000_000  # logits in memory at a time: 16 MB in fp32
CHUNK_GPU = 1 << 27  # half a GiB in fp32: a GPU needs few and large products


def likelihood(h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(logp_N, entropy_N) of the tempered distribution softmax(h W^T / temperature), in fp32."""
    logp_N, entropy_N, _ = normalised(h_ND, weight_VD, token_N, temperature)
    return logp_N, entropy_N


def normalised(
    h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """(logp_N, entropy_N, logz_N): also the log-sum-exp of the tempered logits; the logit of the token itself is logp + logz."""
    all_three: tuple[Tensor, Tensor, Tensor] = _Likelihood.apply(h_ND, weight_VD, token_N, temperature)  # type: ignore[no-untyped-call]
    return all_three


def matmul_fp32(h: Tensor, weight_VD: Tensor) -> Tensor:
    """h W^T in float32: factors in half precision, sums in float32 and not rounded back."""
    if h.dtype == torch.float32:
        return h @ weight_VD.T
    if h.is_cuda:
        z: Tensor = _MatmulFP32.apply(h.flatten(0, -2), weight_VD).unflatten(0, h.shape[:-1])  # type: ignore[no-untyped-call]
        return z
    return h.float() @ weight_VD.float().T


class _MatmulFP32(torch.autograd.Function):
    """torch.mm with an output type, which has no gradient in autograd."""

    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(h_ND, weight_VD)
        return torch.mm(h_ND, weight_VD.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, dz_NV: Tensor) -> tuple[Tensor, Tensor]:
        h_ND, weight_VD = ctx.saved_tensors
        dz_NV = dz_NV.to(h_ND.dtype)
        return dz_NV @ weight_VD, dz_NV.T @ h_ND


class _Likelihood(torch.autograd.Function):
    """With z = h W^T / tau, p = softmax(z), H = -sum p log p:
    dlogp/dz_j = [j = token] - p_j;    dH/dz_j = -p_j (log p_j + H);    dlogz/dz_j = p_j
    """

    @staticmethod
    def forward(
        ctx: Any, h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        logp_N = torch.empty(len(h_ND), device=h_ND.device)
        entropy_N, logz_N = torch.empty_like(logp_N), torch.empty_like(logp_N)
        for rows in chunks(h_ND, weight_VD):
            z = matmul_fp32(h_ND[rows], weight_VD)
            logp_N[rows], entropy_N[rows], logz_N[rows] = logsumexp_stats(z, token_N[rows], temperature)
        ctx.save_for_backward(h_ND, weight_VD, token_N, logz_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logp_N, entropy_N, logz_N

    @staticmethod
    def backward(
        ctx: Any, dlogp_N: Tensor | None, dentropy_N: Tensor | None, dlogz_N: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        h_ND, weight_VD, token_N, logz_N, entropy_N = ctx.saved_tensors
        dlogp_N = torch.zeros_like(logz_N) if dlogp_N is None else dlogp_N
        dentropy_N = torch.zeros_like(logz_N) if dentropy_N is None else dentropy_N
        if dlogz_N is not None:  # p dlogz is what a gradient of -dlogz to logp gives, but for the token's own logit
            dlogp_N = dlogp_N - dlogz_N
        dh_ND, dweight_VD = torch.empty_like(h_ND), None
        for rows in chunks(h_ND, weight_VD):
            z = matmul_fp32(h_ND[rows], weight_VD)
            saved = Saved(token_N[rows], logz_N[rows], entropy_N[rows], dlogp_N[rows], dentropy_N[rows])
            dz = logits_grad(z, saved, ctx.temperature, h_ND.dtype)
            if dlogz_N is not None:
                own_N1 = (dlogz_N[rows] / ctx.temperature).to(dz.dtype).unsqueeze(-1)
                dz.scatter_add_(-1, token_N[rows].unsqueeze(-1), own_N1)
            dh_ND[rows] = dz @ weight_VD
            if ctx.needs_input_grad[1]:
                dweight_VD = accumulate_(dweight_VD, dz.T, h_ND[rows])
        return dh_ND, None if dweight_VD is None else dweight_VD.to(weight_VD.dtype), None, None


def accumulate_(sum_VD: Tensor | None, a_VN: Tensor, b_ND: Tensor) -> Tensor:
    """sum + a b in float32 (of float64 in float64), in place: on a CPU a new tensor as large as the head costs as much as the product."""
    if sum_VD is None:
        return (a_VN @ b_ND).to(torch.float64 if b_ND.dtype == torch.float64 else torch.float32)
    return sum_VD.addmm_(a_VN, b_ND) if b_ND.dtype == sum_VD.dtype else sum_VD.add_(a_VN @ b_ND)


def logsumexp_stats(z_NV: Tensor, token_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probability of the token, entropy, log-sum-exp) of each row of tempered logits."""
    if use_kernels(z_NV):
        out = torch.empty(3, len(z_NV), device=z_NV.device)
        _logsumexp_stats[(len(z_NV),)](
            z_NV, token_N, out, len(z_NV), z_NV.shape[1], 1 / temperature, BLOCK=4096, num_warps=8
        )
        return out[0], out[1], out[2]
    z_NV = z_NV.float() / temperature
    logz_N = torch.logsumexp(z_NV, -1)
    logp_N = z_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1) - logz_N
    return logp_N, logz_N - (torch.softmax(z_NV, -1) * z_NV).sum(-1), logz_N


@dataclass
class Saved:
    """What backward has of each row."""

    token_N: Tensor
    logz_N: Tensor  # log-sum-exp of the tempered logits
    entropy_N: Tensor
    dlogp_N: Tensor  # gradient with respect to the log-probability
    dentropy_N: Tensor  # and to the entropy


def logits_grad(z_NV: Tensor, saved: Saved, temperature: float, dtype: torch.dtype) -> Tensor:
    """The gradient of the logits: -p (dlogp + dentropy (log p + H)), and + dlogp at the chosen token; divided by temperature."""
    s = saved
    if use_kernels(z_NV):
        dz = torch.empty_like(z_NV, dtype=dtype)
        _logits_grad[(len(z_NV), triton.cdiv(z_NV.shape[1], 4096))](
            z_NV, s.token_N, s.logz_N, s.entropy_N, s.dlogp_N.contiguous(), s.dentropy_N.contiguous(), dz, z_NV.shape[1],
            1 / temperature, BLOCK=4096, num_warps=8,
        )  # fmt: skip
        return dz
    logp = z_NV.float() / temperature - s.logz_N.unsqueeze(-1)
    dz = logp + s.entropy_N.unsqueeze(-1)
    dz = -logp.exp() * (s.dlogp_N.unsqueeze(-1) + s.dentropy_N.unsqueeze(-1) * dz)
    dz.scatter_add_(-1, s.token_N.unsqueeze(-1), s.dlogp_N.unsqueeze(-1))
    return (dz / temperature).to(dtype)


def chunks(h_ND: Tensor, weight_VD: Tensor, share: int = 1) -> list[slice]:
    """Rows whose logits are in memory at a time; share: a fraction of them, for whoever has several such tensors."""
    N, size = len(h_ND), max(1, (CHUNK_GPU if h_ND.is_cuda else CHUNK) // (len(weight_VD) * share))
    return [slice(at, min(at + size, N)) for at in range(0, N, size)]


if triton is not None:

    @triton.jit
    def _logsumexp_stats(z, token, out, N, V, inv_temperature, BLOCK: tl.constexpr):
        """One pass with a running maximum: sums of exp(z - top) and of exp(z - top) z."""
        n = tl.program_id(0).to(tl.int64)
        row = z + n * V
        top = -float("inf")
        total = 0.0
        mean = 0.0
        for start in range(0, V, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(row + i, mask=i < V, other=-float("inf")).to(tl.float32) * inv_temperature
            new = tl.maximum(top, tl.max(x, 0))
            weight = tl.exp(x - new)
            rescale = tl.exp(top - new)
            total = total * rescale + tl.sum(weight, 0)
            mean = mean * rescale + tl.sum(tl.where(i < V, weight * x, 0.0), 0)
            top = new
        logz = top + tl.log(total)
        tl.store(out + n, tl.load(row + tl.load(token + n)).to(tl.float32) * inv_temperature - logz)
        tl.store(out + N + n, logz - mean / total)
        tl.store(out + 2 * N + n, logz)

    @triton.jit
    def _logits_grad(z, token, logz, entropy, dlogp, dentropy, dz, V, inv_temperature, BLOCK: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = n * V + i
        logp = tl.load(z + at, mask=i < V, other=-float("inf")).to(tl.float32) * inv_temperature - tl.load(logz + n)
        d = tl.load(dlogp + n)
        g = -tl.exp(logp) * (d + tl.load(dentropy + n) * (logp + tl.load(entropy + n)))
        g = tl.where(i == tl.load(token + n), g + d, g) * inv_temperature
        tl.store(dz + at, g.to(dz.dtype.element_ty), mask=i < V)
