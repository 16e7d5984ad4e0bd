"""Constrained RLHF: PPO whose reward weights are Lagrange multipliers, so that each component stops at its proxy point."""

from posttrain.core.method import method
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.proxy_points import proxy_points

constrained_rlhf = method(
    ppo.but(
        name="constrained-rlhf", title="Constrained RLHF", paper="arXiv:2310.04373", doc=__doc__,
        shaping=(proxy_points, kl_in_reward),
    ),
    __file__,
)  # fmt: skip
