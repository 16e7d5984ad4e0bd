"""The scorer: every convention, asynchronous rewards, weights and reports."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.rules.length import length
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.rules.regex import regex
from posttrain.rewards.rules.task import task
from posttrain.rewards.runtime.conventions import adapt
from posttrain.rewards.runtime.score import RewardSum


def rollout(prompt: Prompt, text: str) -> Rollout:
    n = len(text)
    return Rollout.single(
        prompt, torch.zeros(1), torch.arange(n), torch.zeros(n), torch.ones(n, dtype=torch.bool), text=text
    )


def groups(*texts: str, answer: object = "4") -> list[Group]:
    """One group a text pair: two rollouts of each prompt."""
    out = []
    for i in range(0, len(texts), 2):
        prompt = Prompt.text(f"p{i}", f"question {i}", answer, kind=f"k{i}")
        out.append(Group(prompt, [rollout(prompt, t) for t in texts[i : i + 2]]))
    return out


def scored(fn, *texts, timeout=2.0, workers=8, **keywords):
    made = groups(*texts, **keywords)
    report = RewardSum([("r", fn, 1.0)], timeout=timeout, workers=workers).score(made)
    return [r.reward for g in made for r in g.rollouts], report


def test_weighted_sum_by_hand():
    # right: 1, 0; words beyond 1, soft 2: "4" -> 1, "5 5" -> 1 - 1/2 = 0.5; 2 * right + 0.5 * short = 2.5, 0.25
    made = groups("4", "5 5")
    scorer = RewardSum([("right", numeric, 2.0), ("short", length.but(most=1, soft=2), 0.5)])
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
    scorer = RewardSum([("r", reward, 1.0)])
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
    report = RewardSum([("even", evens, 1.0), ("right", numeric, 1.0)]).score(made)
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
    assert report.all_failed == ["r"]


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
    scorer = RewardSum([("a", slow, 1.0), ("b", slow, 1.0)])
    began = time.monotonic()
    scorer.score(made)
    scorer.score(made)
    assert time.monotonic() - began < 8  # one after another they would take 2 * 2 * 20 * 0.2 = 16 s
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
    release = threading.Event()

    async def blocks(prompt, text):
        if text == "block":
            release.wait(60)
        return 1.0

    made = groups("4", "block")
    scorer = RewardSum([("r", blocks, 1.0)], timeout=0.1)
    began = time.monotonic()
    report = scorer.score(made)
    assert time.monotonic() - began < 30
    release.set()
    assert made[0].rollouts[1].failed and report.rewards[0].late >= 1
    again = groups("4", "4")
    scorer.score(again)
    assert [r.reward for r in again[0].rollouts] == [1.0, 1.0]


def test_weight_zero_is_only_watched():
    def fails(prompt, text):
        raise ValueError("x")

    made = groups("4", "5")
    report = RewardSum([("right", numeric, 1.0), ("watched", fails, 0.0)]).score(made)
    assert [r.reward for r in made[0].rollouts] == [1.0, 0.0]
    assert report.rewards[1].failed == 2 and report.masked == 0


def test_nothing_to_score():
    report = RewardSum([("r", numeric, 1.0)]).score([])
    assert report.n == 0 and report.rewards[0].n == 0 and report.all_failed == []


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
        RewardSum(rewards)


def test_bad_settings():
    with pytest.raises(UserError, match="timeout"):
        RewardSum([("a", numeric, 1.0)], timeout=0)
    with pytest.raises(UserError, match="workers"):
        RewardSum([("a", numeric, 1.0)], workers=0)


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
