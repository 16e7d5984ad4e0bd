"""Figures of a step under the field's names, derived by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.metrics import Stopwatch, describe
from posttrain.core.types import End, Group, Origin, Prompt, Rollout


def answer(reward: float | None, logp: list[float], mask: list[int] | None = None, **rest: object) -> Rollout:
    T = len(logp)
    own = torch.tensor(mask or [1] * T).bool()
    one = torch.tensor([1])
    return Rollout.single(Prompt.text("p", "q"), one, one.expand(T), torch.tensor(logp), own, reward=reward, **rest)


def group(*rollouts: Rollout) -> Group:
    return Group(rollouts[0].prompt, list(rollouts))


def test_rewards_within_groups() -> None:
    """Group 1: 0, 1, 1 has std sqrt(1/3); group 2: 2, 2 is silent; group 3 has one scored answer, so it has no spread."""
    groups = [
        group(answer(0.0, [-1.0]), answer(1.0, [-1.0]), answer(1.0, [-1.0])),
        group(answer(2.0, [-1.0]), answer(2.0, [-1.0]), answer(math.nan, [-1.0])),
        group(answer(5.0, [-1.0]), answer(math.nan, [-1.0])),
    ]
    seen = describe(groups, groups[:1])
    assert seen["reward"] == pytest.approx(11 / 6) and seen["reward_std"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert seen["frac_reward_zero_std"] == 0.5 and seen["groups_kept"] == pytest.approx(1 / 3) and seen["failed"] == 2


def test_one_answer_per_prompt_has_no_spread() -> None:
    assert not {"reward_std", "frac_reward_zero_std"} & set(describe([group(answer(1.0, [-1.0]))], []))


def test_lengths_and_answers_that_were_cut_off() -> None:
    cut = answer(0.0, [-1.0] * 5, stopped=False)
    assert cut.end is End.TRUNCATED
    seen = describe([group(answer(1.0, [-1.0] * 2), cut)], [])
    assert (seen["length"], seen["length_min"], seen["length_max"], seen["truncated"]) == (3.5, 2, 5, 0.5)


def test_entropy_is_estimated_from_the_policys_own_sampled_tokens() -> None:
    """-(−1 − 2 − 4) / 3: masked tokens do not count, nor do answers that others wrote (their log-probabilities are zeros)."""
    own = answer(1.0, [-1.0, -9.0, -2.0], [1, 0, 1])
    seen = describe([group(own, answer(1.0, [-4.0]), answer(1.0, [0.0, 0.0], origin=Origin.WRITTEN))], [])
    assert seen["entropy"] == pytest.approx(7 / 3)
    assert "entropy" not in describe([group(answer(1.0, [0.0], origin=Origin.WRITTEN))], [])


def test_seconds_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling took 5 s of which grading 2, training 1, and 0.5 s after the step was logged belong to the next."""
    clock = iter([0.0, 5.0, 6.0, 6.0, 6.5, 7.5, 8.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watch = Stopwatch()
    watch.lap("sampling")
    watch.lap("training")
    assert watch.read(2.0) == (6.0, {"sampling/seconds": 3.0, "training/seconds": 1.0, "grading/seconds": 2.0})
    watch.lap("storing")
    watch.lap("sampling")
    assert watch.read(0.0) == (2.0, {"storing/seconds": 0.5, "sampling/seconds": 1.0})
