"""Lite PPO: PPO's clip without critic or KL and two choices only: the group's mean with the batch's std, tokens alike."""

from posttrain.advantages.lite_ppo import lite_ppo as group_mean_batch_std
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo

lite_ppo = method(
    grpo.but(
        name="lite-ppo", title="Lite PPO (Tricks or Traps)", paper="arXiv:2508.08221", doc=__doc__,
        advantage=group_mean_batch_std, aggregate=token_mean, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
