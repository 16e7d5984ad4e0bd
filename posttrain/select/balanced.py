from __future__ import annotations

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.eligible import eligible, reward_of


@select(title="Balanced (BRPO)", paper="arXiv:2506.00103")
def balanced(groups: list[Group], limit: float = 0.6) -> list[Group]:
    """Balanced (BRPO): the reference answer leaves its group, and a group goes that nearly all won or nearly all lost.

    keep iff |mean_i R_i| <= limit over the others, R = 1, 0, -1;  a reference far too good or too bad compares nobody
    """
    others = [g.only([i for i, r in enumerate(g.rollouts) if not r.info.get("reference")]) for g in groups]
    return [g for g in others if (n := len(eligible(g))) and abs(sum(map(reward_of, eligible(g)))) <= limit * n]
