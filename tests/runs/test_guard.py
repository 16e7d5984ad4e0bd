"""The mismatch guard: silent when sampler and trainer agree, and right about each fault that is put in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.config import to_dict
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation
from posttrain.core.types import Group, Prompt
from posttrain.losses.aggregate import token_mean
from posttrain.losses.supervised.sft import sft
from posttrain.rollouts.written import demonstrations
from posttrain.runs.guard import Guard, default_limit, fitted_temperature, handful, own_rollouts
from posttrain.runs.run import Run
from posttrain.train import train
from tests.runs import tiny_run


class Faulty:
    """A rollout with something wrong in it."""

    def __init__(
        self, inner: Any, spoil: Callable[[list[Group], int], None], change: Callable[[Prompt], Prompt] | None = None
    ):
        self.inner, self.spoil, self.change = inner, spoil, change

    def __call__(self, ask: RolloutRequest) -> list[Group]:
        prompts = [self.change(p) for p in ask.prompts] if self.change else ask.prompts
        groups = self.inner(ask.but(prompts=prompts))
        for group, prompt in zip(groups, ask.prompts, strict=True):
            group.prompt = prompt
            for r in group.rollouts:
                r.prompt = prompt
        self.spoil(groups, ask.step)
        return groups


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    torch.set_num_threads(1)
    settings = tiny_run.config(steps=2, lr=1e-4)  # the guard looks after the update, which should be a small one
    method = tiny_run.method().but(epochs=1, minibatches=1)
    made = tiny_run.build(Run(tmp_path, to_dict(settings)), settings, method)
    made.monitors = [Guard()]
    return made


def guard_of(loop: Loop) -> Guard:
    (guard,) = loop.monitors
    return guard


def found(loop: Loop) -> dict[str, int]:
    train(loop)
    return guard_of(loop).counts


def test_silent_when_all_is_well(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(loop) == {}
    assert capsys.readouterr().err == "" and loop.run.store.events() == []
    assert all(gap < 1e-5 for _, gap in loop.run.store.series("logp_gap"))


def _perturb(loop: Loop) -> None:
    with torch.no_grad():
        for p in loop.learner.policy.parameters():
            p.mul_(1.1)


def test_stale_weights(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """The sampler's weights are older than the trainer's, and its rollouts say so: counted twice, told once."""

    def spoil(groups: list[Group], step: int) -> None:
        _perturb(loop)
        for r in own_rollouts(groups):
            r.turns[-1].version_T = torch.full((len(r),), step - 1)

    loop.source.rollout = Faulty(loop.source.rollout, spoil)
    assert found(loop) == {"stale weights": 2}
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and "stale weights: all 12 answers were sampled from weights of step -1 or older" in told[0]
    assert [e["kind"] for e in loop.run.store.events()] == ["mismatch: stale weights"] * 2


def test_weights_changed_behind_the_guards_back(loop: Loop) -> None:
    """Same version, other weights: nothing says so outright, the gap is spread evenly, and no cause is made up."""
    loop.source.rollout = Faulty(loop.source.rollout, lambda groups, step: _perturb(loop))
    assert found(loop) == {"unexplained": 2}


def test_temperature_of_the_settings(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled at 0.7 as the settings say, trained at 1 because nobody told the policy."""
    how = dataclasses.replace(loop.config.sampling, temperature=0.7)
    loop.config = dataclasses.replace(loop.config, sampling=how)
    loop.source.sampling = how
    assert found(loop) == {"changed sampling parameters": 2}
    assert "sampled at temperature 0.7, trained at 1; set policy.temperature = 0.7" in capsys.readouterr().err


def test_temperature_of_a_sampler_that_ignores_the_settings(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings agree, the sampler has a default of its own: the temperature is read off its log-probabilities."""
    loop.source.sampling = dataclasses.replace(loop.config.sampling, temperature=0.6)
    assert found(loop) == {"changed sampling parameters": 2}
    assert "temperature 0.6 explains" in capsys.readouterr().err


def test_the_fit_finds_the_temperature_and_puts_the_policys_back() -> None:
    policy = tiny_run.policy()
    policy.temperature = 1.3
    rollouts = policy.sample([tiny_run.Count().prompt(0)], 8, Sampling(max_tokens=8, temperature=0.8))[0]
    best, left = fitted_temperature(policy, rollouts)
    assert best == 0.8 and left < 1e-5 and policy.temperature == 1.3


def test_a_sampler_that_renormalises_after_truncation(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """With top_k its log-probabilities are those of a renormalised, smaller set: larger at every token."""
    how = dataclasses.replace(loop.config.sampling, top_k=5)
    loop.config = dataclasses.replace(loop.config, sampling=how)
    loop.source.sampling = how

    def spoil(groups: list[Group], step: int) -> None:
        for r in own_rollouts(groups):
            r.turns[-1].logp_T = r.logp_T + 0.4  # as if exp(-0.4) of the mass had been kept

    loop.source.rollout = Faulty(loop.source.rollout, spoil)
    assert found(loop) == {"changed sampling parameters": 2}
    assert "as after top_k=5" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [" ", "\n"])
def test_a_template_that_ends_otherwise(loop: Loop, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sampler's template has one more character, the trainer's has not. The first token feels it most."""

    def spoil(groups: list[Group], step: int) -> None:
        for r in own_rollouts(groups):
            r.turns[0].observation = loop.learner.policy.observe(r.prompt)

    loop.source.rollout = Faulty(loop.source.rollout, spoil, lambda p: Prompt.text(p.id, p.last + ending, p.answer))
    assert "template or context differs" in found(loop)
    assert "at the first token" in capsys.readouterr().err


def test_a_context_that_is_not_the_prompts(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """The rollout says outright that it was conditioned on something else."""

    def spoil(groups: list[Group], step: int) -> None:
        for r in own_rollouts(groups):
            r.turns[0].observation = Observation(torch.cat([torch.tensor([5, 9]), r.context]))

    loop.source.rollout = Faulty(loop.source.rollout, spoil)
    assert found(loop) == {"template or context differs": 2}
    assert "12 of 12 answers carry a context" in capsys.readouterr().err


def test_a_log_probability_that_is_not_finite(loop: Loop) -> None:
    def spoil(groups: list[Group], step: int) -> None:
        own_rollouts(groups)[0].logp_T[0] = math.nan

    loop.source.rollout = Faulty(loop.source.rollout, spoil)
    assert found(loop) == {"not finite": 2}


def test_written_answers_are_exempt(tmp_path: Path) -> None:
    """Demonstrations carry no log-probabilities of a sampler: their gap is large and means nothing."""
    settings = tiny_run.config(steps=2)
    method = tiny_run.method().but(rollout=demonstrations, loss=sft, aggregate=token_mean)
    loop = tiny_run.build(Run(tmp_path, to_dict(settings)), settings, method)
    loop.monitors = [Guard()]
    assert found(loop) == {} and all(gap < 1e-6 for _, gap in loop.run.store.series("logp_gap"))


def test_strict_is_an_error_and_the_limit_can_be_set(loop: Loop) -> None:
    loop.source.rollout = Faulty(loop.source.rollout, lambda groups, step: _perturb(loop))
    loop.monitors = [Guard(limit=100.0, strict=True)]
    assert found(loop) == {}
    loop.monitors = [Guard(strict=True)]
    loop.run.store.forget("train", 0)
    with pytest.raises(UserError, match=r"step 0: sampler and trainer differ by .* \(limit 0.001\): unexplained"):
        seen = {"logp_gap": 0.5}
        ask = RolloutRequest(loop.source.policies, [loop.env.prompt(0)], loop.config.sampling)
        guard_of(loop).check(0, loop.source.rollout(ask), seen, loop)


def test_limits_by_type() -> None:
    policy = tiny_run.policy()
    assert default_limit(policy) == 1e-3
    assert default_limit(policy.to(torch.bfloat16)) == 0.05


def test_the_line_is_printed_the_1st_10th_and_100th_time(capsys: pytest.CaptureFixture[str]) -> None:
    from posttrain.runs.guard import _not_finite

    guard = Guard()
    for _ in range(100):
        guard._tell(_not_finite(), "line")
    assert capsys.readouterr().err.splitlines() == [
        "warning: line", "warning: line (10 times so far)", "warning: line (100 times so far)"
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "looked_at"), [(3, 3), (8, 8), (64, 8)])
def test_a_handful_is_spread_over_the_step(count: int, looked_at: int) -> None:
    chosen = handful(list(range(count)))  # type: ignore[arg-type]
    assert len(chosen) == looked_at and chosen[0] == 0 and chosen[-1] >= count - count // 8 - 1
