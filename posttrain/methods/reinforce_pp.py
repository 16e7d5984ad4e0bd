"""REINFORCE++: PPO's clipped loss without a critic; credit is the KL-shaped return, whitened over the whole batch."""

from posttrain.advantages.reinforce_pp import reinforce_pp as batch_relative
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

reinforce_pp = method(
    grpo.but(
        name="reinforce-pp", title="REINFORCE++", paper="arXiv:2501.03262", doc=__doc__,
        advantage=batch_relative, aggregate=token_mean, shaping=(kl_in_reward.but(coef=0.01),), terms=(),
    ),
    __file__,
)  # fmt: skip
