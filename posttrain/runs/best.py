"""The checkpoint with the best held-out score, kept beside the newest ones: weights only, in the run's folder `best/`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.runs.checkpoint import Checkpoint, listing, prune, sweep, write
from posttrain.runs.tables import Tables

BEST = "best"


@dataclass(frozen=True)
class Best:
    """The last step that its weights have seen, and its score."""

    step: int
    score: float


def best_of(folder: Path, phase: str) -> Best | None:
    """What is kept as the best of a phase; its weights are not read."""
    for step, path in listing(folder / BEST, phase):
        try:
            return Best(step, float(json.loads((path / "state.json").read_text())["body"]["state"]["score"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def is_better(old: Best | None, found: Best) -> bool:
    """Whether it is to be kept in place of what there was."""
    return math.isfinite(found.score) and (old is None or (old.score < found.score and old.step != found.step))


def keep_best(folder: Path, phase: str, found: Best, weights: Callable[[], Tables], config: str) -> None:
    """Keep the weights after a step if no earlier ones did as well; a step that is repeated finds its own."""
    old, step, score = best_of(folder, phase), found.step, found.score
    if old is not None:
        prune(folder / BEST, phase, old.step, keep=1)  # a kill may have come before it
    if not is_better(old, found):
        return
    sweep(folder / BEST)
    state: dict[str, Any] = {"score": score, "config": config}
    write(folder / BEST, Checkpoint(phase, step, {"weights": weights()["weights"]}, state))
    prune(folder / BEST, phase, step, keep=1)
