"""VAPO: PPO with a critic for long answers: length-adaptive GAE, a higher upper clip, tokens alike, right answers imitated.

The paper trains the critic alone before the first step; here it starts with the policy.
"""

from posttrain.advantages.length_adaptive_gae import length_adaptive_gae
from posttrain.core.method import method
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.losses.regularisers.imitate_right import imitate_right
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.ppo import ppo
from posttrain.rollouts.sample import sample

vapo = method(
    ppo.but(
        name="vapo", title="VAPO", paper="arXiv:2504.05118", doc=__doc__,
        rollout=sample.but(n=16), shaping=(), advantage=length_adaptive_gae, loss=clip_higher,
        terms=(value_loss, imitate_right),
    ),
    __file__,
)  # fmt: skip
