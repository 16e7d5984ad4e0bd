"""RLOO: REINFORCE whose baseline is the mean of the prompt's other answers; the KL is part of the reward.

Departures: the paper takes 2 or 4 answers per prompt, here 8. Its reward is a model of preferences, which must be
given (`--reward runs/NAME`); without one the task's own grade pays. The KL price 0.03 and the whole answer as one
action are the paper's, for its summaries.
"""

from posttrain.advantages.rloo import rloo as leave_one_out
from posttrain.core.method import method
from posttrain.methods.reinforce import reinforce
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

rloo = method(
    reinforce.but(
        name="rloo", title="RLOO", paper="arXiv:2402.14740", doc=__doc__,
        advantage=leave_one_out, shaping=(kl_in_reward.but(coef=0.03),),
    )
)  # fmt: skip
