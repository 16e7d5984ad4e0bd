"""EXO: the reverse KL from the policy's preference to that of the labels, the direction that DPO turns round.

Departures: the form for pairs (EXO-pref, K = 2); with a reward model and K answers (EXO-rw) it is not here. eps 1e-3, which TRL recommends; the authors' code has log eps = -10
(`eps=4.5e-5`) and takes log(1 - eps) for 0. beta 0.1 (theirs 0.5: `--loss "exo(beta=0.5)"`). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo


@preference_loss(
    name="exo", paper="arXiv:2402.00856", base="dpo", laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def exo_loss(batch: Batch, beta: float = 0.1, eps: float = 1e-3) -> Tensor:
    """EXO: mode seeking: the policy's preference q is fitted to the labels' p by KL(q || p).

    L = q (log q - log(1 - eps)) + (1 - q) (log(1 - q) - log eps);  q = sigmoid(beta u)
    """
    if not 0 < eps < 0.5:
        raise UserError(f"exo got eps={eps}; labels that are never wrong make it infinite: give 0 < eps < 0.5")
    u_P = beta * margin(batch)
    win_P, lose_P = logsigmoid(u_P), logsigmoid(-u_P)
    return win_P.exp() * (win_P - math.log1p(-eps)) + lose_P.exp() * (lose_P - math.log(eps))


exo = method(dpo.but(name="exo", title="EXO", paper="arXiv:2402.00856", doc=__doc__, loss=exo_loss))
