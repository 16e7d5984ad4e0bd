"""SIRI: DAPO whose length limit falls and rises in cycles: tight limits squeeze out what is redundant, wide ones let
answers grow again from there. What is cut off counts as wrong; there is no length term in the reward."""

from posttrain.core.method import method
from posttrain.methods.dapo import dapo
from posttrain.rollouts.siri import siri as cycles
from posttrain.select.zero_variance import zero_variance

siri = method(
    dapo.but(name="siri", title="SIRI", paper="arXiv:2509.25176", doc=__doc__, rollout=cycles, select=(zero_variance,)),
    __file__,
)
