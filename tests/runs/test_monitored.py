"""The monitors are metrics of a run, at the same steps with the same values whether or not it was stopped in between."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.runs import monitors
from posttrain.runs.monitored import every, figures
from posttrain.runs.reader import Reader
from tests.runs import tiny_run


class Seen:
    """What a tracker is told; may stop the run."""

    def __init__(self, stop: int = -1) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.stop = stop

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.rows.append((step, metrics))
        if step == self.stop:
            raise KeyboardInterrupt


def run(folder: Path, watch: Seen) -> None:
    pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), reward=lambda prompt, text: 0.0, steps=22, prompts=2, runs=folder, name="dull",
        eval_problems=2, sampling={"max_tokens": 6}, num_generations=4, method=pt.find_method("grpo").but(terms=()),
        callbacks=[watch], save_every=4,
    )  # fmt: skip


def measured(folder: Path) -> dict[str, list[tuple[int, float]]]:
    with Reader(folder / "dull" / "run.sqlite") as reader:
        return {n: reader.series(n) for n in reader.names() if n == "warnings" or n.startswith("monitor/")}


def test_a_run_measures_what_its_monitors_say(tmp_path: Path) -> None:
    """All answers earn 0: from ten steps on, groups are silent. A step is looked at before it is stored, so step 9 knows of nine."""
    watch = Seen()
    run(tmp_path / "whole", watch)
    found = measured(tmp_path / "whole")
    assert found["monitor/silent_groups"] == [(9, 0.0), (19, 1.0)] and len(found) == 1 + len(monitors.NAMES)
    assert [v for _, v in found["warnings"]] == [
        sum(found[name][k][1] for name in found if name != "warnings") for k in range(2)
    ]
    told = [(s, m["warnings"]) for s, m in watch.rows if "warnings" in m]
    assert told == found["warnings"], "trackers are told of them as of any metric"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", Seen(stop=18))
    run(tmp_path / "resumed", Seen())
    assert measured(tmp_path / "resumed") == found


def test_a_run_is_looked_at_a_hundred_times_at_most() -> None:
    assert [every(n) for n in (1, 100, 1000, 1001, 20_000)] == [10, 10, 10, 11, 200]


def test_every_finding_has_a_metric() -> None:
    source = Path(monitors.__file__).read_text()
    assert set(re.findall(r'Finding\(\s*"([^"]+)"', source)) == set(monitors.NAMES)
    one = figures({"cut off", "take-over"})
    assert one["warnings"] == 2 and one["monitor/cut_off"] == one["monitor/take_over"] == 1 and sum(one.values()) == 4
