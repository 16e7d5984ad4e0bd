"""PRIME by hand: the implicit process reward's loss, its token rewards, and its plan."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Rollout
from posttrain.runs.in_memory import FunctionScorer, row
from posttrain.systems.policy_gradient.prime import Implicit, accuracy_band, implicit_prm, prime, token_and_outcome
from tests.losses.table import slopes

LOGP, REF = [[-1.0, -2.0], [-0.5, 9.0]], [[-1.5, -2.3], [-1.5, 4.0]]


@pytest.mark.derived("policy_loss/implicit-prm")
def test_outcomes_teach_the_sum_of_log_ratios() -> None:
    # row 0, right: .5 + .3 = .8 at beta .5: log(1 + e^-.4) = .513015, on both tokens; row 1, wrong, one token: 1 at beta .5:
    # log(1 + e^.5) = .974077
    logp = torch.tensor(LOGP, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    reward_BT = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    ref = torch.tensor(REF, dtype=torch.float64)
    loss_BT = (
        implicit_prm(Batch(logp_BT=logp, mask_BT=mask_BT, ref_logp_BT=ref, reward_BT=reward_BT), beta=0.5) * mask_BT
    )
    expected = torch.tensor([[0.513015, 0.513015], [0.974077, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(loss_BT.detach(), expected, atol=1e-6, rtol=0)

    def by_hand(rows: list[list[float]]) -> float:
        right = 0.5 * (rows[0][0] + 1.5 + rows[0][1] + 2.3)
        return 2 * math.log(1 + math.exp(-right)) + math.log(1 + math.exp(0.5 * (rows[1][0] + 1.5)))

    loss_BT.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor(slopes(by_hand, LOGP), dtype=torch.float64), atol=1e-6, rtol=0)
    assert logp.grad[0, 0] < 0 < logp.grad[1, 0]


def test_token_rewards_are_log_ratios() -> None:
    start = TabularPolicy(1, 2, 2, memory=False)
    prm = start.clone()
    with torch.no_grad():
        prm.table[0, 1, 0] = torch.tensor([math.log(3.0), 0.0])  # the second letter: a in 3/4
    made = [start.written(row(0), t) for t in ("ba", "bb")]
    outcome = FunctionScorer(lambda rs: torch.tensor([1.0, 0.0]))
    Implicit(outcome, prm, start, beta=2.0).score([Group(row(0), made)])
    # a: 2 log(.75 / .5) = 2 log 1.5; b: 2 log(.25 / .5) = -2 log 2; the first letter is as likely as it was
    assert made[0].stream("reward").tolist() == pytest.approx([0.0, 2 * math.log(1.5)], abs=1e-6)
    assert made[1].stream("reward").tolist() == pytest.approx([0.0, -2 * math.log(2)], abs=1e-6)
    assert [r.reward for r in made] == [1.0, 0.0] == [r.rewards["outcome"] for r in made]


@pytest.mark.derived("advantage/prime")
def test_credit_by_hand() -> None:
    # token rewards .2 .4 with outcome 1; .6 with outcome 0. Means .3 and .6 are each other's baselines:
    # row 0: r - b = -.4, -.2, to come -.6, -.2, and 1 - 0; row 1: .6 - .3 = .3, and 0 - 1
    mask_BT = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    reward_BT = torch.tensor([[0.2, 1.4], [0.6, 0.0]], dtype=torch.float64)
    outcome_B = torch.tensor([1.0, 0.0], dtype=torch.float64)
    b = Batch(logp_BT=mask_BT, mask_BT=mask_BT, reward_BT=reward_BT, group_B=torch.zeros(2, dtype=torch.long),
              **{"reward:outcome_B": outcome_B})  # fmt: skip
    want = torch.tensor([[0.4, 0.8], [-0.7, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(token_and_outcome(b, outcome="outcome", whiten=False), want)
    # whitened: mean 1/6, variance (.0544 + .4011 + .7511) / 3 = .402222
    whitened = (want - 1 / 6) / math.sqrt(0.4022222) * mask_BT
    torch.testing.assert_close(token_and_outcome(b, outcome="outcome"), whitened, atol=1e-5, rtol=0)
    assert float(token_and_outcome(b.but(reward_BT=reward_BT - reward_BT), whiten=False).abs().max()) == 0.0
    # the reward model is taught the outcome, not the sum with its own rewards: .6 > .5 earned, and wrong all the same
    told = implicit_prm(b.but(ref_logp_BT=mask_BT - 1.0), beta=1.0, outcome="outcome")
    assert told[:, 0].tolist() == pytest.approx([math.log(1 + math.exp(-2.0)), math.log(1 + math.exp(1.0))])


@pytest.mark.derived("select/accuracy-band")
def test_prompts_of_middling_accuracy_are_kept() -> None:
    made = [Group(row(i), [one(x) for x in some]) for i, some in enumerate(([1, 0, 0, 0, 0], [1, 1], [0, 0], [1, 0]))]
    assert [g.prompt.id for g in accuracy_band(made)] == [made[0].prompt.id, made[3].prompt.id]


def one(reward: float) -> Rollout:
    ones = torch.ones(1)
    return Rollout.single(row(0), ones.long(), ones.long(), -ones, ones.bool(), reward=reward)


def test_the_plan() -> None:
    start, judge, learn = prime(steps=3).parts
    assert (start.to, judge.to, learn.steps) == ("start", "prm", 3)
    (other,) = learn.method.others
    assert (other.role, other.rows, other.pace, other.max_norm) == ("prm", "policy", 2.0, 10.0)
    with pytest.raises(UserError, match="2 answers to compare"):
        prime(n=1)
