"""`--profile`: a trace that tools can open, of whole steps, named in the summary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import posttrain as pt
from tests.runs import tiny_run


@pytest.mark.parametrize(("steps", "name"), [(4, "train-000002"), (1, "train-000000")])
def test_a_trace_of_the_steps_after_the_first(tmp_path: Path, steps: int, name: str) -> None:
    summary = pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), steps=steps, prompts=2, num_generations=2, eval_problems=0,
        sampling={"max_tokens": 3}, runs=tmp_path, name="run", profile=True,
    )  # fmt: skip
    assert summary["profile"] == str(tmp_path / f"run/profile/{name}.json.gz")
    assert json.loads((tmp_path / "run/summary.json").read_text())["profile"] == summary["profile"]
    with gzip.open(summary["profile"]) as file:
        trace = json.load(file)
    assert any("mm" in event["name"] for event in trace["traceEvents"] if event.get("ph") == "X")
