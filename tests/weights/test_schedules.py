"""Schedules of the learning rate, and what an update reports of itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError
from posttrain.runs import compare
from posttrain.runs.build import build_learners
from posttrain.runs.run import Run
from posttrain.train import train
from posttrain.weights.schedules import SCHEDULES
from posttrain.weights.tally import Tally
from tests.runs import tiny_run


@pytest.mark.parametrize(
    ("name", "floor", "at"),
    [
        ("linear", 0.0, {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("linear", 0.1, {0.0: 1.0, 0.5: 0.55, 1.0: 0.1}),
        # 0.1 + 0.9 (1 + cos(pi / 3)) / 2 = 0.1 + 0.9 * 0.75
        ("cosine", 0.1, {0.0: 1.0, 1 / 3: 0.775, 0.5: 0.55, 1.0: 0.1}),
        ("cosine", 0.0, {0.5: 0.5, 1.0: 0.0}),
        ("wsd", 0.2, {0.0: 1.0, 0.79: 1.0, 0.9: 0.6, 1.0: 0.2}),
    ],
)  # fmt: skip
def test_values(name: str, floor: float, at: dict[float, float]) -> None:
    for done, share in at.items():
        assert SCHEDULES[name](done, floor) == pytest.approx(share, abs=1e-12)


def test_a_run_follows_its_schedule_and_says_the_rate(tmp_path: Path) -> None:
    """lr 3e-3, warm-up over 3 updates of which a step has 4, cosine over 4 steps to 1e-3: mean of step 0 is (1/3 + 2/3 + 1 + 1) / 4."""
    settings = tiny_run.config(steps=4, schedule="cosine", min_lr=1e-3)
    with Run(tmp_path / "run", to_dict(settings)) as run:
        loop = tiny_run.build(run, settings)
        method = loop.method
        loop.learners = build_learners(settings, method, {"policy": loop.policy})
        train(loop)
        rates = [value for _, value in run.store.series("lr")]
        streams = run.store.rollouts(step=1)[0]
    floor = 1 / 3
    shares = [floor + (1 - floor) * (1 + math.cos(math.pi * s / 4)) / 2 for s in range(4)]
    shares[0] *= 0.75
    assert rates == pytest.approx([3e-3 * s for s in shares])
    # at the first pass of a step the trainer agrees with the sampler, token by token
    assert len(streams["ratio"]) == len(streams["tokens"]) and all(abs(r - 1) < 2e-3 for r in streams["ratio"])


@pytest.mark.parametrize(("schedule", "falls"), [("cosine", 2), ("linear", 2), ("constant", 0)])
def test_comparisons_follow_the_schedule_too(monkeypatch: pytest.MonkeyPatch, schedule: str, falls: int) -> None:
    made: list[tuple[int, str]] = []
    monkeypatch.setattr(compare, "train", lambda loop: made.append((loop.learner.decay_over, loop.learner.schedule)))
    small = tiny_run.config(steps=2, schedule=schedule, model="pocket", eval_problems=1, think=False, lr=1e-4)
    compare._train(tiny_run.method(), tiny_run.Count(), small)
    assert made == [(falls, schedule if falls else "linear")]


def test_a_floor_above_the_peak_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"min_lr is 0\.1, more than the learning rate 0\.003"):
        build_learners(tiny_run.config(min_lr=0.1), tiny_run.method(), {"policy": tiny_run.policy()})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"schedule": "cosin"}, "use 'linear', 'cosine'"),
        ({"min_lr": -1.0}, "min_lr is -1.0"),
        ({"min_lr": math.nan}, "min_lr is nan"),
        ({"min_lr": 1e-6, "schedule": "constant"}, "--schedule cosine"),
        ({"store_gb": -1}, "store_gb is -1"),
        ({"store_gb": math.nan}, "store_gb is nan"),
    ],
)
def test_settings_are_checked(wrong: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Config(**wrong)


def test_approximate_kl_of_an_update() -> None:
    """Ratios 2, 1 and, masked, 9: mean of r - 1 - log r is (1 - log 2 + 0) / 2; one of two is beyond 1 +- 0.2."""
    from posttrain.core.batch import Batch

    old_BT = torch.zeros(1, 3)
    batch = Batch(
        logp_BT=torch.tensor([[math.log(2), 0.0, math.log(9)]]),
        old_logp_BT=old_BT,
        mask_BT=torch.tensor([[1.0, 1.0, 0.0]]),
    )
    tally = Tally()
    tally.add(0.5, batch)
    seen = tally.report()
    assert (
        seen["approx_kl"] == pytest.approx((1 - math.log(2)) / 2)
        and seen["clip_fraction"] == 0.5
        and seen["loss"] == 0.5
    )
