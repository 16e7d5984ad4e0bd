"""The number a step differentiates: a loss and its terms, each divided by the counts of the whole minibatch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import Part
from posttrain.losses.aggregate import Totals, pair_mean, sequence_mean, token_mean

PAIRED = ("preference_loss", "reward_model_loss")  # stages whose losses return loss_P, one value per pair
PER: dict[str, Part | None] = {"": None, "token": token_mean, "answer": sequence_mean}
_AS_THEY_ARE = ("mask_BT", "reward_BT")  # a reward may fall on an environment token, outside the mask


def objective(
    batch: Batch, totals: Totals, loss: Part, aggregate: Part, terms: Sequence[Part] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = aggregate(loss) + sum_k aggregate(term_k), and each summand by name, without gradient.

    Pair losses are averaged over pairs whatever `aggregate` is; their terms, being per token, need a token aggregation.
    A term with a parameter `per` says itself how it is averaged: per token, per answer, or ("") as the loss is.
    """
    batch = zero_padding(batch)
    paired = loss.card.stage in PAIRED
    if aggregate.name == pair_mean.name and (terms or not paired):
        what = terms[0].name if paired else loss.name
        raise UserError(f"{what} is a loss per token, but pair-mean averages pairs; say aggregate=token_mean")
    parts = {loss.name: (pair_mean if paired else aggregate)(loss(batch), batch, totals)}
    for term in terms:
        parts[term.name] = parts.get(term.name, 0.0) + averaged(term, aggregate)(term(batch), batch, totals)
    total: Tensor = sum(parts.values())  # type: ignore[assignment]
    return total, {name: value.detach() for name, value in parts.items()}


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
        n: torch.where(own_BT.unsqueeze(-1), x, 0.0) for n, x in batch.streams.items() if n.endswith(("_BTK", "_BTV"))
    }
    if "score_B" in batch:
        clean["score_B"] = torch.where(batch.valid_B, batch["score_B"], 0.0)
    return batch.but(**clean)
