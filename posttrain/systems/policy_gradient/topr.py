"""TOPR: many passes over old answers without a leash: the right ones are imitated, the wrong ones pushed down until rare.

Departures: a round of the paper collects a set of answers, learns from it for an epoch or more, and collects anew; here a round is one
step of 16 prompts, used four times in 8 updates, so that answers are nearly on policy and the taper hardly binds. `--prompts 512
--minibatches 64` is a round in which it does, and `--rollout logged --task log.jsonl` learns from a set that somebody collected. The
paper also chooses right and wrong answers so that about 10 to 20% of the weight is on the right; none are chosen here. The limits of the
weights are the paper's; the bar c = 0.5 is its baseline 0 for rewards of 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.baseline import baseline
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.reinforce import reinforce as score_function
from posttrain.methods.reinforce import reinforce


@policy_loss(
    name="topr",
    title="TOPR",
    paper="arXiv:2503.14286",
    base="reinforce",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def tapered_blame(
    batch: Batch, low_right: float = 1.0, high_right: float = 1.0, low_wrong: float = 0.0, high_wrong: float = 1.0
) -> Tensor:
    """TOPR: old answers that earned credit are imitated whole; blame fades as a bad answer becomes unlikely.

    w = clip(pi(y) / mu(y), low, high);  L_t = -sg(w) A logp_t;  mu is the sampler, the ratio that of the whole answer
    The paper's limits: [1, 1] for A >= 0 (supervised learning), [0, 1] for A < 0, so that the loss cannot run away.
    """
    adv_BT = batch["adv_BT"]
    log_ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["old_logp_BT"], 0.0)
    ratio_B1 = torch.exp(log_ratio_BT.sum(-1, keepdim=True)).detach()
    right_B1, wrong_B1 = ratio_B1.clamp(low_right, high_right), ratio_B1.clamp(low_wrong, high_wrong)
    return torch.where(adv_BT < 0, wrong_B1, right_B1) * score_function(batch)


topr = method(
    reinforce.but(
        name="topr", title="TOPR", paper="arXiv:2503.14286", doc=__doc__,
        advantage=baseline, loss=tapered_blame, epochs=4, minibatches=2,
    )
)  # fmt: skip
