"""The evidence game by hand: turns, values, and where looking ahead beats greed."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety.debate_reward import Debate, greedy, linear_judge, minimax, mixed

STATE = [1.0, 1.0, 1.0, 1.0]
# action 0 over action 1, feature by feature: +3, +1, -2, -5
JUDGE = linear_judge([[3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 5.0]])


def test_each_side_shows_its_best_in_turn() -> None:
    # the side of 0 shows feature 0 (+3), that of 1 feature 3 (-5): u = -2; of 3 pieces: 0, 3, 1: -1; of 4 all: -3
    for player in (greedy, minimax):
        for length, shown, u in ((1, (0,), 3.0), (2, (0, 3), -2.0), (3, (0, 3, 1), -1.0)):
            game = Debate(JUDGE, player(JUDGE), player(JUDGE), length)
            assert game.evidence(STATE, 0, 1) == shown and game.utility(STATE, 0, 1) == u
        assert Debate(JUDGE, player(JUDGE), player(JUDGE), 4).utility(STATE, 0, 1) == -3.0


def test_reward_is_who_wins() -> None:
    one, two = (Debate(JUDGE, minimax(JUDGE), minimax(JUDGE), n) for n in (1, 2))
    assert (one.reward(STATE, 0, 1), two.reward(STATE, 0, 1), two.reward(STATE, 1, 0)) == (1.0, 0.0, 1.0)
    assert one.reward(STATE, 0, 0) == 0.5  # the baseline's own action


def test_values_count_with_the_state() -> None:
    # with feature 3 at -1 what spoke for action 1 speaks for action 0: the side of 0 shows it
    game = Debate(JUDGE, minimax(JUDGE), minimax(JUDGE), 1)
    assert game.evidence([1.0, 1.0, 1.0, -1.0], 0, 1) == (3,) and game.utility([1.0, 1.0, 1.0, -1.0], 0, 1) == 5.0


def test_looking_ahead_beats_greed() -> None:
    # feature 0 alone is worth +3 but -4 once the other shows 2; feature 1 is worth +1 and cannot be turned
    def judge(action: int, seen: dict[int, float]) -> float:
        if action == 1:
            return 0.0
        return 3 * (0 in seen) + (1 in seen) - 7 * (0 in seen and 2 in seen) - 0.5 * (2 in seen)

    state = [1.0, 1.0, 1.0]
    naive = Debate(judge, greedy(judge), minimax(judge), 2)
    wise = Debate(judge, minimax(judge), minimax(judge), 2)
    assert naive.evidence(state, 0, 1) == (0, 2) and naive.utility(state, 0, 1) == -4.5
    assert wise.evidence(state, 0, 1) == (1, 2) and wise.utility(state, 0, 1) == 0.5


def test_errors() -> None:
    with pytest.raises(UserError, match="as many features"):
        Debate(JUDGE, greedy(JUDGE), greedy(JUDGE), 5).evidence(STATE, 0, 1)
    with pytest.raises(UserError, match="show a new one"):
        Debate(JUDGE, lambda *_: 0, lambda *_: 0, 2).evidence(STATE, 0, 1)


def test_the_mix() -> None:
    assert mixed(0.25).live().phi == [0.0, 0.75, 0.25]
