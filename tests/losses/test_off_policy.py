"""Losses for old answers (TOPR, CoPG) and what feeds them, by hand: values, gradients, and what equals what."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.baseline import baseline
from posttrain.advantages.rloo import rloo
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Origin, Prompt
from posttrain.losses.policy.reinforce import reinforce
from posttrain.rollouts.logged import logged
from posttrain.systems.policy_gradient.copg import contrastive_loss as copg
from posttrain.systems.policy_gradient.topr import tapered_blame as topr
from posttrain.systems.preference.ipo import ipo_loss as ipo
from tests.advantages.test_advantages import close, outcomes
from tests.losses.table import batch_of, inside, slopes, value_and_gradient

# ---- TOPR


@pytest.mark.derived("policy_loss/topr")
def test_topr_table() -> None:
    # ratio of the whole answer: the product of its tokens' ratios, with old logp -1 at every token
    #   (2, 2)    w = 4    A =  2  right: weight 1;            gradient -2 at both tokens
    #   (.5)      w = .5   A =  2  right: weight 1 still;      gradient -2
    #   (.5, .5)  w = .25  A = -2  wrong and already rare;     gradient 2 * .25 = .5
    #   (2, .25)  w = .5   A = -1  the answer counts, not its likelier token; gradient .5 at both
    #   (3)       w = 3    A = -1  wrong and likelier than it was: weight at most 1; gradient 1
    # and the loss is gradient * logp, the weight being a constant
    ratios, credit = [[2.0, 2.0], [0.5], [0.5, 0.5], [2.0, 0.25], [3.0]], [2.0, 2.0, -2.0, -1.0, -1.0]
    grads = [[-2.0, -2.0], [-2.0], [0.5, 0.5], [0.5, 0.5], [1.0]]
    logp = [[-1.0 + math.log(r) for r in row] for row in ratios]
    adv = [[a] * len(row) for a, row in zip(credit, ratios, strict=True)]
    batch = batch_of(logp, old_logp=[[-1.0] * len(row) for row in ratios], adv=adv)
    loss_BT, grad_BT = value_and_gradient(topr, batch)
    torch.testing.assert_close(inside(grad_BT, batch), grads, rtol=1e-9, atol=1e-12)
    expected = [[g * p for g, p in zip(gs, ps, strict=True)] for gs, ps in zip(grads, logp, strict=True)]
    torch.testing.assert_close(inside(loss_BT, batch), expected, rtol=1e-9, atol=1e-12)


LOGP = [[-0.3, -2.0, -1.1], [-1.0], [-0.2, -4.0], [-2.5, -0.4, -1.4]]
OLD = [[-0.9, -1.1, -1.0], [-3.2], [-0.5, -1.2], [-0.3, -0.5, -1.2]]
ADV = [[1.5] * 3, [-1.2], [-0.7] * 2, [0.6] * 3]


@pytest.mark.parametrize("limits", [(1.0, 1.0, 0.0, 1.0), (0.0, 5.0, 0.1, 3.0)])
def test_topr_against_plain_floats(limits) -> None:
    names = ("low_right", "high_right", "low_wrong", "high_wrong")

    def loss(rows) -> float:
        out = 0.0
        for p, at, o, a in zip(rows, LOGP, OLD, ADV, strict=True):
            low, high = limits[2:] if a[0] < 0 else limits[:2]
            weight = min(max(math.exp(sum(at) - sum(o)), low), high)  # frozen: at, not p
            out -= weight * a[0] * sum(p)
        return out

    batch = batch_of(LOGP, old_logp=OLD, adv=ADV)
    value_BT, grad_BT = value_and_gradient(topr, batch, **dict(zip(names, limits, strict=True)))
    assert sum(map(sum, inside(value_BT, batch))) == pytest.approx(loss(LOGP), rel=1e-9)
    torch.testing.assert_close(inside(grad_BT, batch), slopes(loss, LOGP), rtol=1e-6, atol=1e-7)


def test_topr_with_weights_of_one_is_reinforce_and_blame_fades() -> None:
    batch = batch_of(LOGP, old_logp=OLD, adv=ADV)
    ones = {"low_wrong": 1.0, "high_wrong": 1.0}
    torch.testing.assert_close(value_and_gradient(topr, batch, **ones), value_and_gradient(reinforce, batch))
    # a wrong answer 40 nats down is left alone; a right one is not
    far = batch_of([[-41.0], [-41.0]], old_logp=[[-1.0], [-1.0]], adv=[[-1.0], [1.0]])
    assert value_and_gradient(topr, far)[1].flatten().tolist() == pytest.approx([math.exp(-40), -1.0])


@pytest.mark.derived("advantage/baseline")
def test_constant_baseline() -> None:
    close(baseline(outcomes([1.0, 0.0, 3.0], [0, 0, 1], dead=(2,))), [[0.5], [-0.5], [0.0]])
    close(baseline(outcomes([1.0, 0.0], [0, 0]), c=0.1), [[0.9], [-0.1]])


# ---- logged answers


def asked(answers) -> Prompt:
    return Prompt.text("a", "row 0", row=0, answers=answers)


@pytest.mark.derived("rollout/logged")
def test_logged_answers_keep_the_log_probabilities_of_who_gave_them() -> None:
    policy = TabularPolicy(1, 2, 3)
    told = [{"text": t, "logp": [-0.5, -0.1 * i]} for i, t in enumerate(("ab", "bc", "ca"))]
    (group,) = logged(RolloutRequest({"policy": policy}, [asked(told)], Sampling(), 0, 0))
    assert [r.text for r in group.rollouts] == ["ab", "bc", "ca"]
    torch.testing.assert_close(group.rollouts[2].logp_T, torch.tensor([-0.5, -0.2]))
    assert all(r.origin is not Origin.SAMPLED for r in group.rollouts)  # the guard has no sampler to compare with
    steps = [
        [r.text for r in logged(RolloutRequest({"policy": policy}, [asked(told)], Sampling(), 0, s), n=2)[0].rollouts]
        for s in range(3)
    ]
    assert steps == [["ab", "bc"], ["ca", "ab"], ["bc", "ca"]]  # the next ones at each step


def test_logged_answers_say_what_is_missing() -> None:
    policy = TabularPolicy(1, 2, 3)
    with pytest.raises(UserError, match="no logged answers"):
        logged(RolloutRequest({"policy": policy}, [Prompt.text("a", "row 0", row=0)], Sampling(), 0, 0))
    with pytest.raises(UserError, match="2 tokens and no log-prob"):
        logged(RolloutRequest({"policy": policy}, [asked([{"text": "ab"}])], Sampling(), 0, 0))
    with pytest.raises(UserError, match="2 tokens and 1 log-prob"):
        logged(RolloutRequest({"policy": policy}, [asked([{"text": "ab", "logp": [-1.0]}])], Sampling(), 0, 0))
    (group,) = logged(RolloutRequest({"policy": policy}, [asked([{"text": "ab"}])], Sampling(), 0, 0), logp=False)
    assert group.rollouts[0].logp_T.tolist() == [0.0, 0.0]


# ---- CoPG


def scored_pairs(logp, ref, rewards, pairs):
    """Pairs whose answers earned `rewards`, on their first token."""
    T = max(map(len, logp))
    batch = batch_of(logp, pairs=pairs, ref_logp=ref)
    reward = torch.tensor([[r] + [0.0] * (T - 1) for r in rewards], dtype=torch.float64)
    return batch.but(reward_BT=reward)


@pytest.mark.derived("preference_loss/copg")
def test_copg_table() -> None:
    # beta .5. Pair (0, 1): log-ratios .2 + .4 = .6 and -.4, u = 1; rewards 3 and 1: gap 2 - .5 = 1.5,
    #   loss 1.5^2 / (2 * .5) = 2.25; gradient -1.5 at the tokens of answer 0, +1.5 at those of answer 1
    # Pair (1, 2): log-ratios -.4 and .1, u = -.5; rewards 1 and 2: gap -1 + .25 = -.75,
    #   loss .5625; gradient +.75 at answer 1 (the worse one goes down though it is called chosen), -.75 at answer 2
    logp, ref = [[-1.0, -0.5], [-1.4], [-0.9]], [[-1.2, -0.9], [-1.0], [-1.0]]
    batch = scored_pairs(logp, ref, [3.0, 1.0, 2.0], [(0, 1), (1, 2)])
    loss_P, grad_BT = value_and_gradient(copg, batch, beta=0.5)
    torch.testing.assert_close(loss_P.tolist(), [2.25, 0.5625])
    torch.testing.assert_close(inside(grad_BT, batch), [[-1.5, -1.5], [1.5 + 0.75], [-0.75]])


def test_copg_against_plain_floats() -> None:
    rewards, beta = [0.3, -1.0, 2.0, 0.1], 0.2

    def loss(rows) -> float:
        r = [sum(p) - sum(o) for p, o in zip(rows, OLD, strict=True)]
        return sum((rewards[i] - rewards[j] - beta * (r[i] - r[j])) ** 2 / (2 * beta) for i, j in ((0, 1), (2, 3)))

    batch = scored_pairs(LOGP, OLD, rewards, [(0, 1), (2, 3)])
    value_P, grad_BT = value_and_gradient(copg, batch, beta=beta)
    assert float(value_P.sum()) == pytest.approx(loss(LOGP), rel=1e-9)
    torch.testing.assert_close(inside(grad_BT, batch), slopes(loss, LOGP), rtol=1e-6, atol=1e-6)


def test_copg_does_not_mind_which_is_called_chosen() -> None:
    one, other = (scored_pairs(LOGP, OLD, [0.3, -1.0, 2.0, 0.1], p) for p in ([(0, 1), (2, 3)], [(1, 0), (3, 2)]))
    torch.testing.assert_close(value_and_gradient(copg, one), value_and_gradient(copg, other))


def test_copg_with_a_gap_of_a_half_is_ipo() -> None:
    # (1/2 - beta u)^2 / (2 beta) = beta / 2 (1/(2 beta) - u)^2
    batch, beta = scored_pairs(LOGP, OLD, [1.0, 0.5, 0.25, -0.25], [(0, 1), (2, 3)]), 0.3
    ours, theirs = (
        value_and_gradient(copg, batch, beta=beta),
        value_and_gradient(ipo, batch, beta=beta, length_normalised=False),
    )
    torch.testing.assert_close(ours, (beta / 2 * theirs[0], beta / 2 * theirs[1]))


def test_copg_at_the_reference_is_rloo_with_two_answers() -> None:
    rewards = [1.0, 0.25, -3.0, 0.5]
    batch = scored_pairs(LOGP, LOGP, rewards, [(0, 1), (2, 3)]).but(group_B=torch.tensor([0, 0, 1, 1]))
    credited = batch.but(adv_BT=rloo(batch), old_logp_BT=batch.logp_BT)
    torch.testing.assert_close(value_and_gradient(copg, batch)[1], value_and_gradient(reinforce, credited)[1])
