"""Which answers stand in the same state: those that grew from the same node of a tree, else those of a group whose actions so
far are the same, letter by letter."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size
from posttrain.core.batch import Batch


def nodes(batch: Batch) -> Tensor:
    """(B, T + 1): a number for the state before each action, and after the last; equal where the prefix is.

    Answers that were sampled as a tree say where they parted (`info["node_BS"]`), and no chance likeness counts. Otherwise,
    after something that the policy did not choose (an observation, padding) an answer stands alone. A row that is not valid
    always does.
    """
    B, T = batch.mask_BT.shape
    alone_B = torch.arange(B, device=batch.mask_BT.device) - B  # below 0: no number of a shared state
    if "node_BS" in batch:
        node_BS: Tensor = batch["node_BS"][:, : T + 1]
        return torch.where(batch.valid_B.unsqueeze(-1), node_BS, alone_B.unsqueeze(-1))
    token_BT = batch["token_BT"]
    lone_B = ~batch.valid_B
    node_B = torch.where(lone_B, alone_B, batch["group_B"])
    out = [node_B]
    for t in range(token_BT.shape[1]):
        lone_B = lone_B | (batch.mask_BT[:, t] == 0)
        pair_B2 = torch.stack([out[-1], token_BT[:, t]], 1)
        _, next_B = torch.unique(pair_B2, dim=0, return_inverse=True)
        out.append(torch.where(lone_B, alone_B, next_B))
    return torch.stack(out, 1)


def worth(batch: Batch, node_BS: Tensor) -> tuple[Tensor, Tensor]:
    """What answers through each state earned on average, and how many they are, both (B, T + 1)."""
    columns = node_BS.unbind(1)
    value_BS = torch.stack([group_mean(batch.returns_B, x, batch.valid_B) for x in columns], 1)
    return value_BS, torch.stack([group_size(x, batch.valid_B) for x in columns], 1)
