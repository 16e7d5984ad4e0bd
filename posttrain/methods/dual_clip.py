"""Dual-clip PPO: GRPO's credit with a second bound, so that one blamed token of huge ratio cannot rule an update."""

from posttrain.core.method import method
from posttrain.losses.policy.dual_clip import dual_clip as twice_clipped
from posttrain.methods.grpo import grpo

dual_clip = method(
    grpo.but(
        name="dual-clip", title="Dual-clip PPO", paper="arXiv:1912.09729", doc=__doc__,
        loss=twice_clipped, minibatches=4,
    ),
    __file__,
)  # fmt: skip
