"""REINFORCE++: PPO's clipped loss without a critic; credit is the KL-shaped return, whitened over the whole batch.

Departures: the paper needs one answer per prompt, here 8 are sampled as in GRPO though no group is formed; its
variant with a group baseline is not here. It takes several updates per batch, here one (`--minibatches 4`). The
reward model of its RLHF runs must be given (`--reward runs/NAME`); without one the task's own grade pays. The KL
price 0.01 is this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


@advantage(
    name="reinforce_pp",
    paper="arXiv:2501.03262",
    laws=("shift_invariant", "scale_invariant", "tokens_sum_to_zero"),
    reads=("reward_BT",),
)
def batch_relative(batch: Batch) -> Tensor:
    """REINFORCE++: what was still to be earned after each token, whitened over all tokens of the batch, no groups.

    G_t = sum_{s >= t} r_s;  A = (G - mean_batch G) / std_batch G
    With `kl_in_reward`, G_t is the paper's R - beta sum_{s >= t} KL_s.
    """
    togo_BT = batch["reward_BT"].flip(-1).cumsum(-1).flip(-1)
    return batch_whiten(torch.where(batch.mask_BT > 0, togo_BT, 0.0), batch.mask_BT)


reinforce_pp = method(
    grpo.but(
        name="reinforce-pp", title="REINFORCE++", paper="arXiv:2501.03262", doc=__doc__,
        advantage=batch_relative, aggregate=token_mean, shaping=(kl_in_reward.but(coef=0.01),), terms=(),
    )
)  # fmt: skip
