from __future__ import annotations

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.valid import reward_of, valid_rollouts


@select(paper="arXiv:2405.07863", provides=("chosen_P", "rejected_P"))
def best_worst(groups: list[Group]) -> list[Group]:
    """Best and worst: each prompt's best and worst answers as a preference pair, best first (online DPO).

    keep (argmax_i R_i, argmin_i R_i) iff they differ;  failed and fully masked answers are never chosen
    """
    pairs = []
    for group in groups:
        ranked = sorted(valid_rollouts(group), key=reward_of, reverse=True)
        if ranked and ranked[0].reward != ranked[-1].reward:
            pairs.append(Group(group.prompt, [ranked[0], ranked[-1]], pairs=((0, 1),)))
    return pairs
