"""DiscoPOP: the loss that a language model discovered: logistic where a pair is lost, exponential where it is won.

Departures: none known in the loss; beta and tau 0.05 are those of the paper's released model. It is not convex: past some margin the loss may rise. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo


@preference_loss(
    name="discopop", paper="arXiv:2406.08414", base="dpo", reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def discopop_loss(batch: Batch, beta: float = 0.05, tau: float = 0.05) -> Tensor:
    """DiscoPOP: a blend of the logistic and the exponential loss by how far the pair is won.

    L = (1 - m) (-log sigmoid(beta u)) + m exp(-beta u);  m = sigmoid(beta u / tau)
    """
    u_P = beta * margin(batch)
    blend_P = (u_P / tau).sigmoid()
    return -(1 - blend_P) * logsigmoid(u_P) + blend_P * (-u_P).exp()


discopop = method(dpo.but(name="discopop", title="DiscoPOP", paper="arXiv:2406.08414", doc=__doc__, loss=discopop_loss))
