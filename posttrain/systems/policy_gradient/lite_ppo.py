"""Lite PPO: PPO's clip without critic or KL and two choices only: the group's mean with the batch's std, tokens alike.

Departures: none known in the formulas: group mean, batch std, token mean, clip 0.2, no KL and 8 answers per prompt
are the paper's. It takes 8 updates per batch, 4 here (`--minibatches 8`), and samples at temperature 0.99 with top-p
0.99 and top-k 100, here at 1 with neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo


@advantage(
    name="lite_ppo",
    title="Lite PPO",
    paper="arXiv:2508.08221",
    base="grpo",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero"),
    reads=("group_B", "reward_BT"),
)
def group_mean_batch_std(batch: Batch, centred: bool = False, eps: float = 1e-4) -> Tensor:
    """Lite PPO: compare with siblings, but measure in the spread of the whole batch, which no group of equals makes tiny.

    A_i = (R_i - mean_group R) / (std_batch R + eps);  the std is unbiased, over valid answers
    centred: take the std of R - mean_group R instead, so that how hard prompts are does not count as spread.
    """
    group_B, valid_B = batch["group_B"], batch.valid_B
    credit_B = group_centre(batch.returns_B, group_B, valid_B)
    alive_N = (credit_B if centred else batch.returns_B)[valid_B]
    std = alive_N.std() if alive_N.numel() > 1 else torch.zeros_like(alive_N.sum())
    return broadcast_to_tokens(credit_B / (std + eps), batch)


lite_ppo = method(
    grpo.but(
        name="lite-ppo", title="Lite PPO (Tricks or Traps)", paper="arXiv:2508.08221", doc=__doc__,
        advantage=group_mean_batch_std, aggregate=token_mean, terms=(), minibatches=4,
    )
)  # fmt: skip
