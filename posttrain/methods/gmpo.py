"""GMPO: GRPO on the geometric mean of an answer's ratios, each token clipped by itself; several updates a step."""

from posttrain.core.method import method
from posttrain.losses.policy.gmpo import gmpo as geometric_mean
from posttrain.methods.grpo import grpo

gmpo = method(
    grpo.but(
        name="gmpo", title="GMPO", paper="arXiv:2507.20673", doc=__doc__,
        loss=geometric_mean, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
