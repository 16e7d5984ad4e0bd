from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.states import nodes, worth
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    title="Tree segments",
    paper="arXiv:2506.11902",
    laws=("shift_invariant", "groups_are_separate"),
    reads=("group_B", "reward_BT", "token_BT"),
)
def tree(batch: Batch) -> Tensor:
    """Tree segments (TreeRL): a segment is worth what the answers through its end earn above those through its start.

    A_t = V(end) - V(start);  V(node) = mean outcome of the answers that pass through it
    A segment runs from where answers part to where they next part, and its tokens share its credit. Nodes are read off
    the letters, so answers that share a prefix by chance form a tree too. TreeRL adds R - V(root) and divides by
    sqrt(leaves); here the segment stands alone.
    """
    value_BS, count_BS = worth(batch, nodes(batch))
    after_BT, start_B, before = value_BS[:, 1:], value_BS[:, 0], []
    for t in range(after_BT.shape[1]):  # the start moves on where somebody leaves
        start_B = torch.where(count_BS[:, t + 1] < count_BS[:, t], value_BS[:, t], start_B)
        before.append(start_B)
    adv_BT = torch.where(batch.mask_BT > 0, after_BT - torch.stack(before, 1), 0.0)
    return adv_BT.to(batch.mask_BT)
