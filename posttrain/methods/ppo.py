"""PPO for RLHF: a critic says what each state is worth, credit is its surprise (GAE), the KL is part of the reward."""

from posttrain.advantages.gae import gae
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

ppo = method(
    grpo.but(
        name="ppo", title="PPO", paper="arXiv:2203.02155", doc=__doc__,
        advantage=gae, aggregate=token_mean, shaping=(kl_in_reward,), terms=(value_loss,), epochs=2, minibatches=2,
    )
)  # fmt: skip
