"""Log-probability and entropy of chosen tokens from states and the head's weights, without a (N, V) tensor kept alive.

The head, the log-softmax and the entropy run in chunks of rows; backward computes each chunk's logits again. Memory is one
chunk of logits instead of three tensors of N x V; the price is one more product with the head. On a GPU each chunk is read
once forward and once backward by a kernel; elsewhere plain torch means the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.models.kernels import serve, tl, triton

CHUNK = 4_000_000  # logits alive at a time: 16 MB in fp32
CHUNK_GPU = 1 << 28  # 1 GiB in fp32: few and large products


def likelihood(h_ND: Tensor, weight_VD: Tensor, token_N: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(logp_N, entropy_N) of the tempered distribution softmax(h W^T / temperature), in fp32."""
    return _Likelihood.apply(h_ND, weight_VD, token_N, temperature)


def product(h: Tensor, weight_VD: Tensor) -> Tensor:
    """h W^T in float32: half-precision factors, sums that are not rounded to half precision."""
    if h.dtype == torch.float32:
        return h @ weight_VD.T
    if h.is_cuda:
        return _Product.apply(h.flatten(0, -2), weight_VD).unflatten(0, h.shape[:-1])
    return h.float() @ weight_VD.float().T


class _Product(torch.autograd.Function):
    """torch.mm with an output type, which autograd does not know."""

    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(h_ND, weight_VD)
        return torch.mm(h_ND, weight_VD.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, dz_NV: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        h_ND, weight_VD = ctx.saved_tensors
        dz_NV = dz_NV.to(h_ND.dtype)
        return dz_NV @ weight_VD, dz_NV.T @ h_ND


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
        for rows in _chunks(h_ND, weight_VD):
            z = product(h_ND[rows], weight_VD)
            logp_N[rows], entropy_N[rows], logz_N[rows] = summed(z, token_N[rows], temperature)
        ctx.save_for_backward(h_ND, weight_VD, token_N, logz_N, entropy_N)
        ctx.temperature = temperature
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, dlogp_N: Tensor, dentropy_N: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        h_ND, weight_VD, token_N, logz_N, entropy_N = ctx.saved_tensors
        dh_ND, dweight_VD = torch.empty_like(h_ND), None
        for rows in _chunks(h_ND, weight_VD):
            z = product(h_ND[rows], weight_VD)
            known = Known(token_N[rows], logz_N[rows], entropy_N[rows], dlogp_N[rows], dentropy_N[rows])
            dz = sloped(z, known, ctx.temperature, h_ND.dtype)
            dh_ND[rows] = dz @ weight_VD
            if ctx.needs_input_grad[1]:
                dweight_VD = added(dweight_VD, dz.T, h_ND[rows])
        return dh_ND, None if dweight_VD is None else dweight_VD.to(weight_VD.dtype), None, None


def added(sum_VD: Tensor | None, a_VN: Tensor, b_ND: Tensor) -> Tensor:
    """sum + a b in float32, in the memory that the sum has: on a CPU a fresh one as large as the head costs as much as the product."""
    if sum_VD is None:
        return (a_VN @ b_ND).float()
    return sum_VD.addmm_(a_VN, b_ND) if b_ND.dtype == torch.float32 else sum_VD.add_(a_VN @ b_ND)


def summed(z_NV: Tensor, token_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probability of the token, entropy, log of the normaliser) of each row of logits, tempered."""
    if serve(z_NV):
        out = torch.empty(3, len(z_NV), device=z_NV.device)
        _summed[(len(z_NV),)](z_NV, token_N, out, len(z_NV), z_NV.shape[1], 1 / temperature, BLOCK=4096, num_warps=8)
        return out[0], out[1], out[2]
    z_NV = z_NV.float() / temperature
    logz_N = torch.logsumexp(z_NV, -1)
    logp_N = z_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1) - logz_N
    return logp_N, logz_N - (torch.softmax(z_NV, -1) * z_NV).sum(-1), logz_N


@dataclass
class Known:
    """What backward knows of each row: its token, normaliser and entropy, and the gradients by the two results."""

    token_N: Tensor
    logz_N: Tensor
    entropy_N: Tensor
    dlogp_N: Tensor
    dentropy_N: Tensor


def sloped(z_NV: Tensor, known: Known, temperature: float, dtype: torch.dtype) -> Tensor:
    """The gradient by the logits: -p (dlogp + dentropy (log p + H)), and + dlogp at the chosen token; over temperature."""
    k = known
    if serve(z_NV):
        dz = torch.empty_like(z_NV, dtype=dtype)
        _sloped[(len(z_NV), triton.cdiv(z_NV.shape[1], 4096))](
            z_NV, k.token_N, k.logz_N, k.entropy_N, k.dlogp_N.contiguous(), k.dentropy_N.contiguous(), dz, z_NV.shape[1],
            1 / temperature, BLOCK=4096, num_warps=8,
        )  # fmt: skip
        return dz
    logp = z_NV.float() / temperature - k.logz_N.unsqueeze(-1)
    dz = logp + k.entropy_N.unsqueeze(-1)
    dz = -logp.exp() * (k.dlogp_N.unsqueeze(-1) + k.dentropy_N.unsqueeze(-1) * dz)
    dz.scatter_add_(-1, k.token_N.unsqueeze(-1), k.dlogp_N.unsqueeze(-1))
    return (dz / temperature).to(dtype)


def _chunks(h_ND: Tensor, weight_VD: Tensor) -> list[slice]:
    N, size = len(h_ND), max(1, (CHUNK_GPU if h_ND.is_cuda else CHUNK) // len(weight_VD))
    return [slice(at, min(at + size, N)) for at in range(0, N, size)]


if triton is not None:

    @triton.jit
    def _summed(z, token, out, N, V, cold, BLOCK: tl.constexpr):
        """One pass with a running maximum: sums of exp(z - top) and of exp(z - top) z."""
        n = tl.program_id(0).to(tl.int64)
        row = z + n * V
        top = -float("inf")
        total = 0.0
        mean = 0.0
        for start in range(0, V, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(row + i, mask=i < V, other=-float("inf")).to(tl.float32) * cold
            new = tl.maximum(top, tl.max(x, 0))
            weight = tl.exp(x - new)
            fade = tl.exp(top - new)
            total = total * fade + tl.sum(weight, 0)
            mean = mean * fade + tl.sum(tl.where(i < V, weight * x, 0.0), 0)
            top = new
        logz = top + tl.log(total)
        tl.store(out + n, tl.load(row + tl.load(token + n)).to(tl.float32) * cold - logz)
        tl.store(out + N + n, logz - mean / total)
        tl.store(out + 2 * N + n, logz)

    @triton.jit
    def _sloped(z, token, logz, entropy, dlogp, dentropy, dz, V, cold, BLOCK: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = n * V + i
        logp = tl.load(z + at, mask=i < V, other=-float("inf")).to(tl.float32) * cold - tl.load(logz + n)
        d = tl.load(dlogp + n)
        g = -tl.exp(logp) * (d + tl.load(dentropy + n) * (logp + tl.load(entropy + n)))
        g = tl.where(i == tl.load(token + n), g + d, g) * cold
        tl.store(dz + at, g.to(dz.dtype.element_ty), mask=i < V)
