from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.ppo import ppo


@policy_loss(
    paper="arXiv:2503.14476",
    base="ppo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def dapo(batch: Batch, low: float = 0.2, high: float = 0.28) -> Tensor:
    """DAPO clip-higher: PPO that lets unlikely tokens grow further than it lets likely ones shrink, against collapse.

    L = -min(r A, clip(r, 1 - low, 1 + high) A) with high > low
    """
    return ppo(batch, low=low, high=high)
