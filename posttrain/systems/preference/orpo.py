"""ORPO: one stage from a base model: imitate the preferred answer, and raise its odds over the other's.

Departures: the imitation covers the answer alone, its mean over tokens; the authors' code (and TRL's) covers the prompt too. lambda 0.1 is the paper's for
Mistral (0.2 for Phi-2 and 0.25 for Llama-2). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import chosen_nll, sequence_logp
from posttrain.methods.dpo import dpo


def log_odds(mean_B: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(mean_B): log(1 - e^x) without cancellation, whether x is near 0 or far below."""
    below_B = mean_B.clamp_max(-1e-6)  # p = 1 has no odds
    near_B = below_B > -0.6931471805599453
    small = torch.log(-torch.expm1(torch.where(near_B, below_B, -1.0)))
    large = torch.log1p(-torch.exp(torch.where(near_B, -1.0, below_B)))
    return mean_B - torch.where(near_B, small, large)


@preference_loss(
    name="orpo",
    paper="arXiv:2403.07691",
    base="cpo",
    laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "rejected_P"),
)
def orpo_loss(batch: Batch, lam: float = 0.1) -> Tensor:
    """ORPO: imitation, and the log-odds of the better answer over the worse one.

    L = -s_w - lam log sigmoid(log odds(y_w) - log odds(y_l));  odds = p / (1 - p),  p = exp(s),  s = mean_t log pi(y_t)
    """
    odds_B = log_odds(sequence_logp(batch.logp_BT, batch, mean=True))
    return chosen_nll(batch) - lam * logsigmoid(odds_B[batch["chosen_P"]] - odds_B[batch["rejected_P"]])


orpo = method(dpo.but(name="orpo", title="ORPO", paper="arXiv:2403.07691", doc=__doc__, loss=orpo_loss))
