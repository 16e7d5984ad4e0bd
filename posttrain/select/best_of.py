from __future__ import annotations

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.eligible import eligible, place, reward_of


@select(paper="arXiv:2304.06767")
def best_of(groups: list[Group]) -> list[Group]:
    """Best of (RAFT): of each prompt's answers only the best is kept; the first of several equally good.

    keep argmax_i R_i;  failed and silenced answers are never chosen, and groups of only such go
    """
    return [g.only([place(g, max(eligible(g), key=reward_of))]) for g in groups if eligible(g)]
