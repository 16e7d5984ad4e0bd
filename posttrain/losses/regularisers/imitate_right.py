from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import term
from posttrain.losses.supervised.sft import sft


@term(title="Imitate right answers (VAPO)", paper="arXiv:2504.05118", base="sft")
def imitate_right(batch: Batch, coef: float = 0.1, bar: float = 0.0) -> Tensor:
    """Imitate right answers (VAPO's positive-example loss): likelihood of what earned more than bar, beside the RL loss.

    L = -coef logp_t where R > bar, 0 elsewhere;  the paper divides by the tokens of right answers, `token_mean` by all
    """
    right_B = batch.returns_B > bar
    return torch.where(right_B.unsqueeze(-1), coef * sft(batch), 0.0)
