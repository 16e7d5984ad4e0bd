"""Robust DPO: DPO corrected for a known share of flipped labels.

Departures: none known in the loss; beta 0.1 and a share of flipped labels of 0.1 are the paper's. That share must be
known: `--loss "robust_dpo(flip_rate=0.2)"`. Steps and rate are `dpo`'s: 640 pairs by default, not a pass. Pairs must
be given (`--task pairs.jsonl`).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo


@preference_loss(
    name="robust_dpo",
    paper="arXiv:2403.00409",
    base="dpo",
    laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)
def robust_loss(batch: Batch, beta: float = 0.1, flip_rate: float = 0.1, length_normalised: bool = False) -> Tensor:
    """Robust DPO: when a known share of labels is flipped, undo it: on average this is DPO on the true labels.

    L = [(1 - e) l(u) - e l(-u)] / (1 - 2 e),  l(u) = -log sigmoid(beta u),  e = flip_rate < 1/2;  may be negative
    """
    if not 0 <= flip_rate < 0.5:
        raise UserError(f"robust_dpo got flip_rate={flip_rate}; at 0.5 labels say nothing: give 0 <= flip_rate < 0.5")
    logit_P = beta * margin(batch, mean=length_normalised)
    return (flip_rate * logsigmoid(-logit_P) - (1 - flip_rate) * logsigmoid(logit_P)) / (1 - 2 * flip_rate)


robust_dpo = method(
    dpo.but(name="robust-dpo", title="Robust DPO", paper="arXiv:2403.00409", doc=__doc__, loss=robust_loss)
)
