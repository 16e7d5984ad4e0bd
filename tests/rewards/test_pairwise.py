"""Win rates by hand: siblings, pools, ties, failures, and a judge that likes the first place."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.advantages.baseline import baseline
from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.scorers.judging import FunctionJudge, is_judge
from posttrain.rewards.scorers.pairwise import WinRate, by_score, compare, decided

ASK = Prompt.text("q", "which?")


def group(*texts: str, prompt: Prompt = ASK) -> Group:
    one, T = torch.zeros(1), torch.tensor([0])
    return Group(prompt, [Rollout.single(prompt, T, T, one, one > -1, text, index=i) for i, text in enumerate(texts)])


def circle(prompt: Prompt, a: str, b: str) -> float:
    """Scissors beat paper beat rock beat scissors, in 9 of 10."""
    return 0.9 if a + b in ("sp", "pr", "rs") else 0.1


def rewards(g: Group) -> list[float | None]:
    return [r.reward for r in g.rollouts]


def test_siblings_by_hand() -> None:
    # s, p, r, p: s beats both p (.9, .9) and loses to r (.1): 1.9/3; p: loses to s (.1), beats r (.9), ties p: 1.5/3;
    # r: beats s (.9), loses to both p: 1.1/3. The mean is 1/2, as in every group
    g = group("s", "p", "r", "p")
    scorer = WinRate(FunctionJudge(circle), orders="as given")
    report = scorer.score([g])
    assert rewards(g) == pytest.approx([1.9 / 3, 0.5, 1.1 / 3, 0.5])
    assert report.n == 4 and report.rewards[0].mean == pytest.approx(0.5)
    assert scorer.calls == 5  # of six matches one is between equals, and is not asked


def test_both_orders_are_two_questions() -> None:
    scorer = WinRate(FunctionJudge(circle))
    scorer.score([group("s", "p", "r", "p")])
    assert scorer.calls == scorer.judge.calls == 10  # type: ignore[union-attr]


def test_the_groups_mean_as_baseline_is_one_half() -> None:
    g = group("s", "p", "r", "r")
    WinRate(FunctionJudge(circle)).score([g])
    _, batch = assemble([g])
    torch.testing.assert_close(dr_grpo(batch), baseline(batch, c=0.5))


def test_a_pool() -> None:
    # against p and r: s earns (.9 + .1)/2, p (.5 + .9)/2, r (.1 + .5)/2
    g = group("s", "p", "r")
    WinRate(FunctionJudge(circle), others=lambda groups: [["p", "r"] for _ in groups]).score([g])
    assert rewards(g) == pytest.approx([0.5, 0.7, 0.3])


def test_both_orders_cancel_a_liking_for_the_first_place() -> None:
    # P(first) is .2 too high: (.7 + .2) and then 1 - (.3 + .2): (.9 + .5)/2 = .7 again; as given it is .9
    def biased(prompt: Prompt, a: str, b: str) -> float:
        return (0.7 if a < b else 0.3) + 0.2

    match = [(ASK, "a", "b"), (ASK, "b", "a")]
    assert compare(FunctionJudge(biased), match) == pytest.approx([0.7, 0.3])
    assert compare(FunctionJudge(biased), match, "as given") == pytest.approx([0.9, 0.5])


def test_a_drawn_order_cancels_it_on_average() -> None:
    # always for the first place: a drawn order wins half of many matches, and the same half when asked again
    matches = [(Prompt.text(str(i), "?"), "a", "b") for i in range(400)]
    found = compare(FunctionJudge(lambda p, a, b: 1.0), matches, "drawn")
    assert found == compare(FunctionJudge(lambda p, a, b: 1.0), matches, "drawn")
    assert abs(sum(found) / 400 - 0.5) < 0.1 and set(found) == {0.0, 1.0}


def test_drawn_order_gives_back_who_won() -> None:
    matches = [(Prompt.text(str(i), "?"), "s", "p") for i in range(20)]
    assert compare(FunctionJudge(circle), matches, "drawn") == pytest.approx([0.9] * 20)


def test_decided() -> None:
    judge = decided(lambda prompts, a, b: [0.9, 0.46, 0.54, 0.1, math.nan], margin=0.05)
    said = list(judge([ASK] * 5, list("abcde"), list("vwxyz")))
    assert said[:4] == [1.0, 0.5, 0.5, 0.0] and math.isnan(said[4])


def test_a_score_as_judge_asks_each_answer_once() -> None:
    # r = length: sigmoid(2 - 1) and sigmoid(1 - 3)
    asked: list[str] = []

    def texts(prompts, answers):
        asked.extend(answers)
        return [len(t) for t in answers]

    got = by_score(texts)([ASK, ASK], ["aa", "b"], ["b", "ccc"])
    assert got == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))])
    assert sorted(asked) == ["aa", "b", "ccc"]


def test_what_the_judge_cannot_say_does_not_count() -> None:
    # s meets p (.9) and x (nothing): .9; p .1; x has nothing but failures and is masked; a lone answer is worth 1/2
    def judge(prompt: Prompt, a: str, b: str) -> float:
        return math.nan if "x" in (a, b) else circle(prompt, a, b)

    g, alone = group("s", "p", "x"), group("s")
    report = WinRate(FunctionJudge(judge)).score([g, alone])
    assert rewards(g)[:2] == pytest.approx([0.9, 0.1]) and g.rollouts[2].failed
    assert rewards(alone) == [0.5] and report.masked == 1
    # a judge that fails on all it is asked says nothing of equals either: they would be worth 1/2 beside masked ones
    equals = group("s", "s", "x")
    report = WinRate(FunctionJudge(lambda prompt, a, b: math.nan)).score([equals, group("p", "p")])
    assert all(r.failed for r in equals.rollouts) and report.masked == 3, "two equals alone are not asked about: a tie"


def test_errors() -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        compare(lambda prompts, a, b: [1.5] * len(a), [(ASK, "a", "b")])
    with pytest.raises(UserError, match="between 0 and 1"):
        compare(lambda prompts, a, b: [0.5], [(ASK, "a", "b")])
    with pytest.raises(UserError, match="drawn"):
        compare(FunctionJudge(circle), [(ASK, "a", "b")], "drwan")
    assert is_judge(circle) and not is_judge(len) and not is_judge(lambda prompt, text: 0.0) and not is_judge(max)
