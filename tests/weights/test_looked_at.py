"""What rollouts keep of each token to be looked at: derived at one point, and as a run stores it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.config import to_dict
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.ppo import ppo
from posttrain.runs.run import Run
from posttrain.train import train
from posttrain.weights.tally import looked_at
from tests.runs import tiny_run


def test_values() -> None:
    """log p 1/2 where the sampler had 1/4: ratio 2. The reference has 1: d = ln 2, kl = 2 - 1 - ln 2. The value is that of before."""
    half, quarter = torch.full((1, 1), math.log(0.5)), torch.full((1, 1), math.log(0.25))
    streams = {"mask_BT": torch.ones(1, 1), "logp_BT": half, "old_logp_BT": quarter}
    assert set(looked_at(Batch(**streams))) == {"ratio"}
    streams |= {"ref_logp_BT": torch.zeros(1, 1), "value_BT": torch.full((1, 1), 3.0)}
    found = looked_at(Batch(**streams))
    assert found["ratio"].item() == pytest.approx(2) and found["kl"].item() == pytest.approx(1 - math.log(2))
    assert found["value"].item() == 3
    assert looked_at(Batch(**streams, old_value_BT=torch.ones(1, 1)))["value"].item() == 1


def test_a_run_stores_them(tmp_path: Path) -> None:
    """The mean of a step's stored KL is its metric, where a step is one pass; a critic values each token."""
    settings = tiny_run.config(steps=3, log_rollouts=-1)
    method = ppo.but(rollout=ppo.rollout.but(n=2), terms=(*ppo.terms, kl), epochs=1, minibatches=1)
    with Run(tmp_path / "run", to_dict(settings)) as run:
        train(tiny_run.build(run, settings, method))
        measured, stored = dict(run.store.series("kl")), run.store.rollouts(step=2)
    flat = [x for row in stored for x, own in zip(row["kl"], row["mask"], strict=True) if own]
    assert measured[2] > 1e-5 and sum(flat) / len(flat) == pytest.approx(measured[2], rel=5e-3)
    values = [x for row in stored for x in row["value"]]
    assert len(values) == sum(len(row["tokens"]) for row in stored) and len(set(values)) > 1
