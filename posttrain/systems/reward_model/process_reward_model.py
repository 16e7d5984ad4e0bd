"""Process reward model: from steps labelled by finishing them many times (Math-Shepherd), how likely an answer so far ends right.

Rows have `completions` (the steps of an answer) and `labels` (1 right, 0 wrong, or a share), as in PRM800K; a task without
them is refused before anything is loaded. `posttrain run "pure(prm='train')"` makes such labels itself.

Departures: the paper labels a step right if any of its 8 continuations by another model ends right (hard estimation); labels
are given here, hard or soft, and those that `pure` makes are the share of 4 continuations by the policy itself (the paper's
soft estimation). The paper scores steps at a special token; here the score is read where a step ends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import supervised_loss
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.reward_model import reward_model
from posttrain.rollouts.step_labels import step_labels


@supervised_loss(title="Step values (Math-Shepherd)", paper="arXiv:2312.08935", reads=("reward_BT", "score_B"))
def step_value(batch: Batch) -> Tensor:
    """Step values (Math-Shepherd): the score of an answer so far is the log-odds that it will end right.

    L = -y log sigma(s) - (1 - y) log(1 - sigma(s));  y in [0, 1]: the share of continuations that ended right
    Every token of the answer so far carries its loss, so that the mean over sequences is the mean over steps.
    """
    score_B, own_BT = batch["score_B"], batch.mask_BT > 0
    worth_B = torch.where(own_BT, batch["reward_BT"], 0.0).sum(-1).to(score_B)
    loss_B = binary_cross_entropy_with_logits(score_B, worth_B.clamp(0, 1), reduction="none")
    return loss_B.unsqueeze(-1) * own_BT


process_reward_model = method(
    reward_model.but(
        name="process-reward-model", title="Process reward model (Math-Shepherd)", paper="arXiv:2312.08935", doc=__doc__,
        rollout=step_labels, loss=step_value, aggregate=sequence_mean,
    )
)  # fmt: skip
