"""One token a slot by inverse CDF in two levels: first which block of the vocabulary, then which token of it.

The same distribution as `core.rng.pick`, reading the logits once and never writing a (S, V) tensor of probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.engines.native.kernels import BLOCK, mass
from posttrain.engines.sampling import Sampling, truncate


def choose(logits_SV: Tensor, key_S: Tensor, position_S: Tensor, cold: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """(token_S, logp_S); logp is of the tempered, untruncated distribution. cold is 1 / temperature on the device."""
    mass_SN = mass(logits_SV, cold)
    logz_S = torch.logsumexp(mass_SN, -1)
    if how.temperature == 0:
        token_S = logits_SV.argmax(-1)
    elif how.top_k or how.top_p < 1 or how.min_p:
        token_S = rng.pick(truncate(logits_SV.float() * cold, how), rng.uniform(key_S, position_S))
    else:
        token_S = _two_levels(logits_SV, mass_SN, logz_S, rng.uniform(key_S, position_S), cold)
    chosen_S = logits_SV.gather(-1, token_S.unsqueeze(-1)).squeeze(-1).float() * cold
    return token_S, chosen_S - logz_S


def _two_levels(logits_SV: Tensor, mass_SN: Tensor, logz_S: Tensor, u_S: Tensor, cold: Tensor) -> Tensor:
    share_SN = torch.exp(mass_SN - logz_S.unsqueeze(-1))
    upto_SN = share_SN.cumsum(-1)
    target_S1 = (u_S * upto_SN[:, -1]).unsqueeze(-1)
    block_S1 = torch.searchsorted(upto_SN, target_S1, right=True).clamp_max(mass_SN.shape[-1] - 1)
    before_S1 = upto_SN.gather(-1, block_S1) - share_SN.gather(-1, block_S1)
    at_SB = block_S1 * BLOCK + torch.arange(BLOCK, device=logits_SV.device)
    inside_SB = at_SB < logits_SV.shape[-1]
    z_SB = logits_SV.gather(-1, at_SB.clamp_max(logits_SV.shape[-1] - 1)).float() * cold
    p_SB = torch.where(inside_SB, torch.exp(z_SB - logz_S.unsqueeze(-1)), 0.0)
    cdf_SB = p_SB.cumsum(-1)
    # rounding may leave the target a hair beyond the block's mass: the last token with any probability is meant then
    rest_S1 = torch.minimum(target_S1 - before_S1, cdf_SB[:, -1:] * (1 - 1e-6))
    within_S = torch.searchsorted(cdf_SB, rest_S1.clamp_min(0), right=True).squeeze(-1)
    return (block_S1.squeeze(-1) * BLOCK + within_S).clamp_max(logits_SV.shape[-1] - 1)
