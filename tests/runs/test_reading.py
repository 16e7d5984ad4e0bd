"""Runs as rows of a table: whatever a damaged folder holds, it is still listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.runs.reading import read_run


@pytest.mark.parametrize(
    ("config", "summary"),
    [
        ({"parts": [], "method": "grpo"}, {}),
        ({"parts": None, "method": "grpo", "seed": [1]}, {"seconds": "long"}),
        ({"parts": {"name": "grpo"}, "steps": {}}, {}),
    ],
)
def test_settings_of_another_kind(config: dict, summary: dict, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"steps": 4, **config}))
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    row = read_run(tmp_path, tmp_path.parent)
    assert row.method == "grpo" and row.state == "stopped" and row.seconds == 0.0
    assert row.seed == 0 and row.steps == (4 if "steps" not in config else 0)
