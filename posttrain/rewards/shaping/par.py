from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import members, on_last
from posttrain.core.errors import UserError
from posttrain.core.registry import shaping


@shaping(title="PAR", paper="arXiv:2502.18770")
def preference_as_reward(batch: Batch, k: float = 1.0, against: str = "siblings") -> Tensor:
    """Preference as reward (PAR): how likely the reward model finds the answer better than a reference answer.

    R = 1/M sum_m sigmoid(k (r - r_ref_m)): bounded, steepest at the reference, flat far above it, where hacking lives
    against="reference": the components `reference...` of the batch, rewards of answers of the start policy to the same
    prompt (the paper; the plan `par`). against="siblings": the group's other answers stand in for them.
    """
    if against not in ("reference", "siblings"):
        raise UserError(f"PAR compares with 'reference' or 'siblings', not {against!r}")
    r_B = batch.returns_B
    if against == "reference":
        if not any(name.startswith("reward:reference") for name in batch):
            raise UserError("no reference rewards in the batch; use rewards.models.referenced, or against='siblings'")
        ref_MB = members(batch, "reference")
        return on_last(torch.nanmean(torch.sigmoid(k * (r_B - ref_MB)), 0), batch)
    group_B, valid_B = batch["group_B"], batch.valid_B
    other_BB = (group_B.unsqueeze(0) == group_B.unsqueeze(1)) & valid_B & ~torch.eye(len(r_B), dtype=torch.bool)
    won_BB = torch.where(other_BB, torch.sigmoid(k * (r_B.unsqueeze(1) - r_B.unsqueeze(0))), 0.0)
    alone_B = other_BB.sum(1) == 0  # nobody to compare with: as good as itself
    return on_last(torch.where(alone_B, 0.5, won_BB.sum(1) / other_BB.sum(1).clamp_min(1)), batch)
