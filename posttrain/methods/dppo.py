"""DPPO: GRPO whose trust region is a divergence, not a ratio; several updates a step."""

from posttrain.core.method import method
from posttrain.losses.policy.dppo import dppo as divergence_mask
from posttrain.methods.grpo import grpo

dppo = method(
    grpo.but(
        name="dppo", title="DPPO", paper="arXiv:2602.04879", doc=__doc__,
        loss=divergence_mask, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
