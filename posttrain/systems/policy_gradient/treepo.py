"""TreePO: answers grow as a tree that shares prefixes, and each is compared with the leaves under each of its ancestors.

Departures: 16 leaves, a root of 2 to 8 paths, forks in 2, the stop of paths that repeat themselves, DAPO's clip, token
mean, refilled batches, and length punished in the last fourteenth of the window are the authors'. They take 16 updates from
512 prompts (`--prompts 512 --minibatches 16`), here 4 from 16, so that an update sees more than one prompt. Their 14
segments of 512 tokens are a fourteenth of `--sampling.max-tokens` here. They count an ancestor for each segment, here one
that does not fork is not counted twice. They stop a path at a boxed answer too, here at the model's own end. Segments
share the memory of their prefix where the native engine samples (on a GPU); elsewhere each reads it again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.states import nodes, worth
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.errors import unknown
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.rewards.shaping.soft_overlong import soft_overlong
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
def against_ancestors(batch: Batch, root_only: bool = False, whiten: str = "tokens", eps: float = 1e-4) -> Tensor:
    """TreePO: an answer is compared with all leaves under each of its ancestors, and the comparisons are averaged.

    A_i = mean_j (R_i - mean R under ancestor j);  ancestors: the root, and each place where its tree forks further
    whiten="tokens": A <- (A - mean A) / std A over all tokens of the batch, as the authors; "answers": A / std A over answers.
    An ancestor of one leaf has nothing to compare; without any A = 0. The paper counts an ancestor for each segment; here one
    that does not fork is not counted twice. root_only: GRPO's comparison.
    """
    if whiten not in ("tokens", "answers", "none"):
        raise unknown("way to whiten", whiten, ("tokens", "answers", "none"))
    value_BS, count_BS = worth(batch, nodes(batch))
    forks_BS = (count_BS > 1) & torch.cat([count_BS[:, 1:] < count_BS[:, :-1], count_BS[:, :1] < 0], 1)
    forks_BS[:, 0] = count_BS[:, 0] > 1
    if root_only:
        forks_BS[:, 1:] = False
    above_BS = torch.where(forks_BS, batch.returns_B.unsqueeze(-1) - value_BS, 0.0)
    credit_B = above_BS.sum(-1) / forks_BS.sum(-1).clamp_min(1)
    if whiten == "tokens":
        return batch_whiten(broadcast_to_tokens(credit_B, batch), batch.mask_BT)
    alive_N = credit_B[batch.valid_B]
    if whiten == "answers" and alive_N.numel() > 1:
        credit_B = credit_B / (alive_N.std() + eps)
    return broadcast_to_tokens(credit_B, batch)


treepo = method(
    dapo.but(
        name="treepo", title="TreePO", paper="arXiv:2508.17445", doc=__doc__, rollout=tree, advantage=against_ancestors,
        shaping=soft_overlong.but(cache=1 / 14),
    )
)  # fmt: skip
