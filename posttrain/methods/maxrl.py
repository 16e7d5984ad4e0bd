"""MaxRL: GRPO's loop with credit by (R - mean) / mean: the gradient of the log-likelihood of success, no KL."""

from posttrain.advantages.maxrl import maxrl as over_the_mean
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo

maxrl = method(
    grpo.but(
        name="maxrl", title="MaxRL", paper="arXiv:2602.02710", doc=__doc__,
        advantage=over_the_mean, aggregate=token_mean, terms=(),
    ),
    __file__,
)  # fmt: skip
