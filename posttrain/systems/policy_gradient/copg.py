"""CoPG: two answers a prompt, fitted so that their log-ratios to the reference differ as their rewards do; old ones too.

Fully offline with `--rollout "logged(n=2, logp=False)" --task log.jsonl`: nobody needs to know how likely the logged answers were.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo
from posttrain.rollouts.sample import sample
from posttrain.select.in_twos import in_twos


@preference_loss(name="copg", title="CoPG", paper="arXiv:2406.19185", base="ipo", reads=("ref_logp_BT",))
def contrastive_loss(batch: Batch, beta: float = 0.1) -> Tensor:
    """CoPG: two answers, each the other's baseline; right for answers from anywhere, with no importance weight.

    L = (R(y) - R(y') - beta u)^2 / (2 beta);  u = log(pi/ref)(y) - log(pi/ref)(y');  R is what each answer earned
    -dL = [R_b(y) - R_b(y')] (d log pi(y) - d log pi(y')) with R_b = R - beta log(pi/ref): the paper's gradient. Which of
    the two is called chosen does not matter. On policy it is RLOO with two answers; with R - R' = 1/2 it is IPO (beta / 2).
    """
    earned_B = torch.where(batch.valid_B, batch.returns_B, 0.0)
    gap_P = earned_B[batch["chosen_P"]] - earned_B[batch["rejected_P"]]
    return (gap_P - beta * margin(batch)) ** 2 / (2 * beta)


copg = method(
    dpo.but(
        name="copg", title="CoPG", paper="arXiv:2406.19185", doc=__doc__,
        rollout=sample.but(n=2), select=(in_twos,), loss=contrastive_loss, epochs=2, minibatches=2,
    )
)  # fmt: skip
