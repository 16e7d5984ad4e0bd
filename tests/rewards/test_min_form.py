"""PURE by hand: the soft minimum of step rewards, and its leave-one-out credit."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.advantages.pure import pure
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.score import RewardSum
from posttrain.systems.policy_gradient.pure import StepFunction, min_form
from posttrain.systems.policy_gradient.pure import pure as plan
from tests.runs import tiny_run


def steps(rewards: list[list[float]], lengths: list[int] | None = None, **info) -> Batch:
    reward_BT = torch.tensor(rewards, dtype=torch.float64)
    length_B = torch.tensor(lengths or [reward_BT.shape[1]] * len(rewards))
    mask_BT = (torch.arange(reward_BT.shape[1]) < length_B.unsqueeze(-1)).double()
    group_B = torch.zeros(len(rewards), dtype=torch.long)
    told = {f"reward:{k}_B": torch.tensor(v, dtype=torch.float64) for k, v in info.items()}
    return Batch(logp_BT=torch.zeros_like(mask_BT), mask_BT=mask_BT, reward_BT=reward_BT, group_B=group_B, **told)


def close(got, expected) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.derived("shaping/min-form")
def test_soft_minimum() -> None:
    # r = 1, -1 at T = 1: weights e^-1 and e^1 over their sum: .119203 and .880797; the step of 0 is none
    close(min_form(steps([[1.0, 0.0, -1.0]]), temperature=1.0), [[0.119203, 0.0, -0.880797]])
    # of equal steps each carries its share
    close(min_form(steps([[0.5, 0.5]]), temperature=0.3), [[0.25, 0.25]])


def test_one_step_is_itself_and_a_cold_sum_is_the_minimum() -> None:
    close(min_form(steps([[0.0, 0.7]])), [[0.0, 0.7]])
    rewards = [[0.6, 0.9, -0.3, 0.5], [0.2, 0.8, 0.4, 0.9]]
    close(min_form(steps(rewards), temperature=0.005).sum(-1), [-0.3, 0.2])
    # filler of +0.9 behind a step of .4 changes the sum little: (.4 + .9 e^-5) / (1 + e^-5)
    got = min_form(steps([[0.4, 0.9]])).sum()
    assert float(got) == pytest.approx((0.4 + 0.9 * math.exp(-5)) / (1 + math.exp(-5)))


@pytest.mark.derived("shaping/min-form")
def test_the_outcome_is_no_step() -> None:
    # the last token has .5 of a step and 2 of the outcome; softmin at T = 1 of 1 and .5: e^-1, e^-.5
    a, b = math.exp(-1), math.exp(-0.5)
    batch = steps([[1.0, 2.5]], right=[2.0])
    close(min_form(batch, temperature=1.0, outcome="right"), [[a / (a + b), 0.5 * b / (a + b) + 2]])
    with pytest.raises(UserError, match="more than 0"):
        min_form(batch, temperature=0.0)


@pytest.mark.derived("advantage/pure")
def test_credit() -> None:
    # row 0: 1, 2; row 1 (one token): 4. Per token of others: row 0 sees 4, row 1 sees 1.5
    # row 0: (1 - 4) + (2 - 4), 2 - 4; row 1: 4 - 1.5
    close(pure(steps([[1.0, 2.0], [4.0, 0.0]], [2, 1])), [[-5.0, -2.0], [2.5, 0.0]])


@pytest.mark.derived("advantage/pure")
def test_credit_of_the_outcome_is_leave_one_out() -> None:
    # steps as above, outcomes 1 and 0 on the last tokens: +1 and -1 on every token
    batch = steps([[1.0, 3.0], [4.0, 0.0]], [2, 1], right=[1.0, 0.0])
    close(pure(batch, outcome="right"), [[-4.0, -1.0], [1.5, 0.0]])


def test_the_plan_wants_a_process_reward_model() -> None:
    assert "none is named; give it with --plan.prm" in plan().missing and not plan(prm="train").missing
    (phase,) = plan(prm="mine.py:f").parts
    assert phase.method.advantage.params["outcome"] == phase.method.shaping[0].params["outcome"] == "outcome"
    assert [p.name for p in plan(prm="train").parts] == ["label-steps", "step-model", "pure"]


@pytest.mark.derived("scorer/step-function")
def test_a_function_sees_the_question_and_all_steps_before() -> None:
    """Three lines; the judge pays the number of steps it saw, on the letter that ends each; the outcome is beside them."""
    policy, seen = tiny_run.policy(), []
    r = policy.written(Prompt.text("p", "q"), "a\nbb\nc")

    def judge(prompt: Prompt, steps: list[str]) -> float:
        seen.append((prompt.last, list(steps)))
        return float(len(steps))

    StepFunction(RewardSum([("one", lambda p, t: 1.0, 1.0)]), judge, policy.decode, "line").score(
        [Group(r.prompt, [r])]
    )
    assert seen == [("q", ["a\n"]), ("q", ["a\n", "bb\n"]), ("q", ["a\n", "bb\n", "c"])]
    assert r.stream("reward").tolist() == [0, 1, 0, 0, 2, 3, 0] and r.rewards["outcome"] == r.reward == 1.0
    broken = policy.written(Prompt.text("p", "q"), "a")
    StepFunction(RewardSum([("one", lambda p, t: 1.0, 1.0)]), lambda p, s: 1 / 0, policy.decode).score(
        [Group(r.prompt, [broken])]
    )
    assert broken.failed
