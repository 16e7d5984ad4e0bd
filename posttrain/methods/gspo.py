"""GSPO: GRPO whose ratio is that of the whole answer; several updates a step, without which nothing is ever clipped."""

from posttrain.core.method import method
from posttrain.losses.policy.gspo import gspo as sequence_clip
from posttrain.methods.grpo import grpo

gspo = method(
    grpo.but(
        name="gspo", title="GSPO", paper="arXiv:2507.18071", doc=__doc__,
        loss=sequence_clip, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
