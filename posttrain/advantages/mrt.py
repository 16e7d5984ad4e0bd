from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_sum
from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="MRT", paper="arXiv:2503.07572", base="grpo", laws=("shift_invariant", "groups_are_separate"))
def mrt(batch: Batch, alpha: float = 1.0) -> Tensor:
    """MRT: an answer's credit among its siblings, plus what each piece of its thought added to the chance of being right.

    A_t = GRPO(outcome) + alpha (p_t - mean p);  p_t the progress of the piece that token t belongs to, mean over the
    group's tokens;  the reward on an answer's last own token is its outcome, those before it are p (as `rollouts/mrt`
    puts them). Progress counts where it is made and is not summed to what is to come: each piece is to lower the regret.
    """
    reward_BT, own_BT = batch["reward_BT"], batch.mask_BT > 0
    number_BT = torch.where(own_BT, torch.arange(own_BT.shape[1], device=own_BT.device), -1)
    last_BT = own_BT & (number_BT == number_BT.amax(-1, keepdim=True))
    thought_BT = (own_BT & ~last_BT).to(reward_BT)
    p_BT = torch.where(thought_BT > 0, reward_BT, 0.0)
    group_B = batch["group_B"]
    mean_B = group_sum(p_BT.sum(-1), group_B) / group_sum(thought_BT.sum(-1), group_B).clamp_min(1)
    outcome_BT = grpo(batch.but(reward_BT=torch.where(last_BT, reward_BT, 0.0)))
    return outcome_BT + alpha * (p_BT - mean_B.unsqueeze(-1)) * batch.mask_BT
