from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(paper="arXiv:1506.02438", reads=("old_value_BT", "reward_BT"), provides=("return_BT",))
def gae(batch: Batch, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """GAE: credit is a decaying sum of the critic's surprises; also returns the critic's targets, return_BT.

    d_t = r_t + gamma V_{t+1} - V_t;  A_t = d_t + gamma lam A_{t+1};  return = A + V;  V = 0 after the last action
    Time counts the policy's own actions: what the environment wrote in between is skipped, its rewards go to the
    action before it.
    """
    old_value_BT = torch.where(batch.mask_BT > 0, batch["old_value_BT"], 0.0)
    adv_BT = surprises(batch["reward_BT"], old_value_BT, batch.mask_BT, gamma, lam)
    return_BT = adv_BT + old_value_BT
    return (batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT), return_BT


def surprises(reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float | Tensor) -> Tensor:
    """The recursion of GAE backwards in time, which stands still outside the mask (0 there). lam: one for all, or one per row."""
    adv_BT = torch.zeros_like(value_BT)
    adv_B, next_B, reward_B = (torch.zeros_like(value_BT[:, 0]) for _ in range(3))
    for t in reversed(range(value_BT.shape[1])):
        acts_B = mask_BT[:, t] > 0
        reward_B = reward_B + reward_BT[:, t]
        delta_B = reward_B + gamma * next_B - value_BT[:, t]
        adv_B = torch.where(acts_B, delta_B + gamma * lam * adv_B, adv_B)
        next_B = torch.where(acts_B, value_BT[:, t], next_B)
        reward_B = torch.where(acts_B, 0.0, reward_B)
        adv_BT[:, t] = torch.where(acts_B, adv_B, 0.0)
    return adv_BT
