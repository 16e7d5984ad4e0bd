"""PRO: preference ranking optimisation: the best answer of a list against all worse ones, then the second best, and so on.

Rows need ranked answers with the scores of a reward model (`--task lists.jsonl`); without scores every step down the list counts 1. Pairs are lists of two.
`--select ranked --rollout "sample(n=5)" --reward runs/RM` ranks the policy's own answers.

Departures: none known in the ranking, which is as the authors' code computes it, temperatures from score gaps included. Imitation of the best is the sum over its tokens, weight
0.05 (n - 1)^2 for lists of n, as theirs; a score that repeats has no gap, and such a pair is left out of the contrast (in theirs it pulls with weight 0 and stays in the denominator).
Their rate is 5e-6 over 2 epochs with 112 lists per step (`--lr 5e-6 --prompts 112`); steps are `dpo`'s here.
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
    name="pro", paper="arXiv:2306.17492", base="rrhf", reads=("ranked_LK", "reward_BT"), per="list",
)  # fmt: skip
def pro_loss(batch: Batch, nll: float = 0.05) -> Tensor:
    """PRO: at each place k the answer there is picked out of all that are worse, the more sharply the further apart their scores are.

    L = -sum_k log [e^(s_k g_k) / (e^(s_k g_k) + sum_{i > k} e^(s_i (r_k - r_i)))] - nll (n - 1)^2 S_1
    s = mean_t log pi(y_t),  S their sum,  r the scores,  g_k = max_{i > k} (r_k - r_i)
    """
    mean_LK, there_LK = placed(batch, mean=True)
    gap_LKK = scores(batch).unsqueeze(2) - scores(batch).unsqueeze(1)  # r_k - r_i
    worse_LKK = (gap_LKK > 0) & there_LK.unsqueeze(2) & there_LK.unsqueeze(1)
    largest_LK = torch.where(worse_LKK, gap_LKK, 0.0).amax(-1)
    own_LK = mean_LK * largest_LK
    others_LKK = torch.where(worse_LKK, mean_LK.unsqueeze(1) * gap_LKK, float("-inf"))
    lost_LK = torch.logsumexp(torch.cat([own_LK.unsqueeze(-1), others_LKK], -1), -1) - own_LK
    ranking_L = torch.where(worse_LKK.any(-1), lost_LK, 0.0).sum(-1)
    return ranking_L - nll * (there_LK.sum(-1) - 1.0) ** 2 * placed(batch)[0][:, 0]


pro = method(
    dpo.but(name="pro", title="PRO", paper="arXiv:2306.17492", doc=__doc__, rollout=lists, loss=pro_loss, aggregate=list_mean)
)  # fmt: skip
