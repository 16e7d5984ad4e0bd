"""Written rows of the next step are read before the update of this one is waited for; the run is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.policies import language
from posttrain.rollouts import sources
from posttrain.rollouts.sources import Coming
from posttrain.weights.parallel import Local

ROWS = [
    {"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": str(i + 2)} for i in range(10)
]  # two passes and a half


def run(folder: Path, rows: Any = ROWS, **changes: Any) -> dict[str, torch.Tensor]:
    plain: dict[str, Any] = {"model": "pocket", "task": rows, "method": "dpo", "steps": 5, "prompts": 5, "eval_problems": 0, "name": "rows",
                             "device": "cpu", "threads": 1, "save_every": 2}  # fmt: skip
    posttrain.run(**(plain | changes), runs=str(folder))
    from posttrain.runs.checkpoint import newest

    found = newest(folder / "rows" / "checkpoints", "train")
    assert found is not None
    return found.tables["weights"]


def test_the_next_rows_are_read_before_the_update_is_waited_for_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    read, moved, backward = language.read_ahead, Local.moved, Local.backward
    monkeypatch.setattr(language, "read_ahead", lambda *a: (seen.append("read"), read(*a))[1])
    monkeypatch.setattr(Local, "moved", lambda self, *a: (seen.append("moved"), moved(self, *a))[1])
    monkeypatch.setattr(Local, "backward", lambda self, *a: (seen.append("backward"), backward(self, *a))[1])
    with_it = run(tmp_path / "with")
    first = seen.index("backward")  # before it the reference has read all rows, those of the second step too
    assert seen[first:] == [*("backward", "moved", "read"), *("backward", "read", "moved") * 4], (
        "nothing is read between"
    )
    monkeypatch.setattr(sources.LocalSource, "meanwhile", lambda self: None)
    without = run(tmp_path / "without")
    assert with_it.keys() == without.keys() and all(torch.equal(x, without[name]) for name, x in with_it.items())


def test_a_mistake_in_the_next_rows_is_told_when_they_are_asked_for() -> None:
    def choose() -> list[Any]:
        raise ValueError("a row that cannot be read")

    came = Coming(3, choose, None)
    came.work()
    assert came.prompts is None and came.read is None


def test_rows_that_are_read_from_the_disk_as_they_come_are_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    plain = Coming.__init__
    monkeypatch.setattr(Coming, "__init__", lambda self, at, *a: (begun.append(at), plain(self, at, *a))[1])
    run(tmp_path / "plain", steps=2)
    assert begun == [1, 2]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run(tmp_path / "stream", str(file), steps=2, stream=True)
    assert begun == [1, 2]
