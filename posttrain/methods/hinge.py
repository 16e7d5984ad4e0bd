"""Hinge (SLiC): DPO that leaves a pair alone once its margin is safe."""

from posttrain.core.method import method
from posttrain.losses.preference.hinge import hinge as hinge_loss
from posttrain.methods.dpo import dpo

hinge = method(dpo.but(name="hinge", title="Hinge", paper="arXiv:2305.10425", doc=__doc__, loss=hinge_loss), __file__)
