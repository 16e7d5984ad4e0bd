"""SIRI: the limit of each step by hand, and that answers are cut there and keep their places in the loss."""

from __future__ import annotations

import pytest

from claims.worlds.thinking import Thinking, ramp
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.rollouts.sample import sample
from posttrain.systems.efficient_reasoning.siri import length_cycles as siri
from posttrain.systems.efficient_reasoning.siri import limit


@pytest.mark.derived("rollout/siri")
@pytest.mark.parametrize(
    ("step", "longest"),
    [
        (0, 16),  # cos 0 = 1: all of it
        (10, 15),  # cos(pi/4) = .7071: 16 (.5 + .5 * .8536) = 14.83
        (20, 12),  # cos(pi/2) = 0: half-way between 8 and 16
        (40, 8),  # cos pi = -1: the trough
        (60, 12),
        (80, 16),  # the next cycle
        (120, 8),
    ],
)
def test_limit_by_hand(step: int, longest: int) -> None:
    assert limit(step, 16, 0.5, 80) == longest


def test_limit_without_cycles_and_in_vain() -> None:
    assert [limit(s, 16, 0.5, 0) for s in (0, 7, 50)] == [16, 16, 16]
    assert limit(5, 1, 0.1, 10) == 1  # never nothing
    with pytest.raises(UserError, match="low=0"):
        limit(0, 16, 0.0, 80)


def test_answers_are_those_of_the_step_cut_at_its_limit() -> None:
    w = Thinking(ramp([2, 8], 16), 0)
    policy, prompts, how = w.start(stop=0.05), w.asked(4).prompts, Sampling(max_tokens=16)
    whole = [r for g in sample(RolloutRequest({"policy": policy}, prompts, how, 3, 40)) for r in g.rollouts]
    short = [
        r for g in siri(RolloutRequest({"policy": policy}, prompts, how, 3, 40), cycle=(0.5, 80)) for r in g.rollouts
    ]
    assert any(len(r) > 8 for r in whole)
    for a, b in zip(whole, short, strict=True):
        assert b.actions.tolist() == a.actions[:8].tolist()
        assert (not b.truncated) == (not a.truncated and len(a) <= 8) and bool(b.mask_T.all())


def test_cut_answers_are_not_filtered() -> None:
    """With DAPO's overlong filter compression would teach nothing."""
    m = find_method("siri")
    assert [p.name for p in m.select] == ["zero-variance"]
    base = find_method("dapo")
    same = m.but(
        rollout=base.rollout, shaping=base.shaping, minibatches=base.minibatches, rounds=base.rounds, name="dapo"
    )
    assert same.describe() == base.describe()


@pytest.mark.parametrize("steps", [6, 40, 1500])
def test_a_run_falls_and_rises_whatever_its_steps(steps: int) -> None:
    """Three cycles of a run: the limit goes down to half and up again in each."""
    seen: list[int] = []

    class Policy:
        def sample(self, prompts: list, n: int, how: Sampling, seed: int, step: int) -> list:
            seen.append(how.max_tokens)
            return []

    part = siri.within({"steps": steps})
    for step in range(steps):
        part(RolloutRequest({"policy": Policy()}, [], Sampling(max_tokens=100), 0, step))  # type: ignore[dict-item]
    third = steps // 3
    assert seen[0] == seen[third] == seen[2 * third] == 100 and all(x < 60 for x in seen[third // 2 :: third][:3])
    with pytest.raises(UserError, match=r"steps of siri is the run's steps"):
        siri(RolloutRequest({"policy": Policy()}, []))  # type: ignore[dict-item]
