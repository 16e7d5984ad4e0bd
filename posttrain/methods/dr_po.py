"""DR-PO: PPO whose answers begin, half of the time, in the middle of a demonstration: states worth seeing need not be found.

The reward is whatever the run names; the paper's is a reward model of preferences over the same data."""

from posttrain.core.method import method
from posttrain.methods.ppo import ppo
from posttrain.rollouts.dataset_reset import dataset_reset

dr_po = method(
    ppo.but(name="dr-po", title="DR-PO", paper="arXiv:2404.08495", doc=__doc__, rollout=dataset_reset), __file__
)
