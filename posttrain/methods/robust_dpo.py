"""Robust DPO: DPO corrected for a known share of flipped labels."""

from posttrain.core.method import method
from posttrain.losses.preference.robust_dpo import robust_dpo as robust_loss
from posttrain.methods.dpo import dpo

robust_dpo = method(
    dpo.but(name="robust-dpo", title="Robust DPO", paper="arXiv:2403.00409", doc=__doc__, loss=robust_loss), __file__
)
