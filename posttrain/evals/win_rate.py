"""Win rate of one policy over another: their answers to the same prompts, compared one by one."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.core.errors import UserError
from posttrain.core.registry import evaluation


@evaluation(paper="arXiv:2009.01325")
def win_rate(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Win rate: the share of comparisons that the first wins; equals count half."""
    if len(ours) != len(theirs) or not ours:
        raise UserError(f"a win rate compares answers one by one; got {len(ours)} and {len(theirs)} of them")
    return sum((a > b) + 0.5 * (a == b) for a, b in zip(ours, theirs, strict=True)) / len(ours)
