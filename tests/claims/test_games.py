"""Preference games against equilibria that are known by hand."""

from __future__ import annotations

import pytest
import torch

from claims.worlds.games import Game, bradley_terry, chances, circles, ladder
from posttrain.core.errors import UserError
from posttrain.runs.in_memory import row


def game(rows: list[list[float]]) -> Game:
    return Game(torch.tensor([rows], dtype=torch.float64))


def test_nash_of_an_uneven_circle() -> None:
    # 0 > 1 by .4, 1 > 2 by .2, 2 > 0 by .1: each is played as often as the edge between the other two is wide:
    # (.2, .1, .4) / .7; against it everybody wins half
    g = game([[0.5, 0.9, 0.4], [0.1, 0.5, 0.7], [0.6, 0.3, 0.5]])
    torch.testing.assert_close(g.nash()[0].tolist(), [2 / 7, 1 / 7, 4 / 7])
    torch.testing.assert_close(g.wins(g.nash())[0].tolist(), [0.5, 0.5, 0.5])
    assert g.exploitability(g.nash()) == pytest.approx(0.0, abs=1e-9)


def test_exploitability_by_hand() -> None:
    # always 0: answer 2 beats it in .6; half 0 half 1: answer 0 wins (.5 + .9)/2 = .7
    g = game([[0.5, 0.9, 0.4], [0.1, 0.5, 0.7], [0.6, 0.3, 0.5]])
    assert g.exploitability(torch.tensor([[1.0, 0.0, 0.0]])) == pytest.approx(0.1)
    assert g.exploitability(torch.tensor([[0.5, 0.5, 0.0]])) == pytest.approx(0.2)


def test_a_ladder_has_one_winner_and_ties_have_any() -> None:
    g = ladder(3, 5, seed=0)
    assert torch.equal(g.nash().argmax(-1), g.win_PNN.mean(-1).argmax(-1))
    torch.testing.assert_close(g.nash().max(-1).values, torch.ones(3, dtype=torch.float64))
    even = game([[0.5, 0.5], [0.5, 0.5]])
    assert even.exploitability(even.nash()) == 0.0


@pytest.mark.parametrize("good,bad", [(3, 2), (5, 1)])
def test_circles(good: int, bad: int) -> None:
    g = circles(4, 1, good, bad)
    assert g.exploitability(g.nash()) == pytest.approx(0.0, abs=1e-8)
    # a bad answer loses to every good one, so a minimax winner never gives it; every pure answer loses to something
    assert int((g.nash() > 1e-6).sum(-1).max()) <= good
    pure_PNN = torch.eye(g.N).expand(4, -1, -1)
    assert all(g.exploitability(pure_PNN[:, a]) >= 0.1 - 1e-9 for a in range(g.N))


def test_regularised_nash_is_its_own_best_answer() -> None:
    # pi = ref exp(P(. > pi) / tau) / Z, written out; the reference has favourites
    g = circles(2, 0)
    ref_PN = chances(g.start(1.0, 3))
    for tau in (0.1, 0.5):
        pi_PN = g.regularised_nash(ref_PN, tau)
        again_PN = torch.softmax(ref_PN.log() + g.wins(pi_PN) / tau, -1)
        torch.testing.assert_close(again_PN, pi_PN, atol=1e-6, rtol=0)
    assert g.exploitability(g.regularised_nash(ref_PN, 0.02)) < g.exploitability(g.regularised_nash(ref_PN, 0.5))


def test_judges() -> None:
    g = game([[0.5, 0.9, 0.4], [0.1, 0.5, 0.7], [0.6, 0.3, 0.5]])
    assert g.judge([row(0)] * 2, ["a", "c"], ["b", "a"]) == pytest.approx([0.9, 0.6])
    labels = g.labels(0)
    said = labels([row(0)] * 4000, ["a"] * 4000, ["b"] * 4000)
    assert set(said) == {0.0, 1.0} and abs(sum(said) / 4000 - 0.9) < 0.02  # sd .0047
    assert said != labels([row(0)] * 4000, ["a"] * 4000, ["b"] * 4000)  # a second asking is drawn anew
    assert said == g.labels(0)([row(0)] * 4000, ["a"] * 4000, ["b"] * 4000)


def test_a_matrix_that_is_no_preference() -> None:
    with pytest.raises(UserError, match="add up to 1"):
        game([[0.5, 0.9], [0.9, 0.5]])


def test_bradley_terry_finds_the_ladder_and_flattens_an_even_circle() -> None:
    # sigmoid(s_a - s_b) = P exactly on a ladder, so gaps are the log-odds; an even circle has no gaps to find
    g = ladder(1, 3, seed=2)
    s_N = bradley_terry(g, torch.full((1, 3), 1 / 3))[0]
    assert float(s_N[0] - s_N[1]) == pytest.approx(float(torch.logit(g.win_PNN[0, 0, 1])), abs=1e-6)
    even = game([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])
    torch.testing.assert_close(bradley_terry(even, torch.full((1, 3), 1 / 3))[0].tolist(), [0.0] * 3)
