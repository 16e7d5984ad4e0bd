"""Grading while sampling: rewards of single answers begin when an answer ends, and nothing else changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from posttrain.core.types import Group, Prompt
from posttrain.inference.engine import Engine
from posttrain.models.sampling import generate
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rollouts.sources import LocalSource
from tests.runs.tiny_run import Count, config, method, policy


def source(reward: Callable[..., Any], timeout: float = 30.0) -> LocalSource:
    m, p, settings = method(), policy(), config()
    scorer = RewardSum([("share", reward, 1.0)], timeout=timeout)
    return LocalSource({"policy": p}, Count(), m.rollout, scorer, m.prompts.live(), (settings.sampling, 6, 0))


def grade(prompt: Prompt, text: str) -> float:
    return Count().grade(prompt, text)


def test_answers_are_graded_before_the_last_one_has_ended() -> None:
    sampling, during = threading.Event(), []

    def seen(prompt: Prompt, text: str) -> float:
        during.append(sampling.is_set())
        return grade(prompt, text)

    s = source(seen)
    p = s.policies["policy"]
    act = p.act

    def watched(*args: Any, **kwargs: Any) -> Any:
        sampling.set()
        made = act(*args, **kwargs)
        wait = time.monotonic() + 5
        while not during and time.monotonic() < wait:
            time.sleep(0.001)
        sampling.clear()
        return made

    p.act = watched  # type: ignore[method-assign]
    groups, report = s.next(0)
    assert len(during) == report.n == sum(len(g.rollouts) for g in groups)  # each once
    assert any(during)


def test_rewards_and_report_are_those_of_grading_afterwards() -> None:
    s = source(grade)
    groups, report = s.next(0)
    ended = [r for g in groups for r in g.rollouts if not r.truncated]
    assert ended, "no answer ended, so nothing was graded ahead"
    plain = RewardSum([("share", grade, 1.0)], timeout=30)
    got = [r.reward for g in groups for r in g.rollouts]
    again = plain.score(groups)
    assert got == [r.reward for g in groups for r in g.rollouts]
    assert (report.n, report.masked, report.rewards[0].mean) == (again.n, again.masked, again.rewards[0].mean)


def test_a_failure_and_a_late_call_mask_their_answer_alone() -> None:
    hold = threading.Event()

    def odd(prompt: Prompt, text: str) -> float:
        if prompt.answer == "a":
            raise ValueError("no a")
        if prompt.answer == "b":
            hold.wait(20)
        return 1.0

    _, report = source(odd, timeout=0.3).next(0)
    hold.set()
    share = report.rewards[0]
    assert share.failed == report.masked == report.n * 4 // 6  # of six prompts a, b, c, d, a, b four are a or b
    assert share.late == report.n * 2 // 6 and "no a" in share.error + report.why


def test_a_reward_of_lists_gets_the_same_list() -> None:
    calls: list[tuple[list[str], list[str]]] = []

    def listed(prompts: list[Prompt], texts: list[str]) -> list[float]:
        calls.append(([p.id for p in prompts], list(texts)))
        return [0.0] * len(texts)

    s = source(listed)
    groups, _ = s.next(0)
    assert calls == [([r.prompt.id for g in groups for r in g.rollouts], [r.text for g in groups for r in g.rollouts])]


def test_a_text_that_was_changed_after_sampling_is_graded_again() -> None:
    scorer = RewardSum([("share", grade, 1.0)])
    prompt = Count().prompt(0)
    r = policy().written(prompt, "aab")
    scorer.begin(prompt, r.index, lambda: "bbb")
    scorer.score([Group(prompt, [r])])
    assert r.reward == pytest.approx(2 / 3)


def test_nothing_is_kept_from_step_to_step() -> None:
    scorer = RewardSum([("share", grade, 1.0)])
    prompt = Count().prompt(0)
    scorer.begin(prompt, 5, lambda: "a")
    scorer.score([])
    assert not scorer.begun.items and not scorer.begun.queue


@pytest.mark.parametrize("engine", [True, False])
def test_samplers_tell_of_answers_as_they_end(engine: bool) -> None:
    p, told = policy(), {}
    contexts = [p.encode(Count().prompt(i)) for i in range(3)]
    keys = [[10 * g + i for i in range(4)] for g in range(3)]

    def hear(g: int, i: int, tokens: Any) -> None:
        assert (g, i) not in told
        told[g, i] = tokens.tolist()

    how = config().sampling
    if engine:
        engine_ = Engine(p.model)  # type: ignore[arg-type]
        engine_.finished = hear
        made = engine_.generate(contexts, keys, how, p.stop_ids)
    else:
        made = generate(p.model, contexts, keys, how, p.stop_ids, finished=hear)  # type: ignore[arg-type]
    ended = {(g, i): s.tokens.tolist() for g, row in enumerate(made) for i, s in enumerate(row)}
    assert told and told.items() <= ended.items()
    early = {k for k, tokens in ended.items() if len(tokens) < max(map(len, ended.values())) - 1}
    assert early and early <= set(told)  # those that end last may be left out: nothing is done beside them
