from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin


@preference_loss(
    paper="arXiv:2305.18290",
    laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)
def dpo(batch: Batch, beta: float = 0.1, label_smoothing: float = 0.0, length_normalised: bool = False) -> Tensor:
    """DPO: the policy is its own reward model, r = beta log(pi/ref); fit it to the pairs by logistic regression.

    L = -(1 - e) log sigmoid(beta u) - e log sigmoid(-beta u);  e = label_smoothing (cDPO: a label is wrong that often)
    """
    logit_P = beta * margin(batch, mean=length_normalised)
    return -(1 - label_smoothing) * logsigmoid(logit_P) - label_smoothing * logsigmoid(-logit_P)
