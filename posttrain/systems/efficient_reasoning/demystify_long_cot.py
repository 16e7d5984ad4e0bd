"""Demystifying long CoT: PPO whose reward is a cosine of the length (short if right, long if wrong) with repetition paid
token by token, so that thoughts grow in step with the window instead of running over it or in circles."""

from __future__ import annotations

from posttrain.advantages.gae import gae
from posttrain.core.method import method
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.repeats import repeats

demystify_long_cot = method(
    ppo.but(
        name="demystify-long-cot", title="Demystifying long CoT", paper="arXiv:2502.03373", doc=__doc__,
        shaping=(cosine_length, repeats, kl_in_reward.but(coef=0.01)), advantage=gae.but(lam=1.0),
    )
)  # fmt: skip
