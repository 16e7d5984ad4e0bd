"""Streams that say which rows or actions belong together: nodes of a search tree, states of an environment, tasks, turns.

Numbers mean nothing but equal or not; each is a stream of the batch, there only where the rollouts say so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import pad
from posttrain.core.errors import UserError
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Rollout


def row_keys(groups: list[Group], rows: list[Turn], owners: list[Rollout], T: int) -> dict[str, Tensor]:
    """node_BS (B, T + 1) for answers sampled as trees, state_BT where states are given, task_B where tasks are, turn_BT where
    a row has several turns, topk_id_BTK and topk_logp_BTK where a teacher's likeliest tokens came with the answers, rating_BK where
    ratings did, progress_B where it was measured what an answer added."""
    out = {}
    if any(r.branch is not None for r in owners):
        if len(rows) > sum(len(g.rollouts) for g in groups):
            raise UserError("a rollout that branched from another cannot have several contexts")
        out["node_BS"] = tree_nodes(groups, T)
    if any("states" in r.info for r in owners):
        out["state_BT"] = states(owners, rows, T)
    if any("task" in r.prompt.info for r in owners):
        out["task_B"] = numbered([str(r.prompt.info.get("task", "")) for r in owners])
    for name in ("topk_id", "topk_logp") if all("topk_id" in row.streams_T for row in rows) else ():
        kept = [row.streams_T[name] for row in rows]  # int32 and float16, as they are kept; computed with as others are
        out[f"{name}_BTK"] = pad([x.float() if x.is_floating_point() else x.long() for x in kept], T)
    if any("turn" in row.streams_T for row in rows):
        out["turn_BT"] = pad([row.streams_T.get("turn", torch.zeros(len(row)).long()) for row in rows], T)
    if any("ratings" in r.info for r in owners):
        most = max(len(r.info.get("ratings", ())) for r in owners)
        told = [[*map(float, r.info.get("ratings", ())), *[float("nan")] * most][:most] for r in owners]
        out["rating_BK"] = torch.tensor(told)
    if any("progress" in r.info for r in owners):
        out["progress_B"] = torch.tensor([float(r.info.get("progress", 0.0)) for r in owners])
    return out


def numbered(keys: list[object]) -> Tensor:
    """Equal keys, equal numbers."""
    known: dict[object, int] = {}
    return torch.tensor([known.setdefault(k, len(known)) for k in keys])


def tree_nodes(groups: list[Group], T: int) -> Tensor:
    """The state before each action and after the last (B, T + 1): equal up to where one answer left the other.

    A path is known by its `index`, so filters may drop or reorder answers; what two children shared with a parent that
    was dropped they still share.
    """
    most = 1 + max(max(r.index, r.branch.parent if r.branch else 0) for g in groups for r in g.rollouts)
    owner_BT = torch.stack([x for g in groups for x in owners(g, T)])
    group_B1 = torch.tensor([[i] for i, g in enumerate(groups) for _ in g.rollouts])
    root_B1 = group_B1 * (most + 1) * (T + 1)
    return torch.cat([root_B1, root_B1 + (owner_BT + 1) * (T + 1) + torch.arange(1, T + 1)], 1)


def owners(group: Group, T: int) -> list[Tensor]:
    """Who made each action (T,): the path itself after its fork, before it whoever made the parent's."""
    by_index = {r.index: r for r in group.rollouts}

    def chain(r: Rollout) -> Tensor:
        own_T = torch.full((T,), r.index)
        if r.branch is None:
            return own_T
        parent = by_index.get(r.branch.parent)
        above_T = torch.full((T,), r.branch.parent) if parent is None else chain(parent)
        return torch.cat([above_T[: r.branch.at], own_T[r.branch.at :]])

    return [chain(r) for r in group.rollouts]


def states(owners: list[Rollout], rows: list[Turn], T: int) -> Tensor:
    """`info["states"]`, one key per action, as numbers (B, T); an action without one has a state of its own."""
    keys: list[object] = []
    for b, (r, row) in enumerate(zip(owners, rows, strict=True)):
        told = list(r.info.get("states", ()))[: len(row)]
        keys += [("told", str(k)) for k in told] + [("alone", b, t) for t in range(len(told), T)]
    return numbered(keys).view(len(rows), T)
