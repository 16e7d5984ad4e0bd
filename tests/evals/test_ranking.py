"""Ranking of held-out pairs: by log-probability, by a reward model's score, ties, and none at all."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from posttrain.core.types import Prompt
from posttrain.evals.ranking import ranking


class Table:
    """A policy whose log-probability of an answer is in a table: two tokens, the second a constant -1."""

    score = None

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table

    def written(self, prompt: Prompt, text: str) -> SimpleNamespace:
        return Answer(text)

    def forward(self, rollouts, needs):
        values = torch.tensor([self.table[r.text] for r in rollouts])
        return {"logp_BT": torch.stack((values, torch.full_like(values, -1.0)), 1), "score_B": -values}


class Answer(SimpleNamespace):
    def __init__(self, text: str) -> None:
        super().__init__(text=text, reward=None)

    def __len__(self) -> int:
        return 2


def pair(i: int, chosen: str, rejected: str) -> Prompt:
    return Prompt.text(f"p{i}", "?", None, chosen=chosen, rejected=rejected)


PAIRS = [pair(0, "a", "b"), pair(1, "b", "a"), pair(2, "a", "c"), pair(3, "a", "a2")]
TABLE = {"a": -1.0, "b": -2.0, "c": -3.0, "a2": -1.0}


def test_by_hand() -> None:
    """a > b right, b > a wrong, a > c right, a = a2 half: 2.5 of 4; variance of (1, 0, 1, 1/2) is 11/48."""
    found = ranking(Table(TABLE), PAIRS)
    assert [r.reward for r in found.rollouts] == [1.0, 0.0, 1.0, 0.5]
    assert found.accuracy == pytest.approx(0.625) and found.problems == 4 and found.tokens == 2
    assert found.error == pytest.approx(math.sqrt(11 / 48 / 4))


def test_a_reward_model_is_asked_for_its_score() -> None:
    """The table's score is minus its log-probability, so every verdict but the tie turns round."""
    policy = Table(TABLE)
    policy.score = object()
    assert [r.reward for r in ranking(policy, PAIRS).rollouts] == [0.0, 1.0, 0.0, 0.5]


def test_more_pairs_than_fit_into_one_pass() -> None:
    found = ranking(Table(TABLE), [pair(i, "a", "b") for i in range(70)])
    assert found.problems == 70 and found.accuracy == 1.0 and found.error == 0.0


def test_no_pairs() -> None:
    found = ranking(Table({}), [])
    assert found.problems == 0 and math.isnan(found.accuracy)
