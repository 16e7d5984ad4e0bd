"""Reward-robust RLHF: PPO on the nominal reward mixed with the worst that an ensemble of reward models says."""

from posttrain.core.method import method
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.robust_mix import robust_mix

reward_robust_rlhf = method(
    ppo.but(
        name="reward-robust-rlhf", title="Reward-robust RLHF", paper="arXiv:2409.15360", doc=__doc__,
        shaping=(robust_mix, kl_in_reward),
    ),
    __file__,
)  # fmt: skip
