"""Supervised fine-tuning: imitate the demonstration that comes with each prompt. The base of learning from data.

A row without a demonstration is imitated by its gold answer alone, which teaches no reasoning.
"""

from posttrain.advantages.ones import ones
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.supervised.sft import sft as maximum_likelihood
from posttrain.methods.grpo import grpo
from posttrain.rollouts.written import demonstrations

sft = method(
    grpo.but(
        name="sft", title="SFT", paper="", doc=__doc__,
        rollout=demonstrations, advantage=ones, loss=maximum_likelihood, aggregate=token_mean, terms=(),
    )
)  # fmt: skip
