"""References move when they say so: never, a little after every step, or wholly every so many steps."""

import pytest
import torch
from models import tiny

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.systems.supervised_from_reward.gold import old_and_start
from posttrain.weights.reference import ema, fixed, reset, soft_update

ASKED = Prompt.text("p", "abc")


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


def moved(part, steps: int):
    policy = tiny.policy()
    live = part.live()
    live.start(policy)
    before = weights(policy).clone()
    for step in range(steps):
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(1.0)
        live.after_step(policy, step)
    return before, weights(live.policy), weights(policy)


@pytest.mark.derived("reference/fixed")
def test_fixed_stays():
    before, ref, now = moved(fixed, 3)
    assert torch.equal(ref, before) and not torch.equal(now, before)


@pytest.mark.derived("reference/ema")
def test_ema_follows_by_the_formula():
    # start w, policy w+1 then w+2; decay 0.9: after one step w + 0.1, after two 0.9 (w + 0.1) + 0.1 (w + 2) = w + 0.29
    before, ref, _ = moved(ema.but(decay=0.9), 2)
    torch.testing.assert_close(ref, before + 0.29, atol=1e-5, rtol=0)


@pytest.mark.derived("reference/reset")
def test_reset_jumps_every_second_step():
    before, ref, _ = moved(reset.but(every=2), 3)  # jumps after steps 0 and 1 (to w + 2), not yet after the third
    torch.testing.assert_close(ref, before + 2, atol=1e-5, rtol=0)


def test_the_reference_takes_no_gradient():
    live = fixed.live()
    live.start(tiny.policy())
    assert not any(p.requires_grad for p in live.policy.parameters())


@pytest.mark.derived("reference/soft-update")
def test_a_soft_update_goes_part_of_the_way_every_second_step():
    # policy w+1, w+2, w+3, w+4; after the second step w + .5 * 2 = w + 1, after the fourth w + 1 + .5 (4 - 1) = w + 2.5
    before, ref, _ = moved(soft_update.but(mix=0.5, every=2), 4)
    torch.testing.assert_close(ref, before + 2.5, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="0 < mix <= 1"):
        soft_update.but(mix=0.0).live()


def test_a_blend_adds_weighted_log_probabilities():
    one, two = tiny.policy(), tiny.policy()
    with torch.no_grad():
        for p in two.parameters():
            p.mul_(1.5)
    rows = [one.written(ASKED, "ab"), one.written(ASKED, "b")]
    live = fixed.live()
    live.blend([(1.3, one), (-0.3, two)])
    with torch.no_grad():
        a, b = (x.forward(rows, ["logp_BT"])["logp_BT"] for x in (one, two))
    torch.testing.assert_close(live.streams(rows, ["logp_BT"])["logp_BT"], 1.3 * a - 0.3 * b)
    assert not torch.allclose(a, b)
    with pytest.raises(UserError, match="log-probabilities only"):
        live.streams(rows, ["logp_BT", "entropy_BT"])


@pytest.mark.derived("reference/old-and-start")
def test_golds_old_policy_jumps_and_its_start_stays():
    before, ref, _ = moved(old_and_start.but(every=2), 3)  # jumps after step 1, to w + 2
    torch.testing.assert_close(ref, before + 2, atol=1e-5, rtol=0)
    live = old_and_start.but(every=1).live()
    policy = tiny.policy()
    live.start(policy)
    first = weights(policy).clone()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    live.after_step(policy, 0)
    assert torch.equal(weights(live.start_), first) and torch.equal(weights(live.policy), weights(policy))
    again = old_and_start.live()  # a run that goes on has both from its checkpoint
    again.start(tiny.policy())
    again.load({name: x.clone() for name, x in live.tensors().items()})
    assert torch.equal(weights(again.start_), first) and torch.equal(weights(again.policy), weights(policy))
