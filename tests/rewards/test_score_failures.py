"""Rewards that raise, are late, or give what is no number: masked, counted and told, and nothing else is lost."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from decimal import Decimal

import pytest
import torch

from posttrain.core.types import Prompt
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.runtime.score import RewardSum
from tests.rewards.test_score import groups, scored

P = Prompt.text("p", "?", "1")


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
    [
        None,
        float("nan"),
        float("inf"),
        "1.0",
        [1.0],
        {},
        (1,),
        object(),
        1 + 2j,
        torch.ones(2),
        Decimal("NaN"),
        Decimal("sNaN"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_not_a_number_masks(value):
    rewards, report = scored(lambda prompt, text: value, "4", "5")
    assert all(map(math.isnan, rewards))
    assert report.rewards[0].failed == 2 and "returned" in report.rewards[0].error


@pytest.mark.parametrize("value", [True, 1, 1.0, torch.tensor(1.0), torch.ones(1), Decimal("1")], ids=repr)
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
    release = threading.Event()

    def reward(prompt, text):
        if text == "slow":
            release.wait(60)
        return float(len(text))

    texts = ["a", "slow", "bb", "slow", "ccc", "dddd"]
    began = time.monotonic()
    rewards, report = scored(reward, *texts, timeout=1.5, workers=2)
    assert time.monotonic() - began < 30
    release.set()
    assert [x if not math.isnan(x) else None for x in rewards] == [1.0, None, 2.0, None, 3.0, 4.0]
    assert (report.rewards[0].late, report.rewards[0].failed) == (2, 2)
    assert "1.5 s" in report.rewards[0].error


def test_a_call_that_ends_after_it_was_given_up_changes_nothing():
    """The slow call goes on until the next one runs, which is when it was given up, and ends before the last one does."""
    given_up, ended = threading.Event(), threading.Event()

    def reward(prompt, text):
        if text == "slow":
            given_up.wait(60)
            ended.set()
        given_up.set()
        ended.wait(60)
        return float(len(text))

    rewards, report = scored(reward, "slow", "a", "bb", "ccc", timeout=1.5, workers=1)
    assert math.isnan(rewards[0]) and rewards[1:] == [1.0, 2.0, 3.0]
    assert report.rewards[0].failed == 1


def test_a_late_batch_masks_all():
    def reward(prompts, completions):
        time.sleep(5)

    rewards, report = scored(reward, "4", "5", timeout=0.2)
    assert all(map(math.isnan, rewards)) and report.rewards[0].late == 2


def test_slow_calls_run_side_by_side_in_order():
    eight = threading.Barrier(8)

    def reward(prompt, text):
        eight.wait(60)  # until eight of them wait
        return float(text)

    rewards, _ = scored(reward, *[str(i) for i in range(16)], workers=8)
    assert rewards == [float(i) for i in range(16)]


def test_cheap_rules_are_cheap():
    made = groups(*["4"] * 1000)
    scorer = RewardSum([("right", numeric, 1.0)])
    took = []
    for _ in range(6):  # the quickest of them: on a busy machine one pass may be 30 times slower
        began = time.process_time()
        scorer.score(made)
        took.append(time.process_time() - began)
    assert min(took) / 1000 < 500e-6  # seconds an answer; about 20e-6 on a free core


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


class Raises:
    """An object whose every method raises something else."""

    def item(self):
        raise OSError("no item")

    def __repr__(self):
        raise KeyError("no repr")


class Silent:
    def __repr__(self):
        raise KeyError("no repr")


class Leaves:
    def item(self):
        raise SystemExit(3)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(10**400, "expected a number between -1e+15 and 1e+15", id="400 digits"),
        (1e308, "returned 1e+308, expected a number between"),
        (Raises(), "OSError: no item"),
        (Silent(), "a Silent that cannot be shown (KeyError)"),
        (Mute(), "Mute: (it cannot be shown)"),
        ("\ud800", "returned str"),
    ],
)
def test_no_value_can_end_a_run(value, told):
    def odd(prompt, text):
        if isinstance(value, Exception):
            raise value
        return value if text == "bad" else 0.5

    prompt = Prompt.text("p", "?", "1")
    for reward in (odd, lambda prompts, texts: [odd(prompts[0], t) for t in texts]):
        if reward is not odd:
            reward.__name__ = "odd"
        totals, report = RewardSum([("odd", reward, 1.0)]).texts([prompt] * 3, ["good", "bad", "good"])
        assert math.isnan(totals[1]) and report.masked >= 1 and told in report.why
        json.dumps(report.to_dict())
        assert isinstance(value, Exception) or totals[0] == 0.5


def test_a_value_that_ends_python_is_a_failure_of_its_answer():
    totals, report = RewardSum([("r", lambda prompt, text: Leaves() if text == "bad" else 0.5, 1.0)]).texts(
        [P] * 3, ["good", "bad", "good"]
    )
    assert totals[::2] == [0.5, 0.5] and math.isnan(totals[1]) and "SystemExit: 3" in report.why


def test_a_list_that_ends_python_is_a_failure_and_one_that_hangs_is_late():
    class Odd(list):
        def __len__(self):
            raise SystemExit(3)

    class Slow(list):
        def __len__(self):
            return time.sleep(30) or 2

    for kind, told in ((Odd, "SystemExit: 3"), (Slow, "no result within 0.05 s")):
        totals, report = RewardSum([("r", lambda prompts, texts, k=kind: k(), 1.0)], timeout=0.05).texts(
            [P, P], ["a", "b"]
        )
        assert all(map(math.isnan, totals)) and report.masked == 2 and told in report.why


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt, ValueError])
def test_what_a_coroutine_raises_is_its_own_failure_alone(error):
    async def one(prompt, text):
        await asyncio.sleep(0)
        if text == "bad":
            raise error("mine")
        return 0.5

    async def many(prompts, texts):
        return [await one(p, t) for p, t in zip(prompts, texts, strict=True)]

    began = time.monotonic()
    totals, report = RewardSum([("r", one, 1.0)], timeout=60).texts([P] * 3, ["good", "bad", "good"])
    assert totals[::2] == [0.5, 0.5] and math.isnan(totals[1]) and f"{error.__name__}: mine" in report.why
    totals, report = RewardSum([("r", many, 1.0)], timeout=60).texts([P] * 3, ["good", "bad", "good"])
    assert all(map(math.isnan, totals)) and report.masked == 3 and f"{error.__name__}: mine" in report.why
    assert time.monotonic() - began < 50  # not found out by its time-out


def test_sums_that_overflow_are_masked_counted_and_told():
    prompt = Prompt.text("p", "?", "1")
    high = [(name, lambda prompt, text: 1e15, 1e300) for name in "ab"]
    totals, report = RewardSum(high).texts([prompt] * 2, ["x", "y"])
    assert all(map(math.isnan, totals)) and report.masked == 2 and "a weighted sum is beyond 1e+15" in report.why
    totals, report = RewardSum([("a", lambda prompt, text: 1e15, 1.0)]).texts([prompt] * 500, ["x"] * 500)
    assert totals == [1e15] * 500 and report.rewards[0].mean == 1e15


def test_a_reward_may_sort_and_clear_what_it_is_given():
    prompts = [Prompt.text(f"p{i}", f"q{i}", str(i), tags=["b", "a"]) for i in range(4)]

    def destroys(prompts, texts):
        for p in prompts:
            p.info["tags"].sort()
            p.info.clear()
        n = len(texts)
        prompts.clear(), texts.clear()
        return [0.0] * n

    def destroys_trl(prompts, completions, answer, tags):
        n = len(completions)
        answer.sort(reverse=True)
        [t.clear() for t in tags]
        prompts.clear(), completions.reverse()
        return [0.0] * n

    def destroys_one(prompt, text):
        prompt.info["tags"].clear()
        prompt.content[0]["content"] = "gone"
        return 0.0

    def right(prompts, completions, answer, tags):
        return [float(c == a and t == ["b", "a"]) for c, a, t in zip(completions, answer, tags, strict=True)]

    each = [("destroys", destroys, 1.0), ("trl", destroys_trl, 1.0), ("one", destroys_one, 1.0), ("right", right, 1.0)]
    assert RewardSum(each).texts(prompts, ["0", "1", "2", "x"])[0] == [1.0, 1.0, 1.0, 0.0]
    assert prompts[0].last == "q0" and prompts[0].info == {"tags": ["b", "a"]}
