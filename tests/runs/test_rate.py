"""A learning rate that is far off is told early, one that learns is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.runs.rate import LOW, METRIC, RateProbe, few, suggested_lr
from tests.runs import tiny_run


def run(folder: Path, lr: float, steps: int = 9) -> list[tuple[int, float]]:
    pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), steps=steps, prompts=2, num_generations=4, eval_problems=0, lr=lr,
        warmup=2, sampling={"max_tokens": 6}, runs=folder, name="rate", save_every=100,
    )  # fmt: skip
    from posttrain.runs.run import Run

    with Run.open(folder / "rate") as done:
        return done.store.series(METRIC)


def test_a_rate_far_too_small_is_told_and_one_that_learns_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run(tmp_path / "small", 1e-7)
    said = capsys.readouterr().err
    assert said.count("far too small") == 1 and "--lr 1e-06" in said
    assert [step for step, _ in seen] == [4, 6, 8] and max(x for _, x in seen) < LOW
    seen = run(tmp_path / "good", 3e-3)
    assert "learning rate" not in capsys.readouterr().err and min(x for _, x in seen) > LOW


def fed(probe: RateProbe, rewards: list[float], nlls: list[float]) -> list[str]:
    events: list[Any] = []
    loop = SimpleNamespace(
        config=SimpleNamespace(warmup=2), learner=SimpleNamespace(lr=1e-3), phase="train",
        run=SimpleNamespace(event=lambda *a: events.append(a)),
    )  # fmt: skip
    out = []
    for step, (r, h) in enumerate(zip(rewards, nlls, strict=True)):
        out.append(probe.check(step, [], {"reward": r, "nll": h}, loop))
    assert len(events) == sum(map(bool, out))
    return out


def test_a_rate_far_too_large_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    falling = fed(RateProbe(), [0.5] * 4 + [0.1] * 16, [1.0] * 4 + [2.0] * 16)
    assert [i for i, line in enumerate(falling) if line] == [12] and "far too large" in falling[12]
    assert "--lr 1e-04" in capsys.readouterr().err
    assert not any(fed(RateProbe(), [0.5] * 4 + [0.8] * 16, [1.0] * 4 + [2.0] * 16))  # an entropy bonus that works
    assert not any(fed(RateProbe(), [0.5] * 4 + [0.1] * 16, [1.0] * 4 + [0.5] * 16))  # a harder curriculum


def test_in_half_precision_the_rate_is_compared_with_the_suggested_one() -> None:
    probe = RateProbe()
    policy = tiny_run.policy().to(torch.bfloat16)
    groups = [SimpleNamespace(rollouts=policy.sample([tiny_run.Count().prompt(0)], 2, tiny_run.config().sampling)[0])]
    method = SimpleNamespace(scores=False)
    learner = SimpleNamespace(goal=SimpleNamespace(rows="policy"))
    loop = SimpleNamespace(
        config=SimpleNamespace(warmup=0), policy=policy, method=method, learner=learner, shared=False
    )
    probe.on_rollouts(loop, 2, groups)  # type: ignore[arg-type]
    assert probe.before is None
    loop.run = SimpleNamespace(event=lambda *told: None)
    loop.phase, learner.lr = "train", suggested_lr(policy) / 40
    line = probe.check(2, groups, {"grad_norm": 1.0}, loop)  # type: ignore[arg-type]
    assert "far too small" in line and f"{suggested_lr(policy):.0e}" in line
    learner.lr = suggested_lr(policy) / 20
    probe = RateProbe()
    probe.on_rollouts(loop, 2, groups)  # type: ignore[arg-type]
    assert probe.check(2, groups, {"grad_norm": 1.0}, loop) == ""  # type: ignore[arg-type]
    loop.policy = tiny_run.policy()
    probe.on_rollouts(loop, 2, groups)  # type: ignore[arg-type]
    assert probe.before is not None


def test_a_look_reads_some_own_answers_of_one_turn() -> None:
    policy = tiny_run.policy()
    made = [
        r
        for row in policy.sample([tiny_run.Count().prompt(i) for i in range(8)], 8, tiny_run.config().sampling)
        for r in row
    ]
    assert len(few(made)) == 16 and few([policy.written(tiny_run.Count().prompt(0), "aa")]) == []


class Sized:
    def __init__(self, millions: float, lora: bool = False) -> None:
        self.millions, self.lora = millions, lora

    def parameters(self) -> list[Any]:
        return [SimpleNamespace(numel=lambda: int(self.millions * 1e6))]

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [("x.lora_a", None)] if self.lora else [("x.weight", None)]


def test_suggested_rates_are_those_that_measured_best() -> None:
    """2e-4 for the embedded model and 5e-5 at 135 M; with adapters 6e-4 (benchmarks/sweeps/learning_rate.json)."""
    assert suggested_lr(Sized(1.64)) == pytest.approx(2.07e-4, rel=0.01)  # type: ignore[arg-type]
    assert suggested_lr(Sized(134.5)) == pytest.approx(5e-5, rel=0.05)  # type: ignore[arg-type]
    assert suggested_lr(Sized(134.5, lora=True)) == pytest.approx(5e-4, rel=0.05)  # type: ignore[arg-type]
    rates = [suggested_lr(Sized(m)) for m in (1, 2, 5, 50, 135, 500, 1500, 7000)]  # type: ignore[arg-type]
    assert rates == sorted(rates, reverse=True) and 1e-6 < rates[-1] < 3e-6
