"""From a loss per token (or per pair) to one number, in a way that does not depend on how the batch was cut.

Each aggregation divides a sum by a count of the *whole* minibatch (`Totals`), never by a count of the piece at hand, so
the gradient is the same whole, in micro-batches, accumulated, packed, padded or over ranks.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.part import settled
from posttrain.core.registry import Part, aggregate


@dataclass(frozen=True)
class Totals:
    """Counts over the whole minibatch, taken before it is cut into pieces; every process has the whole of it."""

    tokens: float
    sequences: float
    pairs: float = 0.0
    lists: float = 0.0
    labels: float = 0.0  # answers that somebody called good or bad

    @staticmethod
    def of(batch: Batch) -> Totals:
        """Rows without any credit (failed rewards, padding rows) count neither as sequences nor in pairs or lists."""
        pairs = float(valid_pairs(batch).sum()) if "chosen_P" in batch else 0.0
        lists = float(valid_lists(batch).sum()) if "ranked_LK" in batch else 0.0
        labels = float(labelled(batch).sum())
        return Totals(float((batch.mask_BT > 0).sum()), float(batch.valid_B.sum()), pairs, lists, labels)

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def valid_pairs(batch: Batch) -> Tensor:
    """Pairs of which both answers are live: with one half gone there is no preference left."""
    return batch.valid_B[batch["chosen_P"]] & batch.valid_B[batch["rejected_P"]]


def valid_lists(batch: Batch) -> Tensor:
    """Lists of at least two answers, all of them live."""
    ranked_LK = batch["ranked_LK"]
    there_LK = ranked_LK >= 0
    return (batch.valid_B[ranked_LK.clamp_min(0)] | ~there_LK).all(-1) & (there_LK.sum(-1) > 1)


def labelled(batch: Batch) -> Tensor:
    """Live rows that have a label; all live ones where nobody labelled any."""
    label_B = batch.get("label_B")
    return batch.valid_B if label_B is None else batch.valid_B & ~label_B.isnan()


def masked(loss_BT: Tensor, batch: Batch) -> Tensor:
    """0 outside the mask, even where the loss overflowed there (inf * 0 would be nan)."""
    return torch.where(batch.mask_BT > 0, loss_BT, 0.0)


@aggregate(paper="arXiv:2503.14476")
def token_mean(loss_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """Token mean (DAPO): every token weighs the same, so long answers weigh more.

    L = sum_bt loss / sum_b |y_b|
    """
    return masked(loss_BT, batch).sum() / max(totals.tokens, 1.0)


@aggregate(paper="arXiv:2402.03300")
def sequence_mean(loss_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """Sequence mean (GRPO): the mean over an answer's tokens, then over answers, so every answer weighs the same.

    L = 1/B sum_b 1/|y_b| sum_t loss
    """
    per_row_B = masked(loss_BT, batch).sum(-1) / batch.lengths_B.clamp_min(1)
    return per_row_B.sum() / max(totals.sequences, 1.0)


@aggregate()
def sequence_sum(loss_BT: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """Sequence sum (RLOO, REINFORCE): an answer's tokens are added, answers averaged: the gradient of log pi(y).

    L = 1/B sum_b sum_t loss
    """
    return masked(loss_BT, batch).sum() / max(totals.sequences, 1.0)


@aggregate(paper="arXiv:2503.20783", follows=(("length", "max_tokens"),))
def constant(loss_BT: Tensor, batch: Batch, totals: Totals, length: int | None = None) -> Tensor:
    """Constant (Dr. GRPO): divide by answers times a fixed length, so that length itself earns nothing.

    L = 1/(B L) sum_bt loss;  L is the longest answer allowed: the run's max_tokens if not given
    """
    return masked(loss_BT, batch).sum() / (max(totals.sequences, 1.0) * settled(length, "length", "constant"))


@aggregate()
def pair_mean(loss_P: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """Pair mean: one loss a preference pair, averaged over the pairs whose answers are both live."""
    return torch.where(valid_pairs(batch), loss_P, 0.0).sum() / max(totals.pairs, 1.0)


@aggregate()
def list_mean(loss_L: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """List mean: one loss a ranked list, averaged over the lists whose answers are all live."""
    return torch.where(valid_lists(batch), loss_L, 0.0).sum() / max(totals.lists, 1.0)


@aggregate()
def answer_mean(loss_B: Tensor, batch: Batch, totals: Totals) -> Tensor:
    """Answer mean: one loss an answer that was called good or bad, averaged over those."""
    return torch.where(labelled(batch), loss_B, 0.0).sum() / max(totals.labels, 1.0)


UNITS: dict[str, Part] = {
    "pair": pair_mean,
    "list": list_mean,
    "answer": answer_mean,
}  # what one value of a loss may be of
