"""ReMax: one greedy answer beside the samples, and its reward as their baseline."""

from __future__ import annotations

import math

import pytest

from claims.worlds.tabular import TabularPolicy
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import numbered
from posttrain.systems.policy_gradient.remax import greedy_baseline, sample_and_greedy
from tests.select.test_select import group


def with_greedy(id: str, rewards, greedy: int) -> Group:
    made = group(id, rewards)
    made.rollouts[greedy].info["greedy"] = True
    return made


@pytest.mark.derived("select/greedy-baseline")
def test_the_greedy_answer_is_the_bar_and_leaves() -> None:
    # 1 - .25 and 0 - .25; the failed one stays failed
    groups = [with_greedy("a", [1.0, 0.0, math.nan, 0.25], 3)]
    (kept,) = greedy_baseline(groups)
    assert [r.reward for r in kept.rollouts[:2]] == [0.75, -0.25]
    assert len(kept.rollouts) == 3 and kept.rollouts[2].failed
    assert [r.reward for r in groups[0].rollouts[:2]] == [1.0, 0.0]  # what was earned is recorded as it was


def test_what_turns_earned_is_counted_once() -> None:
    # 0.5 on the way and 1 for the outcome, against 0.25: 1.25 in all
    made = with_greedy("a", [1.0, 0.25], 1)
    made.rollouts[0].turns[0].reward = 0.5
    (kept,) = greedy_baseline([made])
    assert kept.rollouts[0].total == 1.25


def test_without_a_bar_there_is_nothing_to_compare_with() -> None:
    assert greedy_baseline([with_greedy("a", [1.0, math.nan], 1), group("b", [1.0, 0.0])]) == []


def test_the_samples_are_those_of_sample_and_the_last_is_the_likeliest() -> None:
    policy = TabularPolicy(3, 2, 4).randomise(1.0, "greedy", 0)
    prompts = numbered(3).prompts
    made = sample_and_greedy(RolloutRequest({"policy": policy}, prompts, Sampling(), 0, 5), n=2)
    plain = sample(RolloutRequest({"policy": policy}, prompts, Sampling(), 0, 5), n=2)
    for g, p in zip(made, plain, strict=True):
        assert [r.text for r in g.rollouts[:2]] == [r.text for r in p.rollouts]
        assert [bool(r.info.get("greedy")) for r in g.rollouts] == [False, False, True]
        first = policy.logp_all(g.rollouts[2].context, g.rollouts[2].actions.unsqueeze(0))[0, 0]
        assert int(g.rollouts[2].actions[0]) == int(first.argmax())
    assert made[0].rollouts[2].index == 2
