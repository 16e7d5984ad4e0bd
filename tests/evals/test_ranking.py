"""Ranking of held-out pairs, lists and labels: by log-probability, by a reward model's score, ties, and none at all."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from posttrain.core.types import Prompt, Rollout
from posttrain.evals.ranking import ranked_right, ranking


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


class Real(Table):
    """The same with real rollouts, of as many tokens as the text has letters; log-probabilities are spread over them evenly."""

    calls = 0

    def written(self, prompt: Prompt, text: str) -> Rollout:
        n = len(text)
        return Rollout.single(prompt, torch.zeros(1).long(), torch.zeros(n).long(), torch.zeros(n), text=text)

    def forward(self, rollouts, needs):
        self.calls += len(rollouts)
        whole = torch.tensor([self.table[r.text] for r in rollouts])
        return {"logp_BT": whole.unsqueeze(1), "score_B": -whole}


def test_every_two_answers_of_a_list_with_different_scores() -> None:
    """aa (3) > b (2) = cc (2): comparisons aa-b and aa-cc; log-probabilities -1, -2, -0.5: right, wrong. Margins 1 and -1/2."""
    ranked = [{"text": "aa", "score": 3.0}, {"text": "b", "score": 2.0}, {"text": "cc", "score": 2.0}]
    policy = Real({"aa": -1.0, "b": -2.0, "cc": -0.5})
    found = ranked_right(policy, [Prompt.text("l", "?", None, ranked=ranked)], "lists")
    assert [r.reward for r in found.rollouts] == [1.0, 0.0] and found.of == "pairs" and policy.calls == 3
    assert found.margin == pytest.approx(0.25) and [r.prompt.info["rejected"] for r in found.rollouts] == ["b", "cc"]


def labelled(i: int, asked: str, text: str, label: bool) -> Prompt:
    return Prompt.text(f"x{i}", asked, None, response=text, label=label)


def test_good_and_bad_answers_to_one_question_are_a_pair() -> None:
    some = [labelled(0, "q", "a", True), labelled(1, "q", "b", False), labelled(2, "r", "c", False)]
    found = ranked_right(Real(TABLE), some, "labels")
    assert found.of == "pairs" and found.problems == 1 and found.accuracy == 1.0


def test_good_and_bad_answers_to_different_questions_are_told_apart_per_token() -> None:
    """Per token: good aaaa -2/4 = -0.5, good d -3; bad bb -2/2 = -1, bad c -0.5. aaaa: above bb, equal to c: 3/4; d: above none: 0.

    Margin: mean of good -1.75 less mean of bad -0.75.
    """
    policy = Real({"aaaa": -2.0, "d": -3.0, "bb": -2.0, "c": -0.5})
    some = [
        labelled(0, "q", "aaaa", True),
        labelled(1, "r", "bb", False),
        labelled(2, "s", "c", False),
        labelled(3, "t", "d", True),
    ]
    found = ranked_right(policy, some, "labels")
    assert found.of == "good answers" and [r.reward for r in found.rollouts] == [0.75, 0.0] and found.problems == 2
    assert found.accuracy == pytest.approx(0.375) and found.margin == pytest.approx(-1.0)
    assert math.isnan(ranked_right(policy, some[:1], "labels").accuracy)
