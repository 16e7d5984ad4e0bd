"""`python -m benchmarks.page` at 1/50 of its size: it runs, and what must not grow with a run does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.page import live, measure, missed, requests, write
from posttrain.page import rollouts, series
from posttrain.page.api import answer
from posttrain.page.folder import Folder


def test_a_fiftieth(tmp_path: Path) -> None:
    """Times are not asserted on a machine that others use; sizes and rows looked at are what would make them grow."""
    write(tmp_path, steps=400, answers=25, tokens=20)
    found = measure(tmp_path, 400)
    assert set(found) == set(requests(400)) and all(row["kB"] > 0 for row in found.values())
    assert missed({"open": {"ms": 1001.0}, "answers": {"ms": 99.0}}) == ["open: 1001.0 ms, the bar is 1000"]
    folder = Folder(tmp_path)
    for points, bins in ((100, 100), (10, 4)):
        curve = answer(folder, "metrics", {"run": "large", "names": "reward", "points": str(points)})["curves"][
            "reward"
        ]
        assert len(curve["mean"]) == bins, "400 steps in bins of 4 or 100"
    with folder.open("large") as reader:
        reward = [v for _, v in reader.series("reward", "train")]
    hundreds = [reward[k : k + 100] for k in range(0, 400, 100)]
    assert curve["step"] == [100, 200, 300, 400] and curve["high"] == [pytest.approx(max(x), 1e-5) for x in hundreds]
    assert curve["mean"] == [pytest.approx(sum(x) / 100, 1e-5) for x in hundreds], "from the roll-ups"
    two = answer(
        folder, "metrics", {"run": "large", "names": "reward,accuracy,seconds", "points": "10", "after": "250"}
    )
    assert (
        two["from"] == 200
        and two["curves"]["reward"]["mean"] == pytest.approx(curve["mean"][2:], 1e-5)
        and two["curves"]["seconds"]["step"] == [300, 400]
    )
    assert answer(folder, "rollouts", {"run": "large", "phase": "train", "order": "best"})["looked"] == 50
    deep = answer(folder, "rollouts", {"run": "large", "phase": "train", "at": json.dumps([300, 4, 4])})
    assert deep["looked"] == 50 and deep["rows"][0]["step"] == 302, "a page deep inside costs what the first does"
    assert len(answer(folder, "scatter", {"run": "large", "phase": "train"})["points"]) == 2000
    assert rollouts.LIMIT == 200 and series.POINTS == 500


def test_the_writer_with_a_page_open(tmp_path: Path) -> None:
    found = live(tmp_path, 1.5, page=True)
    assert set(found) == {"cpu_share", "log_ms", "wal_mb"} and 0 < found["wal_mb"] < 20
