"""The scorer: every convention, every way to fail, and none of them stops a run."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.conventions import adapt
from posttrain.rewards.rules.length import length
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.rules.regex import regex
from posttrain.rewards.rules.task import task
from posttrain.rewards.score import Scorer


def rollout(prompt: Prompt, text: str) -> Rollout:
    n = len(text)
    return Rollout(prompt, torch.zeros(1), torch.arange(n), torch.zeros(n), torch.ones(n, dtype=torch.bool), text=text)


def groups(*texts: str, answer: object = "4") -> list[Group]:
    """One group a text pair: two rollouts of each prompt."""
    out = []
    for i in range(0, len(texts), 2):
        prompt = Prompt.text(f"p{i}", f"question {i}", answer, kind=f"k{i}")
        out.append(Group(prompt, [rollout(prompt, t) for t in texts[i : i + 2]]))
    return out


def scored(fn, *texts, timeout=2.0, workers=8, **keywords):
    made = groups(*texts, **keywords)
    report = Scorer([("r", fn, 1.0)], timeout=timeout, workers=workers).score(made)
    return [r.reward for g in made for r in g.rollouts], report


def test_weighted_sum_by_hand():
    # right: 1, 0; words beyond 1, soft 2: "4" -> 1, "5 5" -> 1 - 1/2 = 0.5; 2 * right + 0.5 * short = 2.5, 0.25
    made = groups("4", "5 5")
    scorer = Scorer([("right", numeric, 2.0), ("short", length.but(most=1, soft=2), 0.5)])
    report = scorer.score(made)
    rolls = made[0].rollouts
    assert [r.reward for r in rolls] == [2.5, 0.25]
    assert rolls[1].rewards == {"right": 0.0, "short": 0.5}
    assert [r.mean for r in report.rewards] == [0.5, 0.75]
    assert report.n == 2 and report.masked == 0
    assert all(r.seconds >= 0 for r in report.rewards)


def test_plain_function():
    assert scored(lambda prompt, text: float(text == prompt.answer), "4", "5")[0] == [1.0, 0.0]


def test_native_batch():
    def reward(prompts, texts):
        assert isinstance(prompts[0], Prompt)
        return [float(len(t)) for t in texts]

    assert scored(reward, "4", "55")[0] == [1.0, 2.0]


def test_trl_strings_and_columns_in_one_call():
    calls = []

    def reward(prompts, completions, answer, kind, **kwargs):
        calls.append((prompts, list(completions), answer, kind))
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    rewards, _ = scored(reward, "4", "5", "6", "4")
    assert rewards == [1.0, 0.0, 0.0, 1.0]
    assert calls == [
        (["question 0"] * 2 + ["question 2"] * 2, ["4", "5", "6", "4"], ["4"] * 4, ["k0", "k0", "k2", "k2"])
    ]


def test_trl_messages_are_tried_when_strings_do_not_fit():
    forms = []

    def reward(completions, **kwargs):
        forms.append(type(completions[0]))
        return [float(c[0]["content"] == "4") for c in completions]

    made = groups("4", "5")
    scorer = Scorer([("r", reward, 1.0)])
    scorer.score(made)
    assert [r.reward for r in made[0].rollouts] == [1.0, 0.0]
    scorer.score(groups("4", "5"))
    assert forms == [str, list, list]  # what worked is remembered


def test_trl_annotation_decides_at_once():
    def reward(completions: list[list[dict[str, str]]], **kwargs):
        return [1.0 if isinstance(c, list) else 0.0 for c in completions]

    assert scored(reward, "4", "5")[0] == [1.0, 1.0]


def test_trl_ground_truth_alias_and_token_ids():
    def reward(completions, ground_truth, completion_ids):
        return [len(i) + float(c == g) for c, g, i in zip(completions, ground_truth, completion_ids, strict=True)]

    assert scored(reward, "4", "55")[0] == [2.0, 2.0]  # 1 token and right; 2 tokens and wrong


def test_trl_only_keywords():
    assert scored(lambda **kwargs: [1.0] * len(kwargs["completions"]), "4", "5")[0] == [1.0, 1.0]


def test_trl_none_does_not_apply():
    """TRL's meaning of None: the other rewards still count; with no other the rollout is masked."""

    def evens(completions, **kwargs):
        return [1.0 if int(c) % 2 == 0 else None for c in completions]

    made = groups("4", "5")
    report = Scorer([("even", evens, 1.0), ("right", numeric, 1.0)]).score(made)
    assert [r.reward for r in made[0].rollouts] == [2.0, 0.0]
    assert math.isnan(made[0].rollouts[1].rewards["even"])
    assert report.rewards[0].skipped == 1 and report.rewards[0].failed == 0
    rewards, report = scored(evens, "4", "5")
    assert rewards[0] == 1.0 and math.isnan(rewards[1]) and report.masked == 1


def test_a_trl_column_that_is_not_there_is_told():
    def reward(completions, knd):
        return [0.0] * len(completions)

    rewards, report = scored(reward, "4", "5")
    assert all(map(math.isnan, rewards))
    assert "did you mean 'kind'" in report.rewards[0].error
    assert report.hopeless == ["r"]


def test_async_of_both_kinds():
    async def one(prompt, text):
        await asyncio.sleep(0.01)
        return float(text == "4")

    async def many(prompts, completions, **kwargs):
        await asyncio.sleep(0.01)
        return [float(len(c)) for c in completions]

    assert scored(one, "4", "5")[0] == [1.0, 0.0]
    assert scored(many, "4", "55")[0] == [1.0, 2.0]


def test_async_calls_overlap_and_share_one_loop():
    loops = set()

    async def slow(prompt, text):
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0.2)
        return 1.0

    made = groups(*["4"] * 20)
    scorer = Scorer([("a", slow, 1.0), ("b", slow, 1.0)])
    began = time.monotonic()
    scorer.score(made)
    scorer.score(made)
    assert time.monotonic() - began < 1.5  # one after another they would take 2 * 2 * 20 * 0.2 = 16 s
    assert len(loops) == 1


def test_async_object_and_time_out():
    class Judge:
        async def __call__(self, prompt, text):
            if text == "slow":
                await asyncio.sleep(60)
            return 1.0

    rewards, report = scored(Judge(), "slow", "4", timeout=0.2)
    assert math.isnan(rewards[0]) and rewards[1] == 1.0
    assert report.rewards[0].late == 1


def test_a_blocked_event_loop_is_left_behind():
    async def blocks(prompt, text):
        if text == "block":
            time.sleep(3)
        return 1.0

    made = groups("4", "block")
    scorer = Scorer([("r", blocks, 1.0)], timeout=0.1)
    began = time.monotonic()
    report = scorer.score(made)
    assert time.monotonic() - began < 2.5
    assert made[0].rollouts[1].failed and report.rewards[0].late >= 1
    again = groups("4", "4")
    scorer.score(again)
    assert [r.reward for r in again[0].rollouts] == [1.0, 1.0]


def test_a_raise_masks_and_is_told_with_its_line():
    def reward(prompt, text):
        if text == "bad":
            raise KeyError("oops")
        return 1.0

    made = groups("4", "bad", "4", "4")
    report = Scorer([("r", reward, 1.0), ("right", numeric, 1.0)]).score(made)
    rewards = [r.reward for g in made for r in g.rollouts]
    assert rewards[0] == 2.0 and math.isnan(rewards[1]) and rewards[2:] == [2.0, 2.0]
    assert made[0].rollouts[1].failed and len(made[0].scored) == 1
    bad = report.rewards[0]
    assert (bad.failed, bad.late, bad.n) == (1, 0, 4)
    assert "KeyError" in bad.error and "oops" in bad.error
    assert "test_score.py" in bad.where and 'raise KeyError("oops")' in bad.where
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
    scorer = Scorer([("right", numeric, 1.0)])
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


def test_weight_zero_is_only_watched():
    def fails(prompt, text):
        raise ValueError("x")

    made = groups("4", "5")
    report = Scorer([("right", numeric, 1.0), ("watched", fails, 0.0)]).score(made)
    assert [r.reward for r in made[0].rollouts] == [1.0, 0.0]
    assert report.rewards[1].failed == 2 and report.masked == 0


def test_nothing_to_score():
    report = Scorer([("r", numeric, 1.0)]).score([])
    assert report.n == 0 and report.rewards[0].n == 0 and report.hopeless == []


def test_report_is_plain():
    _, report = scored(numeric, "4", "5")
    assert report.to_dict()["rewards"][0]["name"] == "r"
    assert report.metrics()["reward/r/mean"] == 0.5


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ([], "at least one"),
        ([("a", numeric, 1.0), ("a", numeric, 1.0)], "same name"),
        ([("a", lambda text: 1.0, 1.0)], "def f\\(prompt, text\\)"),
        ([("a", lambda prompt, text, more: 1.0, 1.0)], "cannot be called"),
        ([("a", 3, 1.0)], "is a function"),
        ([("a", regex.but(pattern="("), 1.0)], "not a regular expression"),
        ([("a", length.but(unit="pages"), 1.0)], "words or characters"),
        ([("a", task, 1.0)], "environment"),
    ],
)
def test_a_scorer_that_could_not_work_is_refused(rewards, told):
    with pytest.raises(UserError, match=told):
        Scorer(rewards)


def test_bad_settings():
    with pytest.raises(UserError, match="timeout"):
        Scorer([("a", numeric, 1.0)], timeout=0)
    with pytest.raises(UserError, match="workers"):
        Scorer([("a", numeric, 1.0)], workers=0)


def test_a_coroutine_from_a_plain_function_is_told():
    async def inner():
        return 1.0

    _, report = scored(lambda prompt, text: inner(), "4", "5")
    assert "async def" in report.rewards[0].error


def test_kinds():
    assert adapt(numeric).kind == "one"
    assert adapt(lambda prompt, text: 0).kind == "one"
    assert adapt(lambda question, reply, scale=1.0: 0).kind == "one"
    assert adapt(lambda prompts, texts: 0).kind == "many"
    assert adapt(lambda completions, **kwargs: 0).kind == "trl"
