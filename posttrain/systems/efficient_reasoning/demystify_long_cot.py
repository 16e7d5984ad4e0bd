"""Demystifying long CoT: PPO whose reward is a cosine of the length (short if right, long if wrong) with repetition paid
token by token, so that thoughts grow in step with the window instead of running over it or in circles.

Departures: the paper starts from SFT on long chains and samples 16 answers to each of 512 prompts within 14,336
tokens, the critic at 9e-6 against the policy's 5e-7, rewards normalised; here 8 answers, one rate and rewards as they
are. The window of the cosine is 64 tokens and does not follow `--sampling.max-tokens`: with longer answers every one
past 64, right ones too, earns -10, so use
`--shaping "cosine_length(longest=14336) + repeats + kl_in_reward(coef=0.01)"`. The paper punishes answers within 16
tokens of the limit, here those that reach it. The values of the cosine, 40-grams at -0.05, KL 0.01 and lambda 1 are
the paper's.
"""

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
