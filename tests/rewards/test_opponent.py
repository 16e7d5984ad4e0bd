"""The geometric mixture by hand, where its answers come from, and the gradient of Nash-MD."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.games import Game, chances
from claims.worlds.tabular import TabularPolicy
from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.plan import Copy
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.losses.aggregate import Totals
from posttrain.losses.objective import objective
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.runs.in_memory import numbered
from posttrain.systems.policy_gradient.nash_md import Opponent, against_mixture
from posttrain.systems.policy_gradient.spo_minimaximalist import self_play


def policy(*p: float) -> TabularPolicy:
    made = TabularPolicy(1, 1, len(p), memory=False)
    with torch.no_grad():
        made.table[0, 0, 0] = torch.tensor(p).log()
    return made


def test_the_mixture_is_geometric() -> None:
    # pi = (.8, .2), ref = (.2, .8), beta = 1/4: .8^.75 .2^.25 : .2^.75 .8^.25 = 2 : 1 (4^.75 4^-.25 = 4^.5); an
    # arithmetic one would be .65 : .35
    pi, ref = policy(0.8, 0.2), policy(0.2, 0.8)
    other = Opponent(pi, ref, Sampling(), beta=0.25)
    torch.testing.assert_close(chances(other.mixture())[0].tolist(), [2 / 3, 1 / 3], atol=1e-6, rtol=0)
    with torch.no_grad():
        pi.table.zero_()  # the policy moved: .5^.75 .2^.25 : .5^.75 .8^.25 = 1 : 2^.5
    assert float(chances(other.mixture())[0, 0]) == pytest.approx(1 / (1 + 2**0.5), abs=1e-6)
    assert float(chances(ref)[0, 0]) == pytest.approx(0.2)


@pytest.mark.parametrize("beta,expected", [(0.0, 0.8), (1.0, 0.2)])
def test_the_ends_are_self_play_and_the_reference(beta: float, expected: float) -> None:
    other = Opponent(policy(0.8, 0.2), policy(0.2, 0.8), Sampling(), beta, m=2000)
    (p,) = numbered(1).prompts
    (texts,) = other([Group(p, [])])
    assert abs(texts.count("a") / 2000 - expected) < 0.03  # sd .009
    assert texts == other([Group(p, [])])[0]  # by identity


def test_the_gradient_of_nash_md_by_hand() -> None:
    # one answer "a": P(a > b) = .9 against an opponent that always says b; pi(a) = .5, ref(a) = .25, tau = .1:
    # credit = .9 - .5 - .1 log 2; the loss of logp(a) has the slope -credit
    pi, ref, b_only = policy(0.5, 0.5), policy(0.25, 0.75), policy(1e-9, 1.0)
    game = Game(torch.tensor([[[0.5, 0.9], [0.1, 0.5]]]))
    (p,) = numbered(1).prompts
    group = Group(p, [pi.written(p, "a")])
    group.rollouts[0].turns[-1].logp_T = torch.tensor([math.log(0.5)])
    WinRate(game.judge, Opponent(b_only, b_only, Sampling(), m=3)).score([group])
    method = against_mixture(tau=0.1)
    rollouts, batch = assemble([group])
    batch = batch.but(ref_logp_BT=ref.forward(rollouts)["logp_BT"].detach())
    for part in method.shaping:
        batch = batch.but(reward_BT=part(batch))
    leaf = batch["old_logp_BT"].clone().requires_grad_()
    batch = batch.but(adv_BT=method.advantage(batch), logp_BT=leaf)
    loss, _ = objective(batch, Totals.of(batch), method.loss, method.aggregate, method.terms)
    loss.backward()
    assert float(leaf.grad) == pytest.approx(-(0.4 - 0.1 * math.log(2)), abs=1e-6)


def test_errors_and_plans() -> None:
    with pytest.raises(UserError, match="beta"):
        Opponent(policy(0.5, 0.5), policy(0.5, 0.5), Sampling(), beta=1.5)
    with pytest.raises(UserError, match="at least"):
        find("nash-md(m=0)", "plan")()
    with pytest.raises(UserError, match="2 answers"):
        find("spo-minimaximalist(n=1)", "plan")()
    copy, learn = find("nash-md(tau=0.2)", "plan")().parts
    assert isinstance(copy, Copy) and learn.reference == copy.to and learn.method.shaping[0].params == {"coef": 0.2}
    (phase,) = find("spo-minimaximalist(n=4)", "plan")().parts
    assert phase.method.rollout.params == {"n": 4} and self_play().terms == ()
