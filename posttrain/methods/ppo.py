"""PPO for RLHF: a critic says what each state is worth, credit is its surprise (GAE), the KL is part of the reward.

The critic is a copy of the policy with a head at 0; with `--lora` it has adapters of its own on the same frozen weights. It
begins as the reward model with `--critic runs/NAME`, or is a head on the policy itself with `--critic shared`; `--critic-lr`,
`--critic-max-norm` and `--critic-warmup` (steps in which it learns alone) are its own.

Departures: the paper samples one answer per prompt and takes one pass in 8 minibatches; here 8 answers and 2 passes in 2. It
starts the critic from the reward model: give it as `--critic runs/NAME` too. Its mix of pre-training text (PPO-ptx) is not
here. The reward model must be given (`--reward runs/NAME`, or a Hugging Face folder of a classifier with one label); without
one the task's own grade pays. KL price 0.02, clip 0.2, no discount and a critic at about the policy's rate are the paper's.
"""

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
