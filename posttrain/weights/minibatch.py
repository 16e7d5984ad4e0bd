"""The minibatch of one update: its rows, and what a loss takes from all of them at once before they are cut into pieces.

A loss such as KTO reads a statistic of the whole minibatch (a mean, a sorting) as the policy is now. `whole=` of its card is a function
of the minibatch with today's log-probabilities, without gradient, and of a memory that lasts from update to update and is saved; it
returns the minibatch to learn from: further streams, other pairs, fewer rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.turn import Turn
from posttrain.weights.batches import micro_batches

if TYPE_CHECKING:
    from posttrain.weights.learner import Learner


def minibatch(learner: Learner, rows: list[Turn], batch: Batch, chosen: Tensor) -> Batch:
    """The chosen rows; `place_B` says which row of the step each is."""
    mini = batch.rows(chosen).but(place_B=chosen)
    whole = learner.goal.loss.card.whole
    if whole is None:
        return mini
    out: Batch = whole(mini.but(logp_BT=_today(learner, rows, mini)), learner.memory, **learner.goal.loss.params)
    return out


@torch.no_grad()
def _today(learner: Learner, rows: list[Turn], mini: Batch) -> Tensor:
    """log pi of every action of the minibatch as the policy is now."""
    cells = list(micro_batches(mini, torch.arange(len(mini.mask_BT)), learner.micro_tokens))
    made: list[tuple[int, dict[str, Tensor]]] = []
    for i, counts in learner.parallel.pieces([learner.cost(mini, cell) for cell in cells]):
        some = [rows[k] for k in mini["place_B"][cells[i]].tolist()]
        live = learner.policy.forward(some, ("logp_BT",))
        if counts:
            made.append((i, {"logp_BT": live["logp_BT"]}))
    found = scatter(cells, [x["logp_BT"] for x in learner.parallel.gather(made)], mini)
    return torch.zeros_like(mini.mask_BT) if found is None else found


def scatter(cells: list[Tensor], pieces: list[Tensor], batch: Batch) -> Tensor | None:
    """Streams of pieces, put together as one of the batch."""
    if not pieces:
        return None
    kind = torch.float32 if pieces[0].is_floating_point() else pieces[0].dtype
    out = torch.zeros(*batch.mask_BT.shape, *pieces[0].shape[2:], dtype=kind)
    for index, x in zip(cells, pieces, strict=True):
        out[index, : x.shape[1]] = x.to(out.dtype).cpu()
    return out
