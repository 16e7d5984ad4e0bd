"""MIS: GRPO without the answers on which sampler and trainer disagree too much, the others corrected.

Liu et al. 2025, "When speed kills stability: demystifying RL collapse from the training-inference mismatch".
"""

from posttrain.core.method import method
from posttrain.losses.policy.mis import mis as masked
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset

mis = method(
    grpo.but(
        name="mis", title="MIS", paper="", doc=__doc__,
        loss=masked, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    ),
    __file__,
)  # fmt: skip
