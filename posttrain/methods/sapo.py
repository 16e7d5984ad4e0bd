"""SAPO: GRPO with a soft gate in the place of the clip; several updates a step, without which the gate is open."""

from posttrain.core.method import method
from posttrain.losses.policy.sapo import sapo as soft_gate
from posttrain.methods.grpo import grpo

sapo = method(
    grpo.but(
        name="sapo", title="SAPO", paper="arXiv:2511.20347", doc=__doc__,
        loss=soft_gate, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
