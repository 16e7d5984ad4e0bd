from __future__ import annotations

from dataclasses import replace

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.eligible import reward_of


@select(title="In twos (CoPG)", paper="arXiv:2406.19185", provides=("chosen_P", "rejected_P"))
def in_twos(groups: list[Group]) -> list[Group]:
    """In twos (CoPG): the answers to a prompt in twos, as they came, the better of each two first.

    pairs (y_0, y_1), (y_2, y_3), ...;  of an odd number the last is compared with nobody
    Two that earned the same are a pair too: a loss that weighs pairs by what both earned (`copg`) needs them. One that
    only knows better and worse (`dpo`) must not see them; for it there is `best_worst`.
    """
    return [replace(g, pairs=tuple(_better_first(g, i) for i in range(0, len(g.rollouts) - 1, 2))) for g in groups]


def _better_first(group: Group, i: int) -> tuple[int, int]:
    one, two = group.rollouts[i : i + 2]
    known = all(r.reward is not None and not r.failed for r in (one, two))  # else the pair does not count
    return (i + 1, i) if known and reward_of(two) > reward_of(one) else (i, i + 1)
