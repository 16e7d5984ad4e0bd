"""CISPO: DAPO's batch with the importance weight clipped instead of the gradient, so that no token falls silent."""

from posttrain.core.method import method
from posttrain.losses.policy.cispo import cispo as clipped_weight
from posttrain.methods.dapo import dapo

cispo = method(
    dapo.but(name="cispo", title="CISPO", paper="arXiv:2506.13585", doc=__doc__, loss=clipped_weight), __file__
)
