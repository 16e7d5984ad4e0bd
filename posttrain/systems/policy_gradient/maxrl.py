"""MaxRL: GRPO's loop with credit by (R - mean) / mean: the gradient of the log-likelihood of success, no KL.

Departures: none known in the credit, but for eps = 1e-6 beside the mean. The number of answers, 8 here
(`--num-generations`), is part of the objective: it comes nearer to the likelihood as that grows. The mean over tokens
and one update per batch are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_mean
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo


@advantage(
    name="maxrl",
    title="MaxRL",
    paper="arXiv:2602.02710",
    base="grpo",
    laws=("scale_invariant", "sums_to_zero", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def over_the_mean(batch: Batch, eps: float = 1e-6) -> Tensor:
    """MaxRL: maximise the log of the chance of success, so that a prompt counts the more the seldomer it is solved.

    A_i = (R_i - m) / (m + eps), m = mean_group R: the gradient of log m, where RL follows that of m
    Meant for rewards of 0 and 1; a group that earned nothing (m <= 0) gets 0.
    """
    mean_B = group_mean(batch.returns_B, batch["group_B"], batch.valid_B)
    credit_B = (batch.returns_B - mean_B) / (mean_B.clamp_min(0) + eps)
    return broadcast_to_tokens(torch.where(mean_B > 0, credit_B, 0.0), batch)


maxrl = method(
    grpo.but(
        name="maxrl", title="MaxRL", paper="arXiv:2602.02710", doc=__doc__,
        advantage=over_the_mean, aggregate=token_mean, terms=(),
    )
)  # fmt: skip
