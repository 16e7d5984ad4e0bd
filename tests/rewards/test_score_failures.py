"""Rewards that raise, are late, or give what is no number: masked, counted and told, and nothing else is lost."""

from __future__ import annotations

import math
import time

import pytest
import torch

from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.runtime.score import RewardSum
from tests.rewards.test_score import groups, scored


def test_a_raise_masks_and_is_told_with_its_line():
    def reward(prompt, text):
        if text == "bad":
            raise KeyError("oops")
        return 1.0

    made = groups("4", "bad", "4", "4")
    report = RewardSum([("r", reward, 1.0), ("right", numeric, 1.0)]).score(made)
    rewards = [r.reward for g in made for r in g.rollouts]
    assert rewards[0] == 2.0 and math.isnan(rewards[1]) and rewards[2:] == [2.0, 2.0]
    assert made[0].rollouts[1].failed and len(made[0].scored) == 1
    bad = report.rewards[0]
    assert (bad.failed, bad.late, bad.n) == (1, 0, 4)
    assert "KeyError" in bad.error and "oops" in bad.error
    assert "test_score_failures.py" in bad.where and 'raise KeyError("oops")' in bad.where
    assert bad.mean == 1.0  # of the three that could be scored
    assert report.masked == 1 and "1 masked" in str(report)


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), float("inf"), "1.0", [1.0], {}, (1,), object(), 1 + 2j, torch.ones(2)],
    ids=lambda x: type(x).__name__,
)
def test_what_is_not_a_number_masks(value):
    rewards, report = scored(lambda prompt, text: value, "4", "5")
    assert all(map(math.isnan, rewards))
    assert report.rewards[0].failed == 2 and "returned" in report.rewards[0].error


@pytest.mark.parametrize("value", [True, 1, 1.0, torch.tensor(1.0), torch.ones(1)], ids=repr)
def test_what_is_a_number_counts(value):
    assert scored(lambda prompt, text: value, "4", "5")[0] == [1.0, 1.0]


@pytest.mark.parametrize("value", [[1.0], [1.0] * 3, None, 1.0, "ab", {}], ids=repr)
def test_a_batch_of_the_wrong_shape_masks(value):
    rewards, report = scored(lambda prompts, completions: value, "4", "5")
    assert all(map(math.isnan, rewards))
    assert "expected a list of 2" in report.rewards[0].error


def test_a_batch_may_be_a_tensor_and_hold_one_bad_value():
    assert scored(lambda prompts, completions: torch.tensor([1.0, 2.0]), "4", "5")[0] == [1.0, 2.0]
    rewards, report = scored(lambda prompts, completions: [1.0, float("nan")], "4", "5")
    assert rewards[0] == 1.0 and math.isnan(rewards[1]) and report.rewards[0].failed == 1


def test_late_calls_are_left_behind_and_the_rest_is_scored():
    def reward(prompt, text):
        if text == "slow":
            time.sleep(5)
        return float(len(text))

    texts = ["a", "slow", "bb", "slow", "ccc", "dddd"]
    began = time.monotonic()
    rewards, report = scored(reward, *texts, timeout=0.3, workers=2)
    assert time.monotonic() - began < 3.0
    assert [x if not math.isnan(x) else None for x in rewards] == [1.0, None, 2.0, None, 3.0, 4.0]
    assert (report.rewards[0].late, report.rewards[0].failed) == (2, 2)
    assert "0.3 s" in report.rewards[0].error


def test_a_call_that_ends_after_it_was_given_up_changes_nothing():
    """The slow call ends at 0.4 s, given up at 0.2 s, while the others (0.15 s each, one at a time) still run."""

    def reward(prompt, text):
        time.sleep(0.4 if text == "slow" else 0.15)
        return float(len(text))

    rewards, report = scored(reward, "slow", "a", "bb", "ccc", timeout=0.2, workers=1)
    assert math.isnan(rewards[0]) and rewards[1:] == [1.0, 2.0, 3.0]
    assert report.rewards[0].failed == 1


def test_a_late_batch_masks_all():
    def reward(prompts, completions):
        time.sleep(5)

    rewards, report = scored(reward, "4", "5", timeout=0.2)
    assert all(map(math.isnan, rewards)) and report.rewards[0].late == 2


def test_slow_calls_run_side_by_side_in_order():
    def reward(prompt, text):
        time.sleep(0.1)
        return float(text)

    began = time.monotonic()
    rewards, _ = scored(reward, *[str(i) for i in range(16)], workers=8)
    assert rewards == [float(i) for i in range(16)]
    assert time.monotonic() - began < 1.0  # one after another: 1.6 s


def test_cheap_rules_are_cheap():
    made = groups(*["4"] * 1000)
    scorer = RewardSum([("right", numeric, 1.0)])
    scorer.score(made)
    began = time.perf_counter()
    scorer.score(made)
    assert (time.perf_counter() - began) / 1000 < 500e-6  # seconds an answer; about 20e-6 on a free core


def test_exit_does_not_end_a_run_and_interrupt_does():
    def leaves(prompt, text):
        raise SystemExit(3)

    rewards, report = scored(leaves, "4", "5")
    assert all(map(math.isnan, rewards)) and "SystemExit" in report.rewards[0].error

    def interrupts(prompt, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(interrupts, "4", "5")


def test_deep_recursion_is_only_a_failure():
    def reward(prompt, text):
        return reward(prompt, text)

    rewards, report = scored(reward, "4", "5")
    assert all(map(math.isnan, rewards)) and "RecursionError" in report.rewards[0].error
