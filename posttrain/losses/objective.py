"""The number a step differentiates: a loss and its terms, each divided by the counts of the whole minibatch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import Part
from posttrain.losses.aggregate import UNITS, Totals, sequence_mean, token_mean

PAIRED = (
    "preference_loss",
    "reward_model_loss",
)  # stages whose losses return loss_P, one value per pair, unless they say
PER: dict[str, Part | None] = {"": None, "token": token_mean, "answer": sequence_mean}
_AS_THEY_ARE = ("mask_BT", "reward_BT")  # a reward may fall on an environment token, outside the mask


def objective(
    batch: Batch, totals: Totals, loss: Part, aggregate: Part, terms: Sequence[Part] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = aggregate(loss) + sum_k aggregate(term_k), and each summand by name, without gradient.

    Losses per pair, list or answer are averaged over those whatever `aggregate` is; their terms, being per token, need a token
    aggregation.
    A term with a parameter `per` says itself how it is averaged: per token, per answer, or ("") as the loss is.
    """
    batch = zero_padding(batch)
    unit = UNITS.get(unit_of(loss))
    if aggregate in UNITS.values() and (terms or unit is None):
        what = terms[0].name if unit else loss.name
        over = next(name for name, part in UNITS.items() if part == aggregate)
        raise UserError(f"{what} is a loss per token, but {aggregate.name} averages {over}s; say aggregate=token_mean")
    parts = {loss.name: (unit or aggregate)(loss(batch), batch, totals)}
    for term in terms:
        parts[term.name] = parts.get(term.name, 0.0) + averaged(term, aggregate)(term(batch), batch, totals)
    total: Tensor = sum(parts.values())
    return total, {name: value.detach() for name, value in parts.items()}


def unit_of(loss: Part) -> str:
    """What one value of a loss is of: token, pair, list or answer."""
    return loss.card.per or ("pair" if loss.card.stage in PAIRED else "token")


def averaged(term: Part, aggregate: Part) -> Part:
    """How a term is averaged."""
    per = term.defaults().get("per", "")
    if per not in PER:
        raise unknown(f"way to average {term.name} (per)", str(per), [p for p in PER if p])
    return PER[per] or aggregate


def zero_padding(batch: Batch) -> Batch:
    """The batch with zeros outside the mask, so that no garbage there (inf, nan) reaches a value or a gradient.

    Masking the loss alone is not enough: exp(inf) in padding has the gradient 0 * inf = nan.
    """
    own_BT = batch.mask_BT > 0
    clean = {
        n: torch.where(own_BT, x, 0.0)
        for n, x in batch.streams.items()
        if n.endswith("_BT") and n not in _AS_THEY_ARE and x.is_floating_point()
    }
    clean |= {
        n: torch.where(own_BT.unsqueeze(-1), x, 0.0)
        for n, x in batch.streams.items()
        if n.endswith(("_BTK", "_BTV")) and x.is_floating_point()
    }
    if "score_B" in batch:
        clean["score_B"] = torch.where(batch.valid_B, batch["score_B"], 0.0)
    if "scores_BK" in batch:
        clean["scores_BK"] = torch.where(batch.valid_B.unsqueeze(-1), batch["scores_BK"], 0.0)
    return batch.but(**clean)
