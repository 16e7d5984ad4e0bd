"""R-DPO: DPO with a price of length: a pair whose preferred answer is the longer one pulls less.

Departures: alpha could not be checked in the paper; 0.01 per token here, to be tuned (`--loss "r_dpo(alpha=0.05)"`). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
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
    name="r_dpo", paper="arXiv:2403.19159", base="dpo", laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def r_dpo_loss(batch: Batch, beta: float = 0.1, alpha: float = 0.01) -> Tensor:
    """R-DPO: what length alone explains of a preference is not learned.

    L = -log sigmoid(beta u + alpha (|y_w| - |y_l|));  from the reward r - alpha |y|
    """
    longer_P = batch.lengths_B[batch["chosen_P"]] - batch.lengths_B[batch["rejected_P"]]
    return -logsigmoid(beta * margin(batch) + alpha * longer_P)


r_dpo = method(dpo.but(name="r-dpo", title="R-DPO", paper="arXiv:2403.19159", doc=__doc__, loss=r_dpo_loss))
