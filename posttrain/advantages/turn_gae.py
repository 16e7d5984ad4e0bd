from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.turns import turn_numbers
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="GAE over turns", base="gae", reads=("old_value_BT", "reward_BT"), provides=("return_BT",))
def turn_gae(batch: Batch, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """GAE over turns: a turn is one decision, so the critic is asked where it begins, and all its tokens share what came of it.

    d_k = r_k + gamma V_{k+1} - V_k;  A_k = d_k + gamma lam A_{k+1};  return_k = A_k + V_k;  r_k: the rewards of turn k
    V_k is the critic before the first token of turn k, 0 after the last one. gamma and lam count turns: a long turn is not discounted more
    than a short one. A turn is what the episode says, else a run of the policy's own tokens.
    """
    own_BT = batch.mask_BT > 0
    turn_BT = (batch["turn_BT"] + 1) * own_BT if "turn_BT" in batch else turn_numbers(own_BT)
    reward_BT, value_BT = torch.nan_to_num(batch["reward_BT"]), batch["old_value_BT"]
    adv_BT, return_BT = torch.zeros_like(value_BT), torch.zeros_like(value_BT)
    next_B, adv_B = torch.zeros_like(value_BT[:, 0]), torch.zeros_like(value_BT[:, 0])
    paid_BT = turns_paid(turn_BT)
    for k in reversed(range(1, int(turn_BT.max()) + 1)):
        here_BT = turn_BT == k
        has_B = here_BT.any(-1)
        value_B = value_BT.gather(1, here_BT.long().argmax(-1, keepdim=True)).squeeze(-1)
        earned_B = torch.where(paid_BT == k, reward_BT, 0.0).sum(-1)
        adv_B = torch.where(has_B, earned_B + gamma * next_B - value_B + gamma * lam * adv_B, adv_B)
        next_B = torch.where(has_B, value_B, next_B)
        adv_BT = torch.where(here_BT, adv_B.unsqueeze(-1), adv_BT)
        return_BT = torch.where(here_BT, (adv_B + value_B).unsqueeze(-1), return_BT)
    return (batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT), return_BT


def turns_paid(turn_BT: Tensor) -> Tensor:
    """The turn that a reward at each place belongs to: what stands outside of turns (an observation) pays the turn before it."""
    return torch.cummax(turn_BT, -1).values
