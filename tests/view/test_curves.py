"""Pictures are drawn from what the run holds, and only from that."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.evals.pictures import frontier
from posttrain.runs.run import Run
from posttrain.view.curves import learning_curve, running_mean


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Run(tmp_path / "a", {"seed": 0}) as run:
        for step, reward in enumerate((0.0, 0.5, float("nan"), 1.0)):
            run.log("train", step, {"reward": reward}, [], 1.0)
    return tmp_path / "a"


def test_learning_curve(folder: Path, tmp_path: Path) -> None:
    png = learning_curve(folder, tmp_path / "sub" / "a.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    svg = learning_curve([folder, folder], tmp_path / "b.svg", title="two runs").read_text()
    assert "<svg" in svg and "two runs" in svg


def test_frontier(tmp_path: Path) -> None:
    series = {"gold": [(2.0, 0.5), (0.0, 0.0), (1.0, float("nan"))], "proxy": [(0.0, 0.1)], "empty": []}
    svg = frontier(series, "KL", "reward", "over-optimisation", tmp_path / "f.svg").read_text()
    for word in ("gold", "proxy", "KL", "reward", "over-optimisation"):
        assert f"<!-- {word} -->" in svg or word in svg


def test_running_mean_by_hand() -> None:
    assert running_mean([(0, 1.0), (1, 3.0), (2, 5.0)], 2) == [(0, 1.0), (1, 2.0), (2, 4.0)]


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"end in \.png"):
        learning_curve(folder, tmp_path / "a.txt")
    with pytest.raises(UserError, match="did you mean 'reward'"):
        learning_curve(folder, tmp_path / "a.png", metric="rewrad")
    with pytest.raises(UserError, match="no run in"):
        learning_curve(tmp_path / "nowhere", tmp_path / "a.png")
    with pytest.raises(UserError, match="at least one point"):
        frontier({"a": []}, "x", "y", "t", tmp_path / "a.png")
