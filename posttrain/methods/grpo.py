"""GRPO: sample a group, rank each answer among its siblings, follow the clipped ratio. The base of most RL methods.

Departures: the paper samples 64 answers per question, 8 are sampled here (`--num-generations 64`). Its reward is a
learned model, which its iterative form retrains as the policy moves; here it is the task's own grade unless
`--reward` names another (`runs/NAME` is a reward model that a run trained), and nothing is retrained. Its process
supervision, a reward per step, is not here. KL 0.04 in the k3 form, the mean over each answer and one update per
batch are the paper's; it prints no clip, which is 0.2 here.
"""

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
