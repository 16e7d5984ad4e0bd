from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.gae import surprises
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.registry import advantage


@advantage(
    title="GAE by reward",
    paper="arXiv:2310.04373",
    base="gae",
    reads=("old_value_BTK", "reward_BT"),
    provides=("return_BTK",),
)
def gae_by_reward(
    batch: Batch, rewards: tuple[str, ...] = (), weights: tuple[float, ...] = (), gamma: float = 1.0, lam: float = 0.95,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """GAE by reward: a critic for each component of the reward, and credit mixed from theirs.

    A_k = GAE(r_k, V_k);  A = sum_k w_k A_k;  return_k = A_k + V_k;  r_k on the last token, w_k = 1 unless given
    rewards: the components in the order of the critics (`critic.rewards` of the method); `rest` is what reward_BT holds
    besides them (a KL). Without, one critic has all of reward_BT.
    """
    each, return_BTK = credit_by_reward(batch, rewards, gamma, lam)
    mixed_BT = sum(w * adv_BT for w, adv_BT in zip(weights or [1.0] * len(each), each, strict=True))
    assert isinstance(mixed_BT, Tensor)
    return (batch_whiten(mixed_BT, batch.mask_BT) if whiten else mixed_BT), return_BTK


def credit_by_reward(
    batch: Batch, rewards: tuple[str, ...], gamma: float = 1.0, lam: float = 0.95
) -> tuple[list[Tensor], Tensor]:
    """The credit of each component by its own critic, and what each critic should learn."""
    old_BTK = torch.where(batch.mask_BT.unsqueeze(-1) > 0, batch["old_value_BTK"], 0.0)
    earned = rewards_by_token(batch, rewards)
    if old_BTK.shape[-1] != len(earned):
        raise UserError(f"there are {old_BTK.shape[-1]} critics for {len(earned)} rewards; each reward needs its own")
    values = old_BTK.unbind(-1)
    each = [surprises(r_BT, v_BT, batch.mask_BT, gamma, lam) for r_BT, v_BT in zip(earned, values, strict=True)]
    return each, torch.stack([a_BT + v_BT for a_BT, v_BT in zip(each, values, strict=True)], -1)


def rewards_by_token(batch: Batch, rewards: tuple[str, ...]) -> list[Tensor]:
    """Each component on the last token of its answer; all of the reward where none is named."""
    if not rewards:
        return [batch["reward_BT"]]
    placed = {
        n: torch.where(batch.valid_B.unsqueeze(-1), on_last(component(batch, n), batch), 0.0)
        for n in rewards
        if n != "rest"
    }
    rest_BT = batch["reward_BT"] - sum(placed.values(), torch.zeros_like(batch.mask_BT))
    return [rest_BT if n == "rest" else placed[n] for n in rewards]
