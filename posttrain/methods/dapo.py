"""DAPO: GRPO with a higher upper clip, tokens weighed alike, equal groups and unfinished answers left out, no KL."""

from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.methods.grpo import grpo
from posttrain.select.overlong import overlong
from posttrain.select.zero_variance import zero_variance

dapo = method(
    grpo.but(
        name="dapo", title="DAPO", paper="arXiv:2503.14476", doc=__doc__,
        loss=clip_higher, aggregate=token_mean, select=(overlong, zero_variance), terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
