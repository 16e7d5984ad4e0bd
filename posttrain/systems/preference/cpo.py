"""CPO: DPO without a reference, held to the preferred answers by imitating them at the same time.

Departures: the imitation is the mean over each preferred answer's tokens; the paper prints log pi(y_w), the authors' code takes the mean over all tokens of a
minibatch. beta 0.1 and a weight of 1 are theirs. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import chosen_nll, sequence_logp
from posttrain.methods.dpo import dpo


@preference_loss(
    name="cpo",
    paper="arXiv:2401.08417",
    base="dpo",
    laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "rejected_P"),
)
def cpo_loss(batch: Batch, beta: float = 0.1, nll: float = 1.0) -> Tensor:
    """CPO: prefer the better answer to the worse one, measured against nobody, and imitate it.

    L = -log sigmoid(beta (S_w - S_l)) - nll s_w;  S = sum_t log pi(y_t), s its mean
    """
    sum_B = sequence_logp(batch.logp_BT, batch)
    return -logsigmoid(beta * (sum_B[batch["chosen_P"]] - sum_B[batch["rejected_P"]])) + nll * chosen_nll(batch)


cpo = method(dpo.but(name="cpo", title="CPO", paper="arXiv:2401.08417", doc=__doc__, loss=cpo_loss))
