"""The end of a run tells what its monitors have found."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from posttrain.runs.store import Store
from posttrain.view import live
from tests.page.test_monitors import write


@pytest.mark.parametrize(
    "style, told", [(True, ["reward rises while held-out falls", "a-style takes over"]), (False, [])]
)
def test_warnings_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: bool, told: list[str]) -> None:
    monkeypatch.setattr(live, "report", lambda *args: None)
    out = io.StringIO()
    with Store(write(tmp_path / "run", "fine", style)) as store:
        loop: Any = SimpleNamespace(run=SimpleNamespace(store=store), phase="train")
        live.Watch(Console(file=out, width=300)).end(loop, None, None, {"plan": "p"})
    lines = [line for line in out.getvalue().splitlines() if line.startswith("warning: ")]
    assert len(lines) == len(told) and all(any(t in line for line in lines) for t in told)
