"""APO-zero: anchored preference optimisation: preferred answers are made likelier than they were, the others less likely, each by itself.

For data whose preferred answers are better than the model's own; where they are worse use `apo-down`.

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
    name="apo_zero", paper="arXiv:2408.06266", base="dpo", laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def apo_zero_loss(batch: Batch, beta: float = 0.1) -> Tensor:
    """APO-zero: each answer is anchored at the reference: up for the preferred one, down for the other.

    L = 1 - sigmoid(beta l_w) + sigmoid(beta l_l);  l = log pi(y) - log ref(y)
    """
    reward_B = beta * log_ratio(batch)
    return 1 - reward_B[batch["chosen_P"]].sigmoid() + reward_B[batch["rejected_P"]].sigmoid()


apo_zero = method(dpo.but(name="apo-zero", title="APO-zero", paper="arXiv:2408.06266", doc=__doc__, loss=apo_zero_loss))
