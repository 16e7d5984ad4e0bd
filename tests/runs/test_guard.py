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
from posttrain.runs.guard import Guard, default_limit, default_worst, fitted_temperature, handful, own_rollouts
from posttrain.runs.run import Run
from posttrain.runs.truncation import LIMIT, Truncation, ratios
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
    with pytest.raises(UserError, match=r"step 1: sampler and trainer differ by .* \(limit 0.001\): unexplained"):
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


def test_a_gap_at_one_token_is_seen_and_placed(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """One token in about a hundred is off by 0.05: the mean stays below its limit, the maximum does not."""

    def spoil(groups: list[Group], step: int) -> None:
        own_rollouts(groups)[3].turns[-1].logp_T[2] += 0.05

    loop.source.rollout = Faulty(loop.source.rollout, spoil)
    assert found(loop) == {"single tokens differ": 2}
    assert all(gap < 1e-3 for _, gap in loop.run.store.series("logp_gap"))
    said = capsys.readouterr().err
    assert "differ by 0.05 nats at single tokens (limit 0.02)" in said
    assert "token 2 (" in said and "of answer 3 to train-" in said and "differs by -0.05" in said


def test_the_maximum_is_kept_of_the_whole_minibatch(loop: Loop) -> None:
    train(loop)
    assert all(0 < x < 1e-4 for _, x in loop.run.store.series("logp_gap_max"))
    assert default_worst(loop.learner.policy) == 0.02


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_a_sampler_that_truncates_and_says_nothing_is_seen(
    loop: Loop, cut: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its log-probabilities are the trainer's to the last digit; only which tokens come is different."""
    loop.config = dataclasses.replace(loop.config, steps=8, lr=1e-6)
    loop.source.sampling = dataclasses.replace(loop.config.sampling, **cut)
    assert "changed sampling parameters" in found(loop)
    assert all(gap < 1e-5 for _, gap in loop.run.store.series("logp_gap"))
    assert f"tokens come as after {next(iter(cut))}=" in capsys.readouterr().err


def test_truncation_that_the_settings_ask_for_is_no_finding(loop: Loop) -> None:
    how = dataclasses.replace(loop.config.sampling, top_p=0.9)
    loop.config = dataclasses.replace(loop.config, sampling=how, steps=4)
    loop.source.sampling = how
    assert found(loop) == {}


def test_an_honest_sampler_never_looks_truncated() -> None:
    """200,000 draws from random distributions, flat and peaked: the evidence for no cut comes near the limit."""
    generator = torch.Generator().manual_seed(0)
    seen = Truncation()
    for sharpness in (0.5, 2.0, 5.0, 20.0):
        for _ in range(10):
            p_NV = (
                torch.softmax(sharpness * torch.randn(5000, 40, generator=generator), -1)
                .sort(-1, descending=True)
                .values
            )
            place_N = torch.multinomial(p_NV, 1, generator=generator).squeeze(-1)
            assert seen.add(ratios(p_NV, place_N)) is None
            assert max(seen.evidence.values()) < 0.7 * LIMIT


def test_evidence_for_a_cut_is_the_likelihood_ratio() -> None:
    # p = (0.5, 0.3, 0.2): top_p = 0.5 keeps one token of mass 0.5, 0.8 two of 0.8; min_p never cuts at 0.1; top_k = 5 keeps all
    p_NV = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    found = ratios(p_NV, torch.tensor([0, 2]))
    inside = lambda mass: math.log(0.98 / mass + 0.02)  # noqa: E731
    expected = {("top_p", 0.5): (inside(0.5), math.log(0.02)), ("top_p", 0.8): (inside(0.8), math.log(0.02)),
                ("top_k", 5): (0.0, 0.0), ("min_p", 0.1): (0.0, 0.0)}  # fmt: skip
    for cut, (first, second) in expected.items():
        assert found[cut].tolist() == pytest.approx([first, second], abs=1e-6)
    w = Truncation()
    w.add({("top_p", 0.5): torch.tensor([0.7, -3.9, 0.7, 0.7])})
    assert w.evidence["top_p", 0.5] == pytest.approx(1.4)  # max(0, 0.7 - 3.9) = 0, then 1.4
    assert w.add({("top_p", 0.5): torch.tensor([30.0])}) == ("top_p", 0.5) and w.evidence == {}
