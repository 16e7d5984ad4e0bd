"""The base of scorers: verdicts written, failures masked and counted, in one place; scorers by name, and in sums."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.school import school
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import (
    BaseScorer,
    Prescored,
    Scorer,
    TextBase,
    TextScorer,
    Verdict,
    aside,
    texts_of,
)
from posttrain.rewards.runtime.timeout_pool import Failure
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.systems.policy_gradient.rlmt import AnswerOnly
from posttrain.systems.policy_gradient.writing_zero import Bootstrapped
from posttrain.systems.reward_shaping_safety.hc_rlhf import Costed

ASK = Prompt.text("q", "which?", "bb")
ENV = school("arithmetic", level=1, think=False)


def group(*texts: str) -> Group:
    one, T = torch.zeros(1), torch.tensor([0])
    return Group(ASK, [Rollout.single(ASK, T, T, one, one > -1, text, index=i) for i, text in enumerate(texts)])


def rewards(g: Group) -> list[float | None]:
    return [r.reward for r in g.rollouts]


class Length(TextBase):
    """The number of letters; "x" cannot be scored."""

    name, reported = "letters", ("letters",)

    def values(self, prompts, texts):  # type: ignore[no-untyped-def]
        return [math.inf if t == "x" else float(len(t)) for t in texts]


class Plus(BaseScorer):
    """Adds 10 to an inner scorer's outcome, on tokens too."""

    reported = ("ten",)

    def __init__(self, inner: Scorer) -> None:
        self.inner = inner

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        made = [r for g in groups for r in g.rollouts]
        return [Verdict((r.reward or 0.0) + 10, {"ten": 10.0}, torch.full((len(r),), 0.5)) for r in made]


def test_what_is_not_finite_is_masked_and_counted() -> None:
    """Lengths 1, 2 and a failure: the mean is over two of them."""
    g = group("a", "bb", "x")
    report = Length().score([g])
    assert rewards(g)[:2] == [1.0, 2.0] and g.rollouts[2].failed
    assert (report.n, report.masked, report.rewards[0].failed, report.rewards[0].mean) == (3, 1, 1, 1.5)
    assert report.why == "letters failed on 1 of 3 (returned inf, expected a finite number)" and report.all_failed == []
    assert Length().score([group("x")]).all_failed == ["letters"]


def test_texts_are_scored_as_answers_are() -> None:
    found, report = Length().texts([ASK, ASK], ["bbb", "x"])
    assert found[0] == 3.0 and math.isnan(found[1]) and report.masked == 1


def test_a_scorer_around_another_adds_to_its_outcome() -> None:
    g = group("a", "bb", "x")
    report = Plus(Length()).score([g])
    assert rewards(g)[:2] == [11.0, 12.0] and g.rollouts[2].failed  # nan + 10 is nan: still masked
    assert g.rollouts[1].rewards == {"letters": 2.0, "ten": 10.0} and g.rollouts[1].stream("reward").tolist() == [0.5]
    assert [r.name for r in report.rewards] == ["letters", "ten"] and report.masked == 1


def test_asking_aside_leaves_no_trace() -> None:
    g = group("a", "x")
    g.rollouts[0].reward, g.rollouts[0].rewards = 7.0, {"kept": 7.0}
    found = aside(Plus(Length()), [g])
    assert found[0] == 11.0 or found[0] == 11  # 1 + 10
    assert isinstance(found[1], Failure) and "finite" in found[1].error
    assert (
        g.rollouts[0].reward == 7.0
        and g.rollouts[0].rewards == {"kept": 7.0}
        and g.rollouts[0].stream("reward") is None
    )
    assert g.rollouts[1].reward is None


def test_a_scorer_within_a_sum() -> None:
    """2 * length + 1 for the right letters: a 2, bb 4 + 1; x fails there and is masked."""
    g = group("a", "bb", "x")
    report = RewardSum([("letters", Length(), 2.0), ("right", lambda prompt, text: float(text == "bb"), 1.0)]).score(
        [g]
    )
    assert rewards(g)[:2] == [2.0, 5.0] and g.rollouts[2].failed
    assert g.rollouts[1].rewards == {"letters": 2.0, "right": 1.0} and report.rewards[0].failed == 1
    assert RewardSum([("letters", Length(), 2.0)]).texts([ASK], ["bbb"])[0] == [6.0]


def test_a_cost_that_fails_masks_its_answer() -> None:
    """Reward 1 for each, cost the length: x has none."""
    g = group("a", "bb", "x")
    report = Costed(RewardSum([("one", lambda prompt, text: 1.0, 1.0)]), Length()).score([g])
    assert rewards(g)[:2] == [1.0, 1.0] and g.rollouts[2].failed and report.masked == 1
    assert [r.rewards["cost"] for r in g.rollouts[:2]] == [1.0, 2.0]
    assert {r.name: r.failed for r in report.rewards} == {"one": 0, "cost": 1}


def test_prescored_changes_nothing() -> None:
    g = group("a", "b")
    g.rollouts[0].reward = 3.0
    assert Prescored().score([g]).n == 2 and rewards(g) == [3.0, None]


def test_every_scorer_is_registered_with_a_card() -> None:
    found = {p.name: p for p in parts("scorer")}
    assert {"win-rate", "bootstrapped", "answer-only", "costed", "critiqued", "fine-grained", "implicit"} <= set(found)
    assert {"process-model", "prompted", "referenced", "reward-model", "learned-reward"} <= set(found)
    for part in found.values():
        assert (
            issubclass(part.fn, BaseScorer)
            and part.card.doc
            and part.card.file.startswith(("posttrain/rewards/", "posttrain/systems/"))
        )  # type: ignore[arg-type]
    assert find("win_rate", "scorer").fn is WinRate


def test_protocols() -> None:
    assert isinstance(Length(), TextScorer) and isinstance(Prescored(), Scorer)
    assert not isinstance(Prescored(), TextScorer)
    with pytest.raises(UserError, match="cannot score a text alone"):
        texts_of(WinRate(lambda p, a, b: []), [ASK], ["a"])


# ---- on the command line


@pytest.fixture
def judge(tmp_path: Path) -> str:
    file = tmp_path / f"judge_{tmp_path.name}.py"
    file.write_text("def prefer(prompt, a, b):\n    return float(len(a) > len(b))\n")
    return f"{file}:prefer"


def test_a_win_rate_by_name(judge: str) -> None:
    """Of a, bb, ccc the longer one wins: 0, 1/2 and 1 of the others."""
    scorer = build_scorer(f"win_rate(judge='{judge}', orders='as given')", ENV)
    assert isinstance(scorer, WinRate) and scorer.orders == "as given"
    g = group("a", "bb", "ccc")
    scorer.score([g])
    assert rewards(g) == [0.0, 0.5, 1.0]


def test_a_judge_in_a_file_is_timed_told_and_masked_where_it_fails(tmp_path: Path, capsys: Any) -> None:
    """A pair that it raises on or is late for cannot be said, which is told once, and ends no run."""
    file = tmp_path / f"judge_{tmp_path.name}.py"
    body = "    if a == 'bad': raise KeyError('no \\x1b bad')\n    if a == 'slow': time.sleep(60)\n    return float(len(a) > len(b))\n"
    file.write_text(f"import time\n\ndef prefer_{tmp_path.name}(prompt, a, b):\n{body}")
    spec = f"win_rate(judge='{file}:prefer_{tmp_path.name}', orders='as given')"
    scorer = build_scorer(spec, ENV, timeout=0.2)
    assert capsys.readouterr().err == ""
    g = group("bad", "bb")
    assert scorer.score([g]).masked == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "what it cannot say is masked: ValueError: KeyError: " in told and "\x1b" not in told
    began = time.monotonic()
    assert scorer.score([group("slow", "bb")]).masked == 2 and time.monotonic() - began < 20
    g = group("a", "bb", "ccc")
    scorer.score([g])
    assert rewards(g) == [0.0, 0.5, 1.0]


def test_a_reward_as_a_judge_and_a_scorer_in_a_sum() -> None:
    """numeric is 1 for the right number: P = sigmoid(1) against a wrong one; the sum adds the grade itself."""
    prompt = ENV.prompt(0)
    right = str(prompt.answer)
    texts = (right, str(int(right) + 1))
    one, T = torch.zeros(1), torch.tensor([0])
    g = Group(prompt, [Rollout.single(prompt, T, T, one, one > -1, text) for text in texts])
    build_scorer("task + 0.5*win_rate(judge='numeric')", ENV).score([g])
    p = 1 / (1 + math.exp(-1))
    assert rewards(g) == pytest.approx([1 + 0.5 * p, 0.5 * (1 - p)])


def test_other_scorers_by_name(judge: str) -> None:
    only = build_scorer("answer_only(reward='task')", ENV)
    prompt = ENV.prompt(0)
    one, T = torch.zeros(1), torch.tensor([0])
    text = f"<think>hm</think>{prompt.answer}"
    g = Group(prompt, [Rollout.single(prompt, T, T, one, one > -1, text)])
    assert isinstance(only, AnswerOnly) and only.score([g]).masked == 0 and rewards(g) == [1.0]
    assert isinstance(build_scorer(f"bootstrapped(judge='{judge}', seed=3)", ENV), Bootstrapped)
    assert isinstance(build_scorer("costed(reward='task', cost='length')", ENV), Costed)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("win_rate", r"needs judge; write win-rate\(judge='mine.py:prefer'\)"),
        ("win_rate(jugde='numeric')", "no parameter 'jugde'; did you mean 'judge'"),
        ("win_rate(judge='numeric', others=3)", "no parameter 'others'"),
        (
            "fine_grained",
            r"live parts of a run \(models, decode\), so a plan builds it .* posttrain show scorer/fine-grained",
        ),
        ("referenced(m=2)", "live parts of a run"),
        ("win_raet(judge='numeric')", "did you mean 'win-rate'"),
        ("win_rate(judge=\"win_rate(judge='numeric')\")", "WinRate .* cannot score a text alone"),
    ],
)
def test_what_cannot_be_named_says_so(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_scorer(spec, ENV).score([group("a", "b")])
