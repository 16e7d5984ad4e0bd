"""The generative judge: what it is taught, what it says, and anchors that stand still."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Copy, Do, Phase
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.pairwise import WinRate, compare
from posttrain.rewards.scorers.policy_judge import PolicyJudge, ask, lessons
from posttrain.runs.in_memory import Listed, fit, numbered, row
from posttrain.systems.policy_gradient.pairwise_rl import Anchors

WORDS = ("a", "b")


def by_row(prompt: Prompt, a: str, b: str) -> Prompt:
    return row({"xy": 0, "yx": 1}[a + b])


def judge(*logits: float) -> PolicyJudge:
    """P(first) = sigmoid of each: of (x, y), then of (y, x)."""
    policy = TabularPolicy(2, 1, 2, memory=False)
    with torch.no_grad():
        policy.table[:, 0, 0, 0] = torch.tensor(logits)
    return PolicyJudge(policy, by_row, WORDS)


def test_the_probability_is_between_its_two_words() -> None:
    # log-odds log 9 of "the first" for (x, y): .9; 0 for (y, x): .5
    assert judge(math.log(9), 0.0).prefer([row(0)] * 2, ["x", "y"], ["y", "x"]) == pytest.approx([0.9, 0.5])
    assert judge(0.0, 0.0).prefer([], [], []) == []


def test_answers_that_its_window_has_no_room_for_are_not_judged() -> None:
    asked = judge(math.log(9), 0.0)
    asked.policy.window = 1  # type: ignore[attr-defined]
    assert math.isnan(asked.prefer([row(0)], ["x"], ["y"])[0])


def test_both_orders() -> None:
    # (.9 + 1 - .5) / 2 = .7; a liking for the first place of log 3 on top of log 3: sigmoid(log 9) and sigmoid(0)
    assert compare(judge(math.log(9), 0.0), [(row(0), "x", "y"), (row(0), "y", "x")]) == pytest.approx([0.7, 0.3])


def test_lessons_come_in_both_orders() -> None:
    told = lessons([(Prompt.text("q", "Sum of 1 and 1?"), "2", "3")])
    assert [p.info["demonstration"] for p in told] == ["A", "B"]
    assert [p.last.index("2") < p.last.index("3") for p in told] == [True, False]
    assert told[0].id != told[1].id and ask(Prompt.text("q", "?"), "x", "y").last.count("x") == 1


def test_taught_by_likelihood_it_learns_the_odds() -> None:
    # x is named better 3 times of 4: log-odds log 3 in the first place, -log 3 in the second
    pairs = [(row(0), "x", "y")] * 3 + [(row(0), "y", "x")]
    policy = TabularPolicy(2, 1, 2, memory=False)
    told = [
        row(p.info["row"], i, **{"demonstration": p.info["demonstration"]})
        for i, p in enumerate(lessons(pairs, by_row, WORDS))
    ]
    config = Config(steps=150, prompts=8, lr=0.1, warmup=0, max_norm=100.0)
    fit(policy, sft, Listed(told), config)
    got = PolicyJudge(policy, by_row, WORDS).prefer([row(0)] * 2, ["x", "y"], ["y", "x"])
    assert got == pytest.approx([0.75, 0.25], abs=0.01)


def test_anchors_stand_still() -> None:
    policy = TabularPolicy(3, 4, 5).randomise(0.1, "anchors")
    prompts = [*numbered(2).prompts, row(2, anchor="abab")]
    anchors = Anchors(policy, Sampling(), m=2)
    first = anchors([Group(p, []) for p in prompts])
    policy.randomise(3.0, "moved")
    assert anchors([Group(p, []) for p in reversed(prompts)]) == first[::-1]
    assert [len(x) for x in first] == [2, 2, 1] and first[2] == ["abab"]


def test_reward_against_the_anchor() -> None:
    # the anchor is y: x wins .7 as above, y ties with itself
    (p,) = Listed([row(0, anchor="y")]).prompts
    made = TabularPolicy(1, 1, 25, memory=False)
    group = Group(p, [made.written(p, "x"), made.written(p, "y")])
    WinRate(judge(math.log(9), 0.0), Anchors(made, Sampling())).score([group])
    assert [r.reward for r in group.rollouts] == pytest.approx([0.7, 0.5])


def test_the_plan() -> None:
    with pytest.raises(UserError, match="at least"):
        find("pairwise-rl(own=0)", "plan")()
    copy, label, teach, learn = find("pairwise-rl(beta=0.1)", "plan")().parts
    assert isinstance(copy, Copy) and isinstance(label, Do) and isinstance(teach, Phase) and teach.role == "judge"
    assert learn.reference == copy.to and learn.method.shaping[0].params == {"coef": 0.1}
