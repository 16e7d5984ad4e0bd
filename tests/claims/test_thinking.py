"""The thinking world: exact figures by hand and against many samples, the limit of sampling, luck by identity."""

from __future__ import annotations

import pytest
import torch

from claims.worlds.thinking import Thinking, ramp
from posttrain.core.sampling import Sampling


def test_ramp_by_hand() -> None:
    # need 2: .1, then half-way to .9, then .9; need 4 up to .5: .1 .2 .3 .4
    got = ramp([2, 4], 3, low=0.1, high=[0.9, 0.5])
    torch.testing.assert_close(got, torch.tensor([[0.1, 0.5, 0.9, 0.9], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64))


def test_exact_by_hand() -> None:
    # ends with chance 1/2 at each of 2 letters: at once (1/2), after one letter of work (1/4), cut off (1/4: wrong)
    # right: 1/2 * .1 + 1/4 * .5 = .175; length: 1/2 * 1 + 1/2 * 2 = 1.5
    w = Thinking(ramp([2], 2, low=0.1, high=0.9), 0)
    found = w.exact(w.start(stop=0.5))
    assert [round(float(found[k]), 6) for k in ("right_P", "length_P", "cut_P", "direct_P")] == [0.175, 1.5, 0.25, 0.5]
    # a limit of 1: right at once only, all of length 1, half of them cut off
    found = w.exact(w.start(stop=0.5), longest=1)
    assert [round(float(found[k]), 6) for k in ("right_P", "length_P", "cut_P")] == [0.05, 1.0, 0.5]


@pytest.mark.parametrize("longest", [8, 5])
def test_exact_is_what_samples_tend_to(longest: int) -> None:
    w = Thinking(ramp([1, 3], 8), 0, V=4)
    policy = w.start(stop=0.2, idle=0.3)
    made = policy.sample(w.asked(1000).prompts, 4, Sampling(max_tokens=longest), 1, 0)
    rollouts = [r for rs in made for r in rs]
    right_B, exact = w.right(rollouts), w.exact(policy, longest)
    for p in range(2):
        mine = [i for i, r in enumerate(rollouts) if int(r.context) == p]
        seen = {
            "right_P": float(right_B[mine].mean()),
            "length_P": sum(len(rollouts[i]) for i in mine) / len(mine),
            "cut_P": sum(rollouts[i].truncated for i in mine) / len(mine),
            "idle_P": sum(int((rollouts[i].actions == 2).sum()) for i in mine) / len(mine),
        }
        for key, x in seen.items():
            assert x == pytest.approx(float(exact[key][p]), abs=0.1 if key in ("length_P", "idle_P") else 0.04), key


def test_luck_belongs_to_the_answer() -> None:
    w = Thinking(ramp([4], 6), 3)
    rollouts = [r for rs in w.start().sample(w.asked(20).prompts, 4, Sampling(max_tokens=6), 0, 7) for r in rs]
    assert w.right(rollouts).tolist() == list(reversed(w.right(rollouts[::-1]).tolist()))


def test_shared_features_start_alike() -> None:
    w = Thinking(ramp([2, 3], 5), 0)
    shared = w.start(stop=0.1, features_PF=torch.cat([torch.ones(2, 1), 0.5 * torch.eye(2)], 1))
    torch.testing.assert_close(w.exact(shared)["length_P"], w.exact(w.start(stop=0.1))["length_P"], atol=1e-5, rtol=0)
