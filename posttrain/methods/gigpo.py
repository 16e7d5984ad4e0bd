"""GiGPO: GRPO for agents, with a second comparison inside the first: each step against those from the same state."""

from posttrain.advantages.gigpo import gigpo as steps_and_episodes
from posttrain.core.method import method
from posttrain.methods.grpo import grpo
from posttrain.rollouts.anchored import anchored

gigpo = method(
    grpo.but(
        name="gigpo", title="GiGPO", paper="arXiv:2505.10978", doc=__doc__,
        rollout=anchored, advantage=steps_and_episodes,
    ),
    __file__,
)  # fmt: skip
