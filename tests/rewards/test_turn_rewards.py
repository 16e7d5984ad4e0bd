"""The guide's turn rewards, worked out by hand.

The claim to come: ppo and rloo, each dense and single, on games of two rooms, equal episodes and updates; the share of held-out games won, and on
larger games that were not trained on; expected: dense above single, by more for ppo than for rloo.
"""

from __future__ import annotations

import pytest

from posttrain.core.types import End, Prompt, Rollout
from posttrain.systems.agents_multiturn.multi_turn_agentic_guide import TurnRewards, dense, single, was_won


@pytest.mark.derived("scorer/turn-rewards")
def test_dense_and_single() -> None:
    """won with 1, 0, 1: halves. lost with 1, 0, 0 of 4 in all: a quarter. A fine of 1/2 is divided too. By count: 2, 0, 1 over 2."""
    assert dense([1, 0, 1], won=True) == [0.5, 0, 0.5] and dense([1, 0, 1], won=True, per="count") == [0.5, 0, 0.5]
    assert dense([2, 0, 2], won=True) == [0.5, 0, 0.5] and dense([2, 0, 1], won=True, per="count") == [1, 0, 0.5]
    assert dense([1, 0, 0], won=False, most=4) == [0.25, 0, 0]
    assert dense([1, -0.5, 1], won=True) == [0.5, -0.25, 0.5]
    assert dense([0, 0], won=True) == [0, 1.0] and dense([0, 0], won=False) == [0, 0]
    assert single([1, 0, 1], won=True) == [0, 0, 1.0] and single([1, 1, 0], won=False) == [0, 0, 0]


def test_who_won_is_told_or_seen() -> None:
    def game(end: End, last: float, **info: object) -> Rollout:
        import torch

        one = Rollout.single(Prompt.text("p", "q"), torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1))
        one.turns[0].reward, one.end, one.info = last, end, dict(info)
        return one

    assert was_won(game(End.COMPLETED, 1.0)) and not was_won(game(End.TRUNCATED, 1.0))
    assert not was_won(game(End.COMPLETED, 0.0)) and not was_won(game(End.COMPLETED, 1.0, won=False))
    assert was_won(game(End.TRUNCATED, 0.0, won=True))


def test_scoring_twice_pays_the_same() -> None:
    import torch

    from posttrain.core.types import Group

    one = Rollout.single(
        Prompt.text("p", "q", most=4), torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1), reward=0.0
    )
    one.turns[0].reward, one.end = 1.0, End.TRUNCATED
    for _ in range(2):
        TurnRewards().score([Group(one.prompt, [one])])
        assert one.turns[0].reward == 0.25 and one.rewards["won"] == 0.0 and one.info["turn_rewards"] == [1.0]
