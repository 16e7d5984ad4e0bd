"""Answers of a tabular policy that go on from a prefix: one whose next letter needs the row, the place and the last letter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.inference.sampling import Sample, draw


@torch.no_grad()
def extend(
    policy: Any, stems: Sequence[Rollout], keys: Sequence[Sequence[int]], how: Sampling
) -> list[list[Sample]]:  # fmt: skip
    """Letters that follow stems of one length, one continuation a key, at most how.max_tokens more."""
    begun, first = len(stems[0]), [i for i, k in enumerate(keys) for _ in k]
    row_B = torch.cat([s.context for s in stems])[first]
    key_B = torch.tensor([k for some in keys for k in some])
    before_B = torch.stack([s.actions[-1] for s in stems])[first] if begun else None
    tokens, logps = [], []
    for t in range(begun, min(policy.T, begun + how.max_tokens)):
        before_B, logp_B = draw(policy._logits_at(row_B, t, before_B), key_B, t, how)
        tokens.append(before_B)
        logps.append(logp_B)
    flat = [
        _sample(policy, begun, ids, logp_T)
        for ids, logp_T in zip(torch.stack(tokens, 1), torch.stack(logps, 1), strict=True)
    ]
    ends = list(accumulate(len(k) for k in keys))
    return [flat[end - len(k) : end] for end, k in zip(ends, keys, strict=True)]


def _sample(policy: Any, begun: int, tokens: torch.Tensor, logp_T: torch.Tensor) -> Sample:
    """Up to the first end letter; without one an answer has stopped when it is whole."""
    if policy.end is None:
        return Sample(tokens, logp_T, begun + len(tokens) == policy.T)
    ends = (tokens == policy.end).nonzero()
    n = int(ends[0]) + 1 if len(ends) else len(tokens)
    return Sample(tokens[:n], logp_T[:n], bool(len(ends)))
