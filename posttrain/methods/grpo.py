"""GRPO: sample a group, rank each answer among its siblings, follow the clipped ratio. The base of most RL methods."""

from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core.method import Method, method
from posttrain.losses.aggregate import sequence_mean
from posttrain.losses.policy.ppo import ppo
from posttrain.losses.regularisers.kl import kl
from posttrain.prompts.uniform import uniform
from posttrain.rollouts.sample import sample
from posttrain.weights.optimisers import adamw
from posttrain.weights.reference import fixed

grpo = method(
    Method(
        name="grpo",
        title="GRPO",
        paper="arXiv:2402.03300",
        doc=__doc__,
        prompts=uniform,  # type: ignore[arg-type]  # a class that a decorator made a Part
        rollout=sample.but(n=8),
        advantage=group_relative,
        loss=ppo,
        aggregate=sequence_mean,
        terms=(kl.but(coef=0.04, kind="k3"),),
        reference=fixed,  # type: ignore[arg-type]
        optimiser=adamw,
    )
)
