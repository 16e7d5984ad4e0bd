"""The number a step differentiates: a loss and its terms, each divided by the counts of the whole minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.registry import Part
from posttrain.core.types import Batch
from posttrain.losses.aggregate import Totals, pair_mean

PAIRED = ("preference_loss", "reward_model_loss")  # stages whose losses return loss_P, one value a pair
_NOT_QUIET = ("mask_BT", "reward_BT")  # a reward may fall on an environment token, outside the mask


def objective(
    batch: Batch, totals: Totals, loss: Part, aggregate: Part, terms: Sequence[Part] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = aggregate(loss) + sum_k aggregate(term_k), and each summand by name, without gradient.

    Pair losses are averaged over pairs whatever `aggregate` is; their terms, being per token, need a token aggregation.
    """
    batch = quiet(batch)
    paired = loss.card.stage in PAIRED
    if aggregate.name == pair_mean.name and (terms or not paired):
        what = terms[0].name if paired else loss.name
        raise UserError(f"{what} is a loss per token, but pair-mean averages pairs; say aggregate=token_mean")
    parts = {loss.name: (pair_mean if paired else aggregate)(loss(batch), batch, totals)}
    for term in terms:
        parts[term.name] = parts.get(term.name, 0.0) + aggregate(term(batch), batch, totals)
    total: Tensor = sum(parts.values())  # type: ignore[assignment]
    return total, {name: value.detach() for name, value in parts.items()}


def quiet(batch: Batch) -> Batch:
    """The batch with zeros outside the mask, so that no garbage there (inf, nan) reaches a value or a gradient.

    Masking the loss alone is not enough: exp(inf) in padding has the gradient 0 * inf = nan.
    """
    keep_BT, live_B = batch.mask_BT > 0, batch.live_B
    streams = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name.endswith("_BT")}
    clean = {n: torch.where(keep_BT, x, 0.0) for n, x in streams.items() if x is not None and n not in _NOT_QUIET}
    if batch.score_B is not None:
        clean["score_B"] = torch.where(live_B, batch.score_B, 0.0)
    return batch.but(**clean)
