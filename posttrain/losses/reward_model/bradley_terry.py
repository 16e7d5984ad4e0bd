from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.registry import reward_model_loss


@reward_model_loss(
    paper="arXiv:2203.02155",
    laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "rejected_P", "score_B"),
)
def bradley_terry(batch: Batch, margin: float = 0.0, centering: float = 0.0) -> Tensor:
    """Bradley-Terry: score answers such that the difference of two is the log-odds that the first is preferred.

    L = -log sigmoid(s_w - s_l - margin) + centering (s_w + s_l)^2;  the last pins the free constant (arXiv:2312.09244)
    """
    score_B = batch["score_B"]
    chosen_P, rejected_P = score_B[batch["chosen_P"]], score_B[batch["rejected_P"]]
    return -logsigmoid(chosen_P - rejected_P - margin) + centering * (chosen_P + rejected_P) ** 2
