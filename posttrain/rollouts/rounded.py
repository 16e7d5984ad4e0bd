"""A sampler that is not quite the trainer: the policy with weights rounded to a few bits, as fast inference engines have them."""

from __future__ import annotations

import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group
from posttrain.rollouts.sample import sample


@rollout(title="Rounded sampler", base="sample")
def rounded(ask: RolloutRequest, n: int = 8, bits: int = 8) -> list[Group]:
    """Rounded sampler: n answers to each prompt from a copy of the policy whose matrices have `bits` bits a weight.

    w <- s round(w / s), s = max |w| of its row / (2^(bits - 1) - 1);  the log-probabilities are those of the copy
    What `tis`, `mis`, `icepop` and `decoupled-ppo` correct for: with 8 bits ratios are near 1, with 4 they are not.
    """
    if not 2 <= bits <= 16:
        raise UserError(f"got bits={bits}; a weight is rounded to 2 to 16 bits")
    copy = ask.policy.clone()
    with torch.no_grad():
        for p in copy.parameters():
            if p.dim() > 1:
                step = p.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
                p.copy_((p / step).round() * step)
    (role, *_), others = ask.policies, dict(ask.policies)
    made: list[Group] = sample(ask.but(policies=others | {role: copy}), n=n)
    return made
