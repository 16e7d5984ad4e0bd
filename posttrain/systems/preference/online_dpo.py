"""Online DPO: sample, score, and learn by DPO from each prompt's best and worst answer, not from written pairs."""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.methods.dpo import dpo
from posttrain.rollouts.sample import sample
from posttrain.select.best_worst import best_worst

online_dpo = method(
    dpo.but(
        name="online-dpo", title="Online DPO", paper="arXiv:2405.07863", doc=__doc__,
        rollout=sample.but(n=8), select=(best_worst,),
    )
)  # fmt: skip
