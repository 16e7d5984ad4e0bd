"""Reward model: from written pairs, a score whose differences are the log-odds of being preferred (Bradley-Terry)."""

from posttrain.core.method import method
from posttrain.losses.reward_model.bradley_terry import bradley_terry
from posttrain.methods.dpo import dpo

reward_model = method(
    dpo.but(
        name="reward-model", title="Reward model", paper="arXiv:2203.02155", doc=__doc__,
        loss=bradley_terry.but(centering=0.01),
    )
)  # fmt: skip
