"""VAPO: PPO with a critic for long answers: length-adaptive GAE, a higher upper clip, tokens alike, right answers imitated.

Departures: the paper trains the critic alone before the first step and gives it twice the policy's learning rate;
here both start together at one rate. Its loss on right answers is divided by their tokens, here by all. It takes one
pass over a batch of 512 prompts, here 2 passes in 2 minibatches over 16. 16 answers per prompt, alpha 0.05, clip 0.2
and 0.28 and the weight 0.1 are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.gae import surprises
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage, term
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.losses.supervised.sft import sft
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.ppo import ppo
from posttrain.rollouts.sample import sample

# ---- who gets the credit


@advantage(
    title="Length-adaptive GAE (VAPO)",
    paper="arXiv:2504.05118",
    base="gae",
    reads=("old_value_BT", "reward_BT"),
    provides=("return_BT",),
)
def length_adaptive_gae(batch: Batch, alpha: float = 0.05, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """Length-adaptive GAE (VAPO): the longer the answer, the further back the outcome's surprise is carried.

    lam = 1 - 1 / (alpha |y|), at least 0, for the credit;  lam = 1 for the critic's targets (decoupled GAE);  gamma = 1
    """
    value_BT = torch.where(batch.mask_BT > 0, batch["old_value_BT"], 0.0)
    lam_B = (1 - 1 / (alpha * batch.lengths_B.clamp_min(1))).clamp_min(0)
    adv_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, lam_B)
    return_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, 1.0) + value_BT
    return (batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT), return_BT


# ---- what is added to the loss


@term(title="Imitate right answers (VAPO)", paper="arXiv:2504.05118", base="sft", reads=("reward_BT",))
def imitate_right(batch: Batch, coef: float = 0.1, bar: float = 0.0) -> Tensor:
    """Imitate right answers (VAPO's positive-example loss): likelihood of what earned more than bar, beside the RL loss.

    L = -coef logp_t where R > bar, 0 elsewhere;  the paper divides by the tokens of right answers, `token_mean` by all
    """
    right_B = batch.returns_B > bar
    return torch.where(right_B.unsqueeze(-1), coef * sft(batch), 0.0)


# ---- the method

vapo = method(
    ppo.but(
        name="vapo", title="VAPO", paper="arXiv:2504.05118", doc=__doc__,
        rollout=sample.but(n=16), shaping=(), advantage=length_adaptive_gae, loss=clip_higher,
        terms=(value_loss, imitate_right),
    )
)  # fmt: skip
