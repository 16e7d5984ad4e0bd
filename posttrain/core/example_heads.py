"""Streams of whole distributions for the example that laws are tested on: hidden states and heads of a policy and its reference, and a
teacher's likeliest tokens, over a vocabulary of three."""

from __future__ import annotations

import torch
from torch import Tensor

HIDDEN = ("hidden_BTD", "ref_hidden_BTD")
HEADS = ("head_VD", "ref_head_VD")
V, K = 3, 2


def head_streams(B: int, T: int, seed: int) -> dict[str, Tensor]:
    """The reference is wider than the policy; heads are the same for every seed, as a batch has one of each."""
    draw, fixed = torch.Generator().manual_seed(1000 + seed), torch.Generator().manual_seed(1000)
    out: dict[str, Tensor] = {}
    for hidden, head, D in zip(HIDDEN, HEADS, (2, 4), strict=True):
        out[hidden] = torch.randn(B, T, D, generator=draw, dtype=torch.float64)
        out[head] = torch.randn(V, D, generator=fixed, dtype=torch.float64)
    dist_BTV = (out["ref_hidden_BTD"] @ out["ref_head_VD"].T).log_softmax(-1)
    out["topk_logp_BTK"], out["topk_id_BTK"] = dist_BTV.topk(K, -1)
    out["start_logp_BT"] = -0.1 - torch.rand(B, T, generator=draw, dtype=torch.float64)
    out["temperature_B"] = 0.5 + torch.rand(B, generator=draw, dtype=torch.float64)
    return out
