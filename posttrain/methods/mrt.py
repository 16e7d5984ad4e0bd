"""MRT: GRPO that also pays each piece of a thought for what it adds to the chance of answering right at once, so that no
part of the budget is wasted: the regret over the tokens falls, not only the error at the end."""

from posttrain.advantages.mrt import mrt as by_progress
from posttrain.core.method import method
from posttrain.methods.grpo import grpo
from posttrain.rollouts.mrt import mrt as probed

mrt = method(
    grpo.but(name="mrt", title="MRT", paper="arXiv:2503.07572", doc=__doc__, rollout=probed, advantage=by_progress),
    __file__,
)
