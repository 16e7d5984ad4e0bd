"""OREAL by hand: the token-level reward model's loss, and the credit it weighs."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.systems.policy_gradient.oreal import one_of_each, token_outcome, token_worth
from posttrain.systems.policy_gradient.oreal import token_weighted as oreal
from tests.losses.table import slopes

VALUE = [[9.0, 0.8, -0.4], [9.0, 1.5, 7.0], [9.0, 7.0, 7.0]]  # the first value of an answer has seen no token: not read
LENGTH = [3, 2, 1]


def batch(reward: list[float], value: list[list[float]] = VALUE) -> Batch:
    """Answers of 3, 2 and 1 tokens."""
    value_BT = torch.tensor(value, dtype=torch.float64)
    mask_BT = (torch.arange(3) < torch.tensor(LENGTH).unsqueeze(-1)).double()
    reward_BT = torch.zeros_like(value_BT)
    reward_BT[torch.arange(3), torch.tensor(LENGTH) - 1] = torch.tensor(reward, dtype=torch.float64)
    return Batch(
        logp_BT=torch.zeros_like(mask_BT), mask_BT=mask_BT, reward_BT=reward_BT, value_BT=value_BT, old_value_BT=value_BT,
        group_B=torch.zeros(3, dtype=torch.long),
    )  # fmt: skip


def test_a_token_is_worth_the_value_it_leads_to() -> None:
    w_BT, has_BT = token_worth(batch([1, 0, 0]), torch.tensor(VALUE))
    assert has_BT.tolist() == [[True, True, False], [True, False, False], [False, False, False]]
    assert w_BT[has_BT].tolist() == pytest.approx([0.8, -0.4, 1.5])


@pytest.mark.derived("term/token-outcome")
def test_outcomes_teach_tokens() -> None:
    # row 0 is right, mean (.8 - .4) / 2 = .2: -log sigma(.2) = log(1 + e^-.2) = .598139
    # row 1 is wrong, mean 1.5: log(1 + e^1.5) = 1.701413; row 2 has no state behind its token: 0
    b = batch([1.0, 0.0, 1.0])
    live = b["value_BT"].clone().requires_grad_()
    loss_BT = token_outcome(b.but(value_BT=live))
    expected = [[0.598139] * 3, [1.701413, 1.701413, 0.0], [0.0] * 3]
    torch.testing.assert_close(loss_BT.detach(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)

    def by_hand(rows: list[list[float]]) -> float:
        return 3 * math.log(1 + math.exp(-(rows[0][1] + rows[0][2]) / 2)) + 2 * math.log(1 + math.exp(rows[1][1]))

    loss_BT.sum().backward()
    torch.testing.assert_close(live.grad, torch.tensor(slopes(by_hand, VALUE), dtype=torch.float64), atol=1e-6, rtol=0)
    assert live.grad[0, 1] < 0 < live.grad[1, 1]  # up where right, down where wrong


@pytest.mark.derived("advantage/oreal")
def test_credit() -> None:
    # outcomes 1, 0, 1. Row 1 is wrong: the others' mean is 1, so RLOO gives -1, times .5
    # omega+ of row 0: 2 sigma(.8) - 1 = tanh(.4) = .379949; w = -.4 speaks against it: 0; the last token 1
    # omega- of row 1: 1 - 2 sigma(1.5) < 0: 0; the last token 1
    got = oreal(batch([1.0, 0.0, 1.0]))
    expected = torch.tensor([[math.tanh(0.4), 0.0, 1.0], [0.0, -0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(got, expected)
    # were row 1's token judged bad (w = -1.5), it would be blamed: -.5 tanh(.75)
    other = oreal(batch([1.0, 0.0, 1.0], [VALUE[0], [9.0, -1.5, 7.0], VALUE[2]]))
    assert float(other[1, 0]) == pytest.approx(-0.5 * math.tanh(0.75))


@pytest.mark.derived("advantage/oreal")
def test_credit_without_token_weights() -> None:
    # outcomes 1, 0, 0: the wrong ones' others have mean 1/2
    got = oreal(batch([1.0, 0.0, 0.0]), weigh=False, negative=0.8)
    assert got.tolist() == [[1.0, 1.0, 1.0], [-0.4, -0.4, 0.0], [-0.4, 0.0, 0.0]]


def answers(*rewards: float) -> Group:
    prompt = Prompt.text("p", "?")
    one = torch.ones(1)
    return Group(
        prompt, [Rollout.single(prompt, one, one, one, one.bool(), reward=r, index=i) for i, r in enumerate(rewards)]
    )


@pytest.mark.derived("select/one-of-each")
def test_one_right_and_one_wrong_are_kept_with_what_their_whole_group_said() -> None:
    # 1 of 4 right: the right one is 1 - 0 above the others; the first wrong one 0 - 1/3 (the failed one does not count)
    mixed = answers(math.nan, 0.0, 0.0, 1.0, 0.0)
    (kept,) = one_of_each([mixed, answers(1.0, 1.0), answers(0.0, 0.0)])
    assert [r.index for r in kept.rollouts] == [3, 1]
    assert [r.rewards["leave_one_out"] for r in kept.rollouts] == pytest.approx([1.0, -1 / 3])
    assert all(not r.rewards for r in mixed.rollouts)  # the input is left alone
    # graded answers: midway between .1 and .3 is .2; a bar of .5 finds no right one
    graded = answers(0.1, 0.25, 0.3)
    assert [r.index for r in one_of_each([graded])[0].rollouts] == [1, 0]
    assert one_of_each([graded], bar=0.5) == [] and one_of_each([Group(graded.prompt, [])]) == []


def test_blame_is_the_whole_groups_where_only_two_were_kept() -> None:
    # row 1 is blamed -.5 (1/3), not -.5 times the 1 that the two kept would give; right answers stay at 1
    b = batch([1.0, 0.0, 1.0]).but(**{"reward:leave_one_out_B": torch.tensor([1.0, -1 / 3, 1.0])})
    got = oreal(b, weigh=False)
    expected = torch.tensor([[1.0, 1.0, 1.0], [-1 / 6, -1 / 6, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
