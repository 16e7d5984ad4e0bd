"""Demystifying long CoT: PPO whose reward is a cosine of the length (short if right, long if wrong) with repetition paid
token by token, so that thoughts grow in step with the window instead of running over it or in circles.

The window of the cosine is the run's `--sampling.max-tokens`; an answer within 16 tokens of it earns -10, whatever it says.

Departures: the paper starts from a model that was fine-tuned on long chains: train that first with `posttrain run sft`, and go on with
`--model runs/SFT`. It takes 512 prompts, 14,336 tokens, the policy at 5e-7 and the critic at 9e-6 (`--prompts`,
`--sampling.max-tokens`, `--lr`) and makes 32 updates of a batch, here 4. Its trainer's setting to normalise rewards is for
reward models and changes no rule; credit is whitened, as here. The cosine, its margin of 16 tokens (here at most a quarter
of the window), 40-grams at -0.05 discounted by 0.99, 16 answers, KL 0.01 and lambda 1 are the paper's.
"""

from __future__ import annotations

from posttrain.advantages.gae import gae
from posttrain.core.method import method
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.repeats import repeats
from posttrain.rollouts.sample import sample

demystify_long_cot = method(
    ppo.but(
        name="demystify-long-cot", title="Demystifying long CoT", paper="arXiv:2502.03373", doc=__doc__,
        rollout=sample.but(n=16), shaping=(cosine_length.but(margin=16), repeats, kl_in_reward.but(coef=0.01)), advantage=gae.but(lam=1.0),
    )
)  # fmt: skip
