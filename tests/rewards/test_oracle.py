"""The judge of known faults does what it says, fault by fault."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.scorers.judging import Criterion, Example
from posttrain.rewards.scorers.oracle import Oracle
from posttrain.rewards.scorers.pairwise import compare

P = Prompt.text("p", "?")
WORTH = {"bad": -1.0, "fair": 0.0, "good": 1.0, "so very good": 1.0}


def worth(prompts: list[Prompt], texts: list[str]) -> list[float]:
    return [WORTH[t] for t in texts]


def many(n: int) -> list[Prompt]:
    return [Prompt.text(f"p{i}", "?") for i in range(n)]


def test_points_are_whole_and_on_the_scale() -> None:
    # 1 + 4 sigmoid(-1) = 2.08, 1 + 4 / 2 = 3, 1 + 4 sigmoid(1) = 3.92
    found = Oracle(worth).points([P] * 3, ["bad", "fair", "good"], Criterion(low=1, high=5))
    assert found == [2.0, 3.0, 4.0]


def test_the_chance_of_winning_with_flips_length_and_place() -> None:
    match = ([P], ["good"], ["fair"])
    assert Oracle(worth).prefer(*match) == pytest.approx([1 / (1 + math.exp(-1))])
    # flip 1/4: 1/4 + 1/2 sigmoid(1)
    assert Oracle(worth, flip=0.25).prefer(*match) == pytest.approx([0.25 + 0.5 / (1 + math.exp(-1))])
    # three words to one, at 5 for ten words: 0 + 1.5 - 0.5 = 1
    longer = Oracle(worth, longer=5.0).prefer([P], ["so very good"], ["good"])
    assert longer == pytest.approx([1 / (1 + math.exp(-1))])
    # a liking for the first place of 2: sigmoid(1 + 2) and, the other way round, sigmoid(-1 + 2); both orders: 0.731 + 0.222 / 2
    placed = Oracle(worth, first=2.0)
    one, other = (1 / (1 + math.exp(-x)) for x in (3.0, 1.0))
    assert placed.prefer(*match) == pytest.approx([one]) and placed.prefer([P], ["fair"], ["good"]) == pytest.approx(
        [other]
    )
    assert compare(placed, [(P, "good", "fair")]) == pytest.approx([(one + 1 - other) / 2])
    assert Oracle(worth, temperature=0.5).prefer(*match) == pytest.approx([1 / (1 + math.exp(-2))])


def test_who_decides_is_wrong_as_often_as_it_says() -> None:
    judge = Oracle(worth, flip=0.2, temperature=0.01, decided=True)
    said = judge.prefer(many(2000), ["good"] * 2000, ["bad"] * 2000)
    assert set(said) == {0.0, 1.0} and fmean(said) == pytest.approx(0.8, abs=0.03)
    assert judge.prefer(many(5), ["good"] * 5, ["bad"] * 5) == said[:5], "by the question alone"


def test_answers_that_are_shown_together_share_the_bias_of_the_question() -> None:
    judge, scale = Oracle(worth, shared=1.0), Criterion(low=0, high=10_000)
    prompts = many(400)

    def gap(a: float, b: float) -> float:
        return math.log(a / (10_000 - a)) - math.log(b / (10_000 - b))

    both = [gap(*row) for row in judge.together([(p, ["good", "bad"]) for p in prompts], scale)]
    assert judge.calls == 400
    single = [gap(*judge.points([p, p], ["good", "bad"], scale)) for p in prompts]
    # alone each has its own: the gap of 2 has the standard deviation sqrt 2; together it is exact up to rounding
    assert pstdev(both) < 0.01 and fmean(both) == pytest.approx(2, abs=0.01)
    assert pstdev(single) == pytest.approx(math.sqrt(2), abs=0.15) and judge.calls == 1200


def test_noise_belongs_to_the_answer_and_the_aspect() -> None:
    judge = Oracle(worth, noise=1.0, seed=3)
    one = judge.seen([P], ["fair"], Criterion(aspect="help"))
    assert (
        one == judge.seen([P], ["fair"], Criterion(aspect="help")) != judge.seen([P], ["fair"], Criterion(aspect="x"))
    )
    drawn = judge.seen(many(2000), ["fair"] * 2000, Criterion())
    assert pstdev(drawn) == pytest.approx(1.0, abs=0.06) and fmean(drawn) == pytest.approx(0.0, abs=0.08)


def test_rankings_and_their_flips() -> None:
    cases = [(p, ["fair", "good", "bad"]) for p in many(1000)]
    assert set(Oracle(worth).rank(cases)) == {(1, 0, 2)}
    # the best stays first unless the first exchange is made
    found = Oracle(worth, flip=0.1).rank(cases)
    assert fmean(r[0] == 1 for r in found) == pytest.approx(0.9, abs=0.03)


def test_examples_teach_as_far_as_they_are_right() -> None:
    judge = Oracle(worth, noise=1.0, taught=0.8)
    right, wrong = Example(P, ("good", "fair", "bad")), Example(P, ("bad", "fair", "good"))
    half = Example(P, ("good", "bad", "fair"))  # two of its three pairs are right: 2 * 2/3 - 1 = 1/3
    assert [judge.quality(some) for some in ([], [right], [wrong], [half])] == pytest.approx([0, 1, 0, 1 / 3])
    plain = judge.seen([P], ["fair"], Criterion())[0]
    # 1 - 0.8 of the noise is left
    assert judge.seen([P], ["fair"], Criterion(examples=(right,))) == pytest.approx([0.2 * plain])


def test_it_is_a_reward_too_and_counts_its_questions() -> None:
    judge = Oracle(worth)
    assert judge.texts([P], ["good"])[0] == [1.0] and judge.counts() == {"judge_calls": 0.0}
    judge.points([P], ["good"])
    assert judge.counts() == {"judge_calls": 1.0}


def test_mistakes() -> None:
    with pytest.raises(UserError, match="flip is from 0 to"):
        Oracle(worth, flip=0.6)
