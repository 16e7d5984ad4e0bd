from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss


@policy_loss(title="Implicit process reward (PRIME)", paper="arXiv:2502.01456", system="prime", reads=("ref_logp_BT",))
def implicit_prm(batch: Batch, beta: float = 0.05, bar: float = 0.5) -> Tensor:
    """Implicit process reward (PRIME): a language model whose log-ratio to its start predicts the outcome.

    L = -log sigma(+-beta sum_t (logp_t - ref_t)), + if R > bar;  then beta (logp_t - ref_t) is the reward of token t
    Every token of an answer carries its loss, so that `sequence_mean` is the mean over answers.
    """
    ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["ref_logp_BT"], 0.0)
    sign_B = torch.where(batch.returns_B > bar, 1.0, -1.0)
    loss_B = -logsigmoid(sign_B * beta * ratio_BT.sum(-1))
    return loss_B.unsqueeze(-1).expand_as(batch.mask_BT)
