"""WPO: weighted preference optimisation: DPO in which a pair counts as much as the policy itself would say both its answers.

Departures: the paper's strongest results learn from a mixture of data (answers of the policy, and of a better model); here pairs are whatever `--task pairs.jsonl` holds. Its rate is 1e-6
(5e-7 for some models) with a cosine and one pass, or two; here a rate by the size (`--lr`) and `dpo`'s steps. beta 0.01 and the product of both weights, at most 1, are the authors' code.
Pairs must be given; without a task the school pairs that ship are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin, sequence_logp
from posttrain.methods.dpo import dpo
from posttrain.models.divergence import collision_of


@preference_loss(
    name="wpo", paper="arXiv:2406.11827", base="dpo", laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "head_VD", "hidden_BTD", "ref_logp_BT", "rejected_P", "temperature_B"),
)  # fmt: skip
def wpo_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """WPO: pairs that the policy would hardly say by itself count less, as if answers had been sampled from it.

    L = -w_w w_l log sigmoid(beta u);  w = exp(1/|y| sum_t [log pi(y_t) - log sum_v pi(v)^2]), the product at most 1, no gradient
    A token's probability is measured against what tokens sampled there have on average, sum_v pi(v)^2, so that w is 1 on average for answers of the policy.
    """
    with torch.no_grad():
        weight_B = sequence_logp(batch.logp_BT - collision_of(batch).to(batch.logp_BT), batch, mean=True)
        weight_P = (weight_B[batch["chosen_P"]] + weight_B[batch["rejected_P"]]).exp().clamp(max=1.0)
    return -weight_P * logsigmoid(beta * margin(batch))


wpo = method(dpo.but(name="wpo", title="WPO", paper="arXiv:2406.11827", doc=__doc__, loss=wpo_loss))
