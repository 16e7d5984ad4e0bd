"""IcePop: GRPO without the tokens on which sampler and trainer disagree either way, the others corrected."""

from posttrain.core.method import method
from posttrain.losses.policy.icepop import icepop as two_sided
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset

icepop = method(
    grpo.but(
        name="icepop", title="IcePop", paper="arXiv:2510.18855", doc=__doc__,
        loss=two_sided, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    ),
    __file__,
)  # fmt: skip
