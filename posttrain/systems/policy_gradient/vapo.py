"""VAPO: PPO with a critic for long answers: length-adaptive GAE, a higher upper clip, tokens alike, right answers imitated.

The critic learns at twice the policy's rate, and alone for the first 50 steps (at most a quarter of the run), on what answers
of the fixed policy earn (lam 1).

Departures: the paper trains the critic alone on samples of the start before the run, here the first steps of the run do
that. It samples 512 prompts per step and takes 16 updates of 512 answers from them (`--prompts 512 --minibatches 16`); here 16
prompts and 4 updates, as `dapo` and `cispo` have here, where 16 updates of one prompt each unlearned. Its rates are
1e-6 and 2e-6, here the policy's suits its size. It starts the critic from a reward model, which may be given: `--critic
runs/NAME`. 16 answers per prompt, alpha 0.05, clip 0.2 and 0.28, the weight 0.1, no KL and one pass are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.gae import surprises
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.critic import CriticSettings
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
    provides=("return_BT", "mark_BT"),
)
def length_adaptive_gae(
    batch: Batch, alpha: float = 0.05, whiten: bool = True, bar: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Length-adaptive GAE (VAPO): the longer the answer, the further back the outcome's surprise is carried.

    lam = 1 - 1 / (alpha |y|), at least 0, for the credit;  lam = 1 for the critic's targets (decoupled GAE);  gamma = 1
    It also marks the tokens of right answers (R > bar) by tokens of all / tokens of right ones, for `imitate_right`.
    """
    value_BT = torch.where(batch.mask_BT > 0, batch["old_value_BT"], 0.0)
    lam_B = (1 - 1 / (alpha * batch.lengths_B.clamp_min(1))).clamp_min(0)
    adv_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, lam_B)
    return_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, 1.0) + value_BT
    right_BT = batch.mask_BT * (batch.returns_B > bar).unsqueeze(-1)
    mark_BT = right_BT * batch.mask_BT.sum() / right_BT.sum().clamp_min(1)
    return (batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT), return_BT, mark_BT


# ---- what is added to the loss


@term(title="Imitate right answers (VAPO)", paper="arXiv:2504.05118", base="sft", reads=("mark_BT",))
def imitate_right(batch: Batch, coef: float = 0.1) -> Tensor:
    """Imitate right answers (VAPO's positive-example loss): likelihood of right answers, beside the RL loss.

    L = -coef mark_t logp_t;  mark = tokens of all / tokens of right answers on right ones, 0 elsewhere, so that with
    `token_mean` the sum is divided by the tokens of right answers
    """
    return coef * batch["mark_BT"] * sft(batch)


# ---- the method

vapo = method(
    ppo.but(
        name="vapo", title="VAPO", paper="arXiv:2504.05118", doc=__doc__,
        rollout=sample.but(n=16), shaping=(), advantage=length_adaptive_gae, loss=clip_higher,
        terms=(value_loss, imitate_right), epochs=1, minibatches=4, critic=CriticSettings(pace=2.0, warmup=50),
    )
)  # fmt: skip
