"""IPO: DPO that aims at a finite margin, so that pairs which are always won do not pull the policy away for ever."""

from posttrain.core.method import method
from posttrain.losses.preference.ipo import ipo as ipo_loss
from posttrain.methods.dpo import dpo

ipo = method(dpo.but(name="ipo", title="IPO", paper="arXiv:2310.12036", doc=__doc__, loss=ipo_loss), __file__)
