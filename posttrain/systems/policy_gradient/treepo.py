"""TreePO: answers grow as a tree that shares prefixes, and each is compared with the leaves under each of its ancestors.

Departures: the paper's segments have 512 tokens and its trees 16 leaves; here 16 and 8: use
`--rollout "tree(n=16, fork=(512, 2))"`. It forks the root into 2 to 8 at random, stops paths that repeat themselves
and shares the cache of prefixes; here the root forks as other nodes do, nothing is stopped and each segment reads its
prefix again. DAPO's masking of answers that were cut off is inherited (`--select zero_variance` takes it off), and
groups of equals are not refilled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.states import nodes, worth
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.rollouts.tree import tree
from posttrain.systems.policy_gradient.dapo import dapo


@advantage(
    name="treepo",
    title="TreePO",
    paper="arXiv:2508.17445",
    base="lite_ppo",
    laws=("shift_invariant", "scale_invariant"),
    reads=("group_B", "reward_BT", "token_BT"),
)
def against_ancestors(batch: Batch, root_only: bool = False, whiten: bool = True, eps: float = 1e-4) -> Tensor:
    """TreePO: an answer is compared with all leaves under each of its ancestors, and the comparisons are averaged.

    A_i = mean_j (R_i - mean R under ancestor j) / std;  ancestors: the root, and each place where its tree forks further
    std: of these over the batch (unbiased). An ancestor of one leaf has nothing to compare; without any A = 0. The paper
    counts an ancestor for each segment; here one that does not fork is not counted twice. root_only: GRPO's comparison.
    """
    value_BS, count_BS = worth(batch, nodes(batch))
    forks_BS = (count_BS > 1) & torch.cat([count_BS[:, 1:] < count_BS[:, :-1], count_BS[:, :1] < 0], 1)
    forks_BS[:, 0] = count_BS[:, 0] > 1
    if root_only:
        forks_BS[:, 1:] = False
    above_BS = torch.where(forks_BS, batch.returns_B.unsqueeze(-1) - value_BS, 0.0)
    credit_B = above_BS.sum(-1) / forks_BS.sum(-1).clamp_min(1)
    alive_N = credit_B[batch.valid_B]
    if whiten and alive_N.numel() > 1:
        credit_B = credit_B / (alive_N.std() + eps)
    return broadcast_to_tokens(credit_B, batch)


treepo = method(
    dapo.but(
        name="treepo", title="TreePO", paper="arXiv:2508.17445", doc=__doc__, rollout=tree, advantage=against_ancestors
    )
)
