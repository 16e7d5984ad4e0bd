"""REINFORCE: make answers likelier in proportion to what they earned; no baseline, no clipping, one update per sample."""

from posttrain.advantages.outcome import outcome
from posttrain.core.method import method
from posttrain.losses.aggregate import sequence_sum
from posttrain.losses.policy.reinforce import reinforce as score_function
from posttrain.methods.grpo import grpo

reinforce = method(
    grpo.but(
        name="reinforce", title="REINFORCE", paper="", doc=__doc__ + "\nWilliams 1992, doi:10.1007/BF00992696",
        advantage=outcome, loss=score_function, aggregate=sequence_sum, terms=(),
    )
)  # fmt: skip
