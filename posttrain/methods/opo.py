"""OPO: exact on-policy REINFORCE with the baseline of least variance, in which long answers count more; no KL."""

from posttrain.advantages.opo import opo as length_weighted
from posttrain.core.method import method
from posttrain.methods.reinforce import reinforce

opo = method(
    reinforce.but(
        name="opo", title="OPO", paper="arXiv:2505.23585", doc=__doc__,
        advantage=length_weighted,
    ),
    __file__,
)  # fmt: skip
