from __future__ import annotations

from posttrain.core.registry import select
from posttrain.core.types import Group
from posttrain.select.valid import reward_of, valid_rollouts


@select(paper="arXiv:2503.14476")
def zero_variance(groups: list[Group]) -> list[Group]:
    """Zero variance (DAPO's dynamic sampling): drop groups whose answers all earned the same, they teach nothing.

    keep iff max R > min R over the answers that are scored and not fully masked;  fewer than two cannot differ
    R is all that an answer earned, at its turns too. A method with several `rounds` asks new prompts in their place.
    """
    return [group for group in groups if len({reward_of(r) for r in valid_rollouts(group)}) > 1]
