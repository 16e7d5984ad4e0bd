from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size, group_std, group_sum
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import advantage


@advantage(title="Turns", base="rloo", laws=("groups_are_separate",), reads=("group_B", "reward_BT"))
def turns(batch: Batch, baseline: str = "others", per: str = "turn") -> Tensor:
    """Turns: what came after a turn began, compared with what came after the same turn of the prompt's other answers.

    A_k = G_k - b;  G_k = rewards from turn k on;  a turn is what the episode says, else a run of the policy's own tokens
    (per="token": each of them)
    baseline="others": the mean of G_k over the other answers that have a turn k, 0 if none has: unbiased, since others do
    not know what this one does. baseline="group": (G_k - mean) / std with this one among them, and 0 when it is alone:
    biased where the policy decides when to stop, as few are left late and each counts for more of its own baseline.
    """
    if baseline not in ("others", "group") or per not in ("turn", "token"):
        raise UserError(f"got baseline={baseline!r}, per={per!r}; expected 'others' or 'group', 'turn' or 'token'")
    own_BT = batch.mask_BT > 0
    told = per == "turn" and "turn_BT" in batch
    turn_BT = (batch["turn_BT"] + 1) * own_BT if told else turn_numbers(own_BT, per)
    togo_BT = torch.nan_to_num(batch["reward_BT"]).flip(-1).cumsum(-1).flip(-1)
    adv_BT = torch.zeros_like(togo_BT)
    for k in range(1, int(turn_BT.max()) + 1):
        here_BT = turn_BT == k
        has_B = here_BT.any(-1)
        from_B = togo_BT.gather(1, here_BT.long().argmax(-1, keepdim=True)).squeeze(-1)
        credit_B = _compared(torch.where(has_B, from_B, 0.0), batch["group_B"], has_B, baseline)
        adv_BT = torch.where(here_BT, credit_B.unsqueeze(-1), adv_BT)
    return adv_BT


def turn_numbers(own_BT: Tensor, per: str = "turn") -> Tensor:
    """1 in the first turn, 2 in the second...; 0 where the policy did not act."""
    begins_BT = own_BT.clone()
    if per == "turn":
        begins_BT[:, 1:] &= ~own_BT[:, :-1]
    return begins_BT.long().cumsum(-1) * own_BT


def _compared(x_B: Tensor, group_B: Tensor, has_B: Tensor, baseline: str) -> Tensor:
    """x above the mean of others (0 if there are none), or in standard deviations of all."""
    count_B = group_size(group_B, has_B)
    if baseline == "others":
        return x_B - (group_sum(x_B, group_B) - x_B) / (count_B - 1).clamp_min(1)
    return (x_B - group_mean(x_B, group_B, has_B)) / (group_std(x_B, group_B, has_B) + 1e-4)
