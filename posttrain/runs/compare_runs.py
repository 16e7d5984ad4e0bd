"""Compare runs that exist: the settings that differ, the held-out scores problem by problem, the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.core.config import differences as changed
from posttrain.core.errors import UserError
from posttrain.evals.intervals import estimate, student
from posttrain.runs.reading import read_json, read_run
from posttrain.runs.run import Run

_ALIKE = ("name", "begun", "base")  # of every run its own, or told by another setting


@dataclass(frozen=True)
class Arm:
    """One run: its score after training with the 95% interval over held-out problems, and how far it is from the first run's."""

    name: str
    state: str
    steps: int
    seconds: float
    score: str
    before: float
    after: float
    low: float
    high: float
    ahead: float  # of the first run, problem by problem where both were asked the same ones
    ahead_low: float
    ahead_high: float
    curve: list[float]


@dataclass(frozen=True)
class RunComparison:
    """settings: (setting, the value of each run) for those that differ."""

    settings: list[tuple[str, list[str]]]
    arms: list[Arm]
    curve: str  # the metric of the curves
    same_problems: bool

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = _strict(asdict(self))
        return out


def compare_runs(folders: Sequence[Path]) -> RunComparison:
    """Two runs or more, by their folders."""
    if len({f.resolve() for f in folders}) < max(len(folders), 2):
        raise UserError(f"a comparison needs two different runs or more, got {', '.join(map(str, folders))}")
    told = [_held_out(f / "held_out.json") for f in folders]
    same = all(t.get("prompts") and all(t.get(k) == told[0].get(k) for k in ("prompts", "name")) for t in told)
    configs, curves = [], {}
    for folder in folders:
        with Run.open(folder) as run:
            configs.append({k: v for k, v in run.config.items() if k not in _ALIKE})
            curves[folder] = {name: [v for _, v in run.store.series(name)] for name in ("reward", "loss")}
    scored = all(any(math.isfinite(x) for x in curves[f]["reward"]) for f in folders)
    metric = "reward" if scored else "loss"
    arms = [_arm(f, t, told[0], same, curves[f][metric]) for f, t in zip(folders, told, strict=True)]
    return RunComparison(settings_that_differ(configs), arms, metric, same)


def settings_that_differ(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """(setting, its value in each run), in the order of the settings."""
    pairs = [changed(configs[0], other) for other in configs[1:]]
    names = dict.fromkeys(name for found in pairs for name, _, _ in found if name != "parts.name")
    first = {name: a for found in pairs for name, a, _ in found}
    return [
        (name, [first[name], *(next((b for n, _, b in found if n == name), first[name]) for found in pairs)])
        for name in names
    ]


def _arm(folder: Path, told: dict[str, Any], first: dict[str, Any], same: bool, curve: list[float]) -> Arm:
    row = read_run(folder, folder.parent)
    after, base = _numbers(told.get("after")), _numbers(first.get("after"))
    mean, low, high = _interval(after)
    gaps = [b - a for a, b in zip(base, after, strict=True) if math.isfinite(b - a)] if same else []
    ahead = (_mean(gaps), *student(gaps))
    return Arm(
        row.name, row.state, row.step, row.seconds, str(told.get("name") or row.score), _mean(_numbers(told.get("before"))),
        mean, low, high, *ahead, curve,
    )  # fmt: skip


def _held_out(file: Path) -> dict[str, Any]:
    """What was measured on held-out problems; nothing where the file is not there."""
    told = read_json(file)
    lists = prompts, after, before = [told.get(k) or [] for k in ("prompts", "after", "before")]
    kept = all(isinstance(x, list) for x in lists) and len(prompts) == len(after)
    if not kept or not all(x is None or isinstance(x, int | float) for x in [*after, *before]):
        raise UserError(
            f"{file} is damaged: it has a number for each problem, before and after; delete it to compare without it"
        )
    return told


def _numbers(values: Any) -> list[float]:
    return [math.nan if x is None else float(x) for x in values or []]


def _mean(values: Sequence[float]) -> float:
    finite = [x for x in values if math.isfinite(x)]
    return sum(finite) / len(finite) if finite else math.nan


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval over problems; those that could not be scored are left out."""
    found = estimate([[x] for x in values if math.isfinite(x)])
    return found.mean, found.low, found.high


def _strict(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _strict(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_strict(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
