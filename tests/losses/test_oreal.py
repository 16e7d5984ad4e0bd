"""OREAL by hand: the token-level reward model's loss, and the credit it weighs."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.losses.aggregate import Totals, token_mean
from posttrain.losses.objective import objective
from posttrain.losses.policy.reinforce import reinforce
from posttrain.runs.in_memory import Listed
from posttrain.systems.policy_gradient.oreal import difficulty_balance, one_of_each, token_outcome
from posttrain.systems.policy_gradient.oreal import token_weighted as oreal

VALUE = [[0.8, -0.4, 0.5], [1.5, -0.7, 9.0], [-0.3, 9.0, 9.0]]  # of the state behind each token; 9 is padding
LENGTH = [3, 2, 1]


def batch(reward: list[float], value: list[list[float]] = VALUE) -> Batch:
    """Answers of 3, 2 and 1 tokens."""
    value_BT = torch.tensor(value, dtype=torch.float64)
    mask_BT = (torch.arange(3) < torch.tensor(LENGTH).unsqueeze(-1)).double()
    reward_BT = torch.zeros_like(value_BT)
    reward_BT[torch.arange(3), torch.tensor(LENGTH) - 1] = torch.tensor(reward, dtype=torch.float64)
    return Batch(
        logp_BT=torch.zeros_like(mask_BT), mask_BT=mask_BT, reward_BT=reward_BT, value_after_BT=value_BT,
        old_value_after_BT=value_BT,
        group_B=torch.zeros(3, dtype=torch.long),
    )  # fmt: skip


@pytest.mark.derived("term/token-outcome")
def test_outcomes_teach_tokens() -> None:
    # row 0 is right, mean (.8 - .4 + .5) / 3 = .3: -log sigma(.3) = log(1 + e^-.3) = .554355
    # row 1 is wrong, mean (1.5 - .7) / 2 = .4: log(1 + e^.4) = .913015; row 2 is right, -.3: log(1 + e^.3) = .854355
    b = batch([1.0, 0.0, 1.0])
    live = b["value_after_BT"].clone().requires_grad_()
    loss_BT = token_outcome(b.but(value_after_BT=live))
    expected = [[0.554355] * 3, [0.913015, 0.913015, 0.0], [0.854355, 0.0, 0.0]]
    torch.testing.assert_close(loss_BT.detach(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    loss_BT.sum().backward()
    # of a token: 3 tokens carry -log sigma(mean), each gets 1/3 of -3 sigma(-.3): -.425557; up where right, down where wrong
    assert live.grad[0].tolist() == pytest.approx([-0.425557] * 3, abs=1e-6)
    assert live.grad[1].tolist() == pytest.approx([0.598688, 0.598688, 0.0], abs=1e-6)


@pytest.mark.derived("term/token-outcome")
def test_every_answer_counts_once_however_long() -> None:
    # the mean over the three answers, (.554355 + .913015 + .854355) / 3, though the method's loss is a mean over tokens
    b = batch([1.0, 0.0, 1.0])
    told = objective(b.but(adv_BT=torch.zeros_like(b.mask_BT)), Totals.of(b), reinforce, token_mean, (token_outcome,))[
        1
    ]
    assert float(told["token-outcome"]) == pytest.approx((0.554355 + 0.913015 + 0.854355) / 3, abs=1e-6)
    with pytest.raises(UserError, match="no way to average token-outcome"):
        objective(b, Totals.of(b), token_outcome.but(per="word"), token_mean, (token_outcome.but(per="word"),))


@pytest.mark.derived("advantage/oreal")
def test_credit() -> None:
    # outcomes 1, 0, 1. Row 1 is wrong: the others' mean is 1, so RLOO gives -1, times .5
    # omega+ of row 0: 2 sigma(.8) - 1 = tanh(.4); w = -.4 speaks against it: 0; the last token tanh(.25), as any other
    # omega- of row 1: w = 1.5 speaks for it: 0; w = -.7: tanh(.35) of the blame. Row 2: w = -.3 of a right answer: 0
    got = oreal(batch([1.0, 0.0, 1.0]))
    expected = [[math.tanh(0.4), 0.0, math.tanh(0.25)], [0.0, -0.5 * math.tanh(0.35), 0.0], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    untrained = oreal(batch([1.0, 0.0, 1.0], [[0.0] * 3] * 3))
    assert not untrained.any(), "a token model that knows nothing gives no token credit, the last one neither"


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


@pytest.mark.derived("prompts/difficulty-balance")
def test_hard_prompts_come_more_often() -> None:
    # pass rates 0, .3, .5, .7, .9: 6, 4, 4, 2 and 0 times in a pass of 16
    rates = [0.0, 0.3, 0.5, 0.7, 0.9]
    sampler = difficulty_balance.live()
    sampler.start(Listed([Prompt.text(f"p{i}", "?", pass_rate=x) for i, x in enumerate(rates)]), 0)
    asked = [p.id for step in range(4) for p in sampler.propose(4, step)]
    assert [sum(a.partition("#")[0] == f"p{i}" for a in asked) for i in range(5)] == [6, 4, 4, 2, 0]
    assert all(len(set(asked[k : k + 4])) == 4 for k in range(0, 16, 4)), "a prompt asked twice in a step answers anew"


def test_without_a_column_the_policys_own_answers_say_how_hard() -> None:
    """One pass of all; then p (right in 1 of 4: four times) and a prompt never right (six times), and it survives a restart."""
    sampler = difficulty_balance.live()
    sampler.start(Listed([Prompt.text("p", "?"), Prompt.text("q", "?")]), 3)
    assert sorted(p.id for p in sampler.propose(2, 0)) == ["p", "q"]
    hard = answers(0.0, 0.0)
    sampler.observe([answers(0.0, 1.0, 0.0, 0.0, math.nan), Group(Prompt.text("q#1", "?"), hard.rollouts)])
    again = difficulty_balance.live()
    again.start(sampler.env, 3)
    again.load_state_dict(sampler.state_dict())
    for one in (sampler, again):
        asked = [p.id.partition("#")[0] for p in one.propose(10, 1)]
        assert (asked.count("p"), asked.count("q")) == (4, 6)
