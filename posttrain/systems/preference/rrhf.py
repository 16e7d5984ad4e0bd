"""RRHF: answers are to be as likely per token as they are good: a hinge between every two of a ranked list, and imitation of the best.

Rows need ranked answers (`--task lists.jsonl`: responses with scores, or best first); pairs are lists of two. `--select ranked --rollout "sample(n=4)" --reward ...` ranks the
policy's own answers.

Departures: the imitation is the mean over the best answer's tokens, weight 1 as in the paper (the authors' code weighs the ranking 100 by default, and its imitation runs over
prompt and padding). Steps are `dpo`'s: 640 lists by default (the authors: 3 epochs at 2e-5, 64 lists per step).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.aggregate import list_mean
from posttrain.losses.preference.ranks import placed, scores
from posttrain.methods.dpo import dpo
from posttrain.rollouts.written import lists


@preference_loss(
    name="rrhf", paper="arXiv:2304.05302", reads=("ranked_LK", "reward_BT"), per="list",
)  # fmt: skip
def rrhf_loss(batch: Batch, nll: float = 1.0) -> Tensor:
    """RRHF: rank by likelihood, imitate the best.

    L = sum over r_i < r_j of max(0, s_i - s_j) - nll s_best;  s = mean_t log pi(y_t), r the scores of the list; equal ones are not compared
    """
    mean_LK, there_LK = placed(batch, mean=True)
    score_LK = scores(batch)
    worse_LKK = (score_LK.unsqueeze(2) < score_LK.unsqueeze(1)) & there_LK.unsqueeze(2) & there_LK.unsqueeze(1)
    gap_LKK = mean_LK.unsqueeze(2) - mean_LK.unsqueeze(1)  # of the worse over the better
    return torch.where(worse_LKK, gap_LKK.clamp_min(0), 0.0).sum((1, 2)) - nll * mean_LK[:, 0]


rrhf = method(
    dpo.but(
        name="rrhf", title="RRHF", paper="arXiv:2304.05302", doc=__doc__, rollout=lists, loss=rrhf_loss, aggregate=list_mean,
    )
)  # fmt: skip
