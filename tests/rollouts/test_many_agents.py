"""`python -m benchmarks.agents` at a small size: both readings run, and rows are as those of benchmarks/results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.agents import main
from tests.claims.test_benchmark_rows import KEYS


def test_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"tokens": 4, "prompt": 16, "reply": 4, "turns": 3, "tool-ms": 1, "repeats": 1, "group": 4}
    out = tmp_path / "agents.json"
    how = ["--shape", "tiny", "--readings", "8:8:0", "16:8:0.5", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["agents", *how, *(f"--{k}={v}" for k, v in small.items())])
    main()
    rows = json.loads(out.read_text())
    assert all(row.keys() >= KEYS for row in rows) and len({row["name"] for row in rows}) == 5
    together, pool = rows[0], rows[2]
    assert (together["reading"], pool["reading"]) == ("together", "pool")
    assert pool["agents_that_fill"] >= pool["slots"] == 8
    # 2 prompts of 16 tokens but the last, and 2 replies of 4 to each of 8: no token is read twice
    assert rows[1]["read"] == 2 * 15 + 8 * 2 * 4 and rows[1]["value"] == 0 and rows[1]["met"]
    assert rows[4]["value"] >= 0  # without a GPU a prompt is read again where nobody who has read it is being sampled
