from __future__ import annotations

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.valid import place, reward_of, valid_rollouts


@select(provides=("ranked_LK",))
def ranked(groups: list[Group]) -> list[Group]:
    """Ranked: the answers to a prompt as a list, best first; equals keep the order in which they were sampled.

    failed and fully masked answers are left out, and so are prompts whose answers all earned the same
    """
    out = []
    for group in groups:
        best_first = sorted(valid_rollouts(group), key=reward_of, reverse=True)
        if best_first and reward_of(best_first[0]) != reward_of(best_first[-1]):
            mine = group.only([place(group, r) for r in best_first])
            out.append(Group(mine.prompt, mine.rollouts, ranking=tuple(range(len(best_first)))))
    return out
