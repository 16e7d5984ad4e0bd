"""APO-down: anchored preference optimisation for data that is worse than the model: both answers less likely, the rejected one more so.

Departures: none known in the loss; beta 0.1 and 2e-7 (`--lr 2e-7`) are the paper's. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import log_ratio
from posttrain.methods.dpo import dpo


@preference_loss(
    name="apo_down", paper="arXiv:2408.06266", base="apo_zero", reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def apo_down_loss(batch: Batch, beta: float = 0.1) -> Tensor:
    """APO-down: away from both answers, further from the rejected one.

    L = sigmoid(beta l_w) + 1 - sigmoid(beta (l_w - l_l));  l = log pi(y) - log ref(y)
    """
    reward_B = beta * log_ratio(batch)
    chosen_P, rejected_P = reward_B[batch["chosen_P"]], reward_B[batch["rejected_P"]]
    return chosen_P.sigmoid() + 1 - (chosen_P - rejected_P).sigmoid()


apo_down = method(dpo.but(name="apo-down", title="APO-down", paper="arXiv:2408.06266", doc=__doc__, loss=apo_down_loss))
