"""On-policy distillation: the student answers, and its teacher's log-probability of every token it said is that token's credit.

The teacher is `--reference "teacher(model='FOLDER')"` (a folder, a hub id, runs/NAME, or the address of a vLLM server). Prompts are enough:
nothing is graded, unless a task that can be graded shows how accuracy goes along.

Departures: there is no paper of this recipe; it is the one of Thinking Machines Lab's text of October 2025 and its cookbook, an
importance-weighted policy gradient on the sampled reverse KL (MiniLLM, arXiv:2306.08543, and Qwen3's report, arXiv:2505.09388, have relatives). The cookbook takes
1,024 prompts of 4 answers per step, LoRA of rank 128 and a rate of 1e-4; here 16 prompts, all weights and a rate by the size (`--prompts`, `--lora 128`,
`--lr 1e-4`). It adds the credit up over all tokens, here it is their mean, which AdamW does not see. 4 answers, discount 0, coefficient 1, temperature 1,
no baseline, no clip and one update per step are the cookbook's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import advantage, policy_loss
from posttrain.losses.aggregate import token_mean
from posttrain.methods.reinforce import reinforce
from posttrain.rollouts.sample import sample
from posttrain.weights.teacher import teacher

# ---- credit


@advantage(title="Teacher's word", reads=("old_logp_BT", "ref_logp_BT"))
def teachers_word(batch: Batch, discount: float = 0.0, coef: float = 1.0) -> Tensor:
    """Teacher's word: a token earns what its teacher finds it likelier than the student did, so that its mean is minus the reverse KL.

    A_t = coef sum_{s >= t} discount^(s - t) (log teacher(y_s) - log student(y_s));  discount = 0: the token's own
    """
    if not 0 <= discount <= 1:
        raise UserError(f"discount is {discount}; it is a share between 0 (each token alone) and 1 (all that follow)")
    own_BT = torch.where(batch.mask_BT > 0, batch["ref_logp_BT"] - batch["old_logp_BT"], 0.0)
    out_BT, ahead_B = torch.zeros_like(own_BT), torch.zeros_like(own_BT[:, 0])
    for t in reversed(range(own_BT.shape[1])):
        ahead_B = own_BT[:, t] + discount * ahead_B
        out_BT[:, t] = ahead_B
    return torch.where(batch.mask_BT > 0, coef * out_BT, 0.0)


# ---- what is minimised


@policy_loss(
    title="Plain ratio",
    base="reinforce",
    reads=("adv_BT", "old_logp_BT"),
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
)
def plain_ratio(batch: Batch) -> Tensor:
    """Plain ratio: credit times how much likelier the token has become since it was sampled, without a limit.

    L = -r A;  r = exp(logp - old_logp)
    """
    return -torch.exp(batch.logp_BT - batch["old_logp_BT"]) * batch["adv_BT"]


# ---- the method

on_policy_distillation = method(
    reinforce.but(
        name="on-policy-distillation", title="On-policy distillation", doc=__doc__, reference=teacher,
        rollout=sample.but(n=4), advantage=teachers_word, loss=plain_ratio, aggregate=token_mean,
    )
)  # fmt: skip
