"""DPO: learn from written preference pairs by logistic regression on the policy's log-ratio to a fixed reference."""

from posttrain.core.method import method
from posttrain.losses.aggregate import pair_mean
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.sft import sft
from posttrain.rollouts.written import pairs

dpo = method(
    sft.but(
        name="dpo", title="DPO", paper="arXiv:2305.18290", doc=__doc__,
        rollout=pairs, loss=dpo_loss, aggregate=pair_mean,
    )
)  # fmt: skip
