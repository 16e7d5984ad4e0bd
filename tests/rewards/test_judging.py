"""One protocol for all judges: functions, rewards, models in words, an oracle; each answers all four questions."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.timeout_pool import Failure
from posttrain.rewards.scorers.judge import Judge
from posttrain.rewards.scorers.judging import (
    Criterion,
    Example,
    FunctionJudge,
    ScoreJudge,
    best_first,
    drawn_order,
    is_judge,
)
from posttrain.rewards.scorers.pairwise import compare
from posttrain.rewards.scorers.spec import Build, judge_of
from posttrain.rewards.scorers.wording import example, read_ranking, read_score, read_scores
from tests.openai_server import Fake

P, Q = Prompt.text("p", "Thank Mia.", "thanks"), Prompt.text("q", "Greet Bob.")
CASES = [(P, ["a", "bbb", "cc"]), (Q, ["dd", "d"])]


# ---- functions


def test_a_judge_of_pairs_ranks_and_gives_points_by_the_share_of_others_that_are_beaten() -> None:
    judge = FunctionJudge(lambda prompt, a, b: float(len(a) > len(b)))
    # a loses twice, bbb wins twice, cc wins once of two; from 1 to 5: 1, 5, 3
    assert judge.together(CASES, Criterion(low=1, high=5)) == [[1, 5, 3], [5, 1]]
    assert judge.rank(CASES) == [(1, 2, 0), (0, 1)]
    assert judge.calls == 2 * (3 + 1) * 2, "every two are compared in both orders, for the points and for the ranking"
    with pytest.raises(UserError, match="gives no points to one"):
        judge.points([P], ["a"])


def test_a_judge_of_several_is_asked_once_for_each_prompt() -> None:
    heard: list[Any] = []

    def judge(prompt: Prompt, texts: list[str], aspect: str, demonstrations: list[Any]) -> list[float]:
        heard.append((prompt.id, tuple(texts), aspect, demonstrations))
        return [len(t) for t in texts]

    asked = FunctionJudge(judge)
    shown = (Example(Q, ("x", "y")),)
    assert asked.together(CASES, Criterion(aspect="length", examples=shown)) == [[1, 3, 2], [2, 1]]
    assert asked.calls == 2 and heard[0][:3] == ("p", ("a", "bbb", "cc"), "length")
    assert heard[0][3] == [{"prompt": Q, "ranked": ["x", "y"]}]
    assert asked.points([P, P], ["aa", "b"]) == [2, 1] and asked.rank(CASES) == [(1, 2, 0), (0, 1)]
    # sigmoid(2 - 1)
    assert asked.prefer([P], ["aa"], ["b"]) == pytest.approx([1 / (1 + math.exp(-1))])


def test_a_function_that_fails_could_not_say_and_is_told_once(capsys: Any) -> None:
    def judge(prompt: Prompt, texts: list[str]) -> list[float]:
        return [1.0] if prompt.id == "p" else [float(len(t)) for t in texts]

    found = FunctionJudge(judge).together(CASES)
    assert all(math.isnan(x) for x in found[0]) and found[1] == [2, 1]
    assert FunctionJudge(judge).rank(CASES)[0] == ()
    assert "a list of as many finite numbers" in capsys.readouterr().err


def test_an_infinite_number_is_none(capsys: Any) -> None:
    """In each of the three forms: it would stand above all others, and its difference from another is no number."""

    def one(prompt: Prompt, text: str, aspect: str) -> float:
        return math.inf if text == "a" else 1.0

    def several(prompt: Prompt, texts: list[str]) -> list[float]:
        return [one(prompt, t, "") for t in texts]

    def pair(prompt: Prompt, a: str, b: str) -> float:
        return -math.inf

    points = FunctionJudge(one).points([P, P], ["a", "b"])
    assert math.isnan(points[0]) and points[1] == 1.0
    assert all(math.isnan(x) for x in FunctionJudge(several).together([(P, ["a", "b"])])[0])
    assert math.isnan(FunctionJudge(pair).prefer([P], ["a"], ["b"])[0])
    assert "finite numbers" in capsys.readouterr().err


def test_the_gold_answer_is_seen_only_where_it_may_be() -> None:
    seen: list[Any] = []

    def judge(prompt: Prompt, text: str, aspect: str, reference: Any) -> float:
        seen.append((aspect, reference))
        return 1.0

    FunctionJudge(judge).points([P, P], ["a", "b"], Criterion(aspect="right", reference=True))
    FunctionJudge(judge).points([P], ["a"])
    assert seen == [("right", "thanks"), ("right", "thanks"), ("", None)]


def test_what_is_a_judge() -> None:
    assert is_judge(lambda prompt, a, b: 0.5) and is_judge(lambda prompt, texts: []) and is_judge(ScoreJudge(None))  # type: ignore[arg-type]
    assert is_judge(lambda prompt, text, aspect: 0.5)
    assert not is_judge(lambda prompts, texts: []), "a reward of many answers, to as many prompts"
    assert (
        not is_judge(lambda: 0.5) and not is_judge(lambda prompt, text: 0.5) and not is_judge(3) and not is_judge(print)
    )


def test_a_reward_judges_by_its_own_numbers() -> None:
    judge = ScoreJudge(RewardSum([("length", lambda prompt, text: float(len(text)), 1.0)]), k=2.0)
    assert judge.points([P, P], ["a", "bbb"]) == [1, 3] and judge.together(CASES)[0] == [1, 3, 2] and judge.calls == 7
    assert compare(judge, [(P, "aa", "b")]) == pytest.approx([1 / (1 + math.exp(-2))])
    assert judge.taken() == judge.calls and judge.taken() == 0


# ---- in words


def parts(body: dict[str, Any]) -> list[str]:
    said = body["messages"][-1]["content"]
    return re.findall(r"<answer_\d>\n(.*?)\n</answer_\d>", said.rpartition("<conversation>")[2], re.DOTALL)


def test_several_answers_are_shown_once_in_a_drawn_order_and_each_gets_its_own_points() -> None:
    def by_length(body: dict[str, Any]) -> str:
        return json.dumps({"scores": [len(t) for t in parts(body)]})

    with (fake := Fake(by_length)).listening() as url:
        judge = Judge(url, cache="none")
        cases = [(Prompt.text(f"p{i}", f"{i}?"), ["a", "bb", "ccc", "dddd"]) for i in range(12)]
        assert judge.together(cases, Criterion("Is it long?", low=1, high=5)) == [[1, 2, 3, 4]] * 12
    orders = {tuple(parts(body)) for body in fake.asked}
    assert len(fake.asked) == 12 == judge.calls and len(orders) > 4
    assert "from 1 (worst) to 5 (best)" in fake.asked[0]["messages"][0]["content"]
    assert "Is it long?" in fake.asked[0]["messages"][0]["content"]


def test_a_ranking_is_turned_back_into_the_answers_places() -> None:
    def longest_first(body: dict[str, Any]) -> str:
        shown = parts(body)
        order = sorted(range(len(shown)), key=lambda i: -len(shown[i]))
        return json.dumps({"ranking": [i + 1 for i in order]})

    with Fake(longest_first).listening() as url:
        cases = [(Prompt.text(f"p{i}", "?"), ["a", "ccc", "bb"]) for i in range(6)]
        assert Judge(url, cache="none").rank(cases) == [(1, 2, 0)] * 6


def test_examples_stand_before_the_question_with_their_right_ranking() -> None:
    shown = Example(Q, ("best", "good", "bad"))
    told = example(shown)
    texts = dict(re.findall(r"<answer_(\d)>\n(.*?)\n</answer_\d>", told, re.DOTALL))
    (ranking,) = re.findall(r'\{"ranking": (\[.*?\])\}', told)
    assert [texts[str(i)] for i in json.loads(ranking)] == ["best", "good", "bad"]
    with (fake := Fake(lambda body: "[[1]]")).listening() as url:
        Judge(url, cache="none").rank([(P, ["a", "b"])], Criterion(examples=(shown,)))
    said = fake.asked[0]["messages"][-1]["content"]
    assert said.index("<example>") < said.rindex("<conversation>") < said.rindex("<answer_1>")


def test_what_cannot_be_read_is_asked_for_again_and_warm() -> None:
    with (fake := Fake(lambda body: "well" if body["temperature"] == 0 else "Score: 4")).listening() as url:
        assert math.isnan(Judge(url, cache="none").points([P], ["a"])[0]) and len(fake.asked) == 1
        judge = Judge(url, cache="none", again=2)
        assert judge.points([P], ["a"]) == [4.0] and [b["temperature"] for b in fake.asked[1:]] == [0.0, 1.0]
        assert judge.calls == 1


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"scores": [4, 2.5]}', [4.0, 2.5]),
        ("Text 1\nRating: 4\nRationale: 3 errors\n\nText 2\nRating: 2", [4.0, 2.0]),
        ('{"scores": [4]}', None),
        ('{"scores": [4, 11]}', None),
        ('{"scores": [4, true]}', None),
        ("both fine", None),
    ],
)
def test_scores_in_words(said: str, found: list[float] | None) -> None:
    got = read_scores(said, 2, Criterion())
    assert isinstance(got, Failure) if found is None else got == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"ranking": [2, 3, 1]}', [1, 2, 0]),
        ('{"ranking": ["2", "3", "1"]}', [1, 2, 0]),
        ("I think\n3 > 1 > 2", [2, 0, 1]),
        ('{"ranking": [1, 1, 2]}', None),
        ('{"ranking": [1, 2]}', None),
        ("The first.", None),
    ],
)
def test_rankings_in_words(said: str, found: list[int] | None) -> None:
    got = read_ranking(said, 3)
    assert isinstance(got, Failure) if found is None else got == found


def test_equals_stand_in_an_order_that_is_drawn() -> None:
    orders = [best_first([1.0, 2.0, 1.0], f"p{i}") for i in range(20)]
    assert {o[0] for o in orders} == {1} and {o[1:] for o in orders} == {(0, 2), (2, 0)}
    assert orders == [best_first([1.0, 2.0, 1.0], f"p{i}") for i in range(20)]


def test_each_time_that_something_is_asked_again_is_another_question(tmp_path: Path) -> None:
    """The second and the third time the request is the same, warm; what is kept of the second is not the third's answer."""
    said = iter(["well", "hm", "Score: 4"])
    with (fake := Fake(lambda body: next(said))).listening() as url:
        assert Judge(url, cache=str(tmp_path), again=2).points([P], ["a"]) == [4.0] and len(fake.asked) == 3


def test_what_one_server_said_is_not_what_another_says(tmp_path: Path) -> None:
    for point in (3, 5):
        with Fake(lambda body, point=point: f"Score: {point}").listening() as url:
            assert Judge(url, cache=str(tmp_path)).points([P], ["a"]) == [point]


def test_points_below_the_scale_are_none() -> None:
    assert isinstance(read_score("Score: -1", Criterion()), Failure) and read_score("Score: 0", Criterion()) == 0.0


def test_an_order_is_a_function_of_what_is_shown() -> None:
    assert drawn_order(P, ["a", "b", "c"], "x") == drawn_order(P, ["a", "b", "c"], "x")
    assert len({tuple(drawn_order(P, ["a", "b", "c"], i)) for i in range(40)}) == 6


# ---- by name


def test_judges_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine_judges.py"
    file.write_text(
        "def prefer(prompt, a, b):\n    return float(len(a) > len(b))\n\n"
        "def several(prompt, texts):\n    return [len(t) for t in texts]\n\n"
        "def one(prompt, text):\n    return float(len(text))\n"
    )
    how = Build(None)  # type: ignore[arg-type]
    for name in ("prefer", "several", "one"):
        assert judge_of(f"{file}:{name}", how).rank(CASES) == [(1, 2, 0), (0, 1)], name
    oracle = judge_of(f"oracle(utility='{file}:one', flip=0.25)", how)
    # 1/4 + 1/2 sigmoid(1)
    assert oracle.prefer([P], ["aa"], ["b"]) == pytest.approx([0.25 + 0.5 / (1 + math.exp(-1))])
    with (fake := Fake(lambda body: json.dumps({"winner": "A"}))).listening() as url:
        assert judge_of(f"judge(url='{url}', cache='none')", how).prefer([P], ["a"], ["b"]) == [1.0]
    assert "<answer_a>" in fake.asked[0]["messages"][-1]["content"]
