"""TIS: GRPO corrected for a sampler that is not quite the trainer (another engine or precision), weights truncated at 2.

Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
"""

from posttrain.core.method import method
from posttrain.losses.policy.tis import tis as truncated
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset

tis = method(
    grpo.but(
        name="tis", title="TIS", paper="", doc=__doc__,
        loss=truncated, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    ),
    __file__,
)  # fmt: skip
