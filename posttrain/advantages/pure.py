from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_sum
from posttrain.advantages.rloo import rloo
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import advantage


@advantage(
    title="PURE", paper="arXiv:2504.15275", base="rloo", laws=("groups_are_separate",), reads=("group_B", "reward_BT")
)
def pure(batch: Batch, outcome: str = "") -> Tensor:
    """PURE: steps still to come against what as many tokens of the other answers earn; the outcome as RLOO has it.

    A_t = sum_{s >= t} (r_s - b) + (R - mean of others' R);  b = reward per token of the group's other answers
    outcome names the component of the reward that is R; without it all rewards are steps. Since b counts tokens, a longer
    answer needs more to be as good: that is meant, and it is no unbiased baseline.
    """
    own_BT, group_B, valid_B = batch.mask_BT > 0, batch["group_B"], batch.valid_B
    whole_BT = torch.zeros_like(batch.mask_BT)
    if outcome:
        whole_BT = torch.where(valid_B.unsqueeze(-1), on_last(component(batch, outcome), batch), 0.0)
    step_BT = torch.where(valid_B.unsqueeze(-1), batch["reward_BT"], 0.0) - whole_BT
    sum_B, length_B = step_BT.sum(-1), batch.lengths_B
    rate_B = (group_sum(sum_B, group_B) - sum_B) / (group_sum(length_B, group_B) - length_B).clamp_min(1)
    above_BT = step_BT - rate_B.unsqueeze(-1) * batch.mask_BT
    togo_BT = above_BT.flip(-1).cumsum(-1).flip(-1)
    apart_BT = rloo(batch.but(reward_BT=whole_BT)) if outcome else broadcast_to_tokens(torch.zeros_like(sum_B), batch)
    return torch.where(own_BT, togo_BT, 0.0) + apart_BT
