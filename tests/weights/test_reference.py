"""References move when they say so: never, a little after every step, or wholly every so many steps."""

import pytest
import torch
from models import tiny

from posttrain.weights.reference import ema, fixed, reset


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
