from __future__ import annotations

from dataclasses import replace

from posttrain.core.registry import keep
from posttrain.core.types import Group


@keep(paper="arXiv:2304.06767")
def best_of(groups: list[Group]) -> list[Group]:
    """Best of (RAFT): of each prompt's answers only the best is kept; the first of several equally good.

    keep argmax_i R_i;  answers that could not be scored are never chosen, groups without a scored one go
    """
    return [replace(g, rollouts=[max(g.scored, key=lambda r: r.reward or 0.0)]) for g in groups if g.scored]
