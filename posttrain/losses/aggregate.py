"""From a loss per token (or per pair) to one number, in a way that does not depend on how the batch was cut.

Each aggregation divides a sum by a count of the *whole* minibatch (`Totals`), never by a count of the piece at hand, so
the gradient is the same whole, in micro-batches, accumulated, packed, padded or over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.part import settled
from posttrain.core.registry import aggregate


@dataclass(frozen=True)
class Totals:
    """Counts over the whole minibatch, taken before it is cut into pieces; every process has the whole of it."""

    tokens: float
    sequences: float
    pairs: float = 0.0

    @staticmethod
    def of(batch: Batch) -> Totals:
        """Rows without any credit (failed rewards, padding rows) count neither as sequences nor in pairs."""
        pairs = float(valid_pairs(batch).sum()) if "chosen_P" in batch else 0.0
        return Totals(float((batch.mask_BT > 0).sum()), float(batch.valid_B.sum()), pairs)

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.tokens + other.tokens, self.sequences + other.sequences, self.pairs + other.pairs)


def valid_pairs(batch: Batch) -> Tensor:
    """Pairs of which both answers are live: with one half gone there is no preference left."""
    return batch.valid_B[batch["chosen_P"]] & batch.valid_B[batch["rejected_P"]]


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
