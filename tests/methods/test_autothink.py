"""AutoThink: three stages in order, each with its own reward, on the embedded model."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.systems.efficient_reasoning.autothink import autothink


def test_stages() -> None:
    made = autothink(balance=2, both=3, prune=4)
    assert [(p.name, p.steps, p.method.shaping[0].name) for p in made.parts] == [
        ("balance", 2, "autothink-balance"), ("both", 3, "autothink"), ("prune", 4, "autothink-length"),
    ]  # fmt: skip
    assert all(p.method.shaping[0].params == {"outcome": "right", "mode": "thinks"} for p in made.parts)
    assert [p.name for p in autothink(balance=0).parts] == ["both", "prune"]
    with pytest.raises(UserError, match="'both': -1"):
        autothink(both=-1)


def test_the_whole_plan(tmp_path: Path) -> None:
    config = Config(task="arithmetic", prompts=2, eval_problems=2, sampling=Sampling(max_tokens=24))
    summary = run_plan(autothink(1, 1, 1), config, tmp_path)
    assert summary["plan"] == "autothink" and not summary["stopped"]
