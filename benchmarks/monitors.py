"""The monitors on curves and runs whose truth is known: how often they speak where nothing is wrong, and where something is.

python -m benchmarks.monitors --curves FOLDER      # published curves: dopamine_atari_runs_8games.jsonl.gz, dopamine_mujoco_sac_runs.jsonl.gz
python -m benchmarks.monitors --runs FOLDER        # runs named sound-... or planted-...: what was found in each

Published curves are returns of several runs of one agent in one game, by iteration. Held-out scores of a run are those of another run of the
same agent, every tenth iteration: whatever speaks of over-optimisation there is wrong, unless that other run itself ended below its start. The
same scores turned around in time fall while the reward rises: silence is wrong there. A curve in random order has no trend: neither a rise nor
a fall is right. A curve that is followed by itself, turned around, ends where it began: silence is wrong where it had risen.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from posttrain.runs import monitors as m
from posttrain.runs.reader import Reader
from posttrain.runs.warnings import findings

FILES = {"dopamine_atari_runs_8games": "game", "dopamine_mujoco_sac_runs": "env"}
EVERY = 10  # iterations from one held-out score to the next


def published(folder: Path) -> dict[tuple[str, str], list[list[float]]]:
    """(game, agent) -> the returns of each run, in order."""
    out: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for name, where in FILES.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "rt") as file:
            for row in map(json.loads, file):
                out[row[where], row["agent"]][row["run"]].append((row["iteration"], row["return"]))
    return {key: [[v for _, v in sorted(run)] for _, run in sorted(runs.items())] for key, runs in out.items()}


def curve(values: list[float], every: int = 1) -> list[tuple[int, float]]:
    return [(i, v) for i, v in enumerate(values) if i % every == 0]


def rises(values: list[float], errors: float = m.RISE) -> bool:
    """As `over_optimised` asks it of the reward."""
    e = m.ends(curve(values))
    return e is not None and e.now - e.start > errors * m._noise(curve(values))


def on_curves(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = defaultdict(int)
    draw = random.Random(0)
    for runs in published(folder).values():
        for i, reward in enumerate(runs):
            other = runs[(i + 1) % len(runs)]
            if len(runs) < 2 or len(reward) < 40 or len(other) != len(reward):
                continue
            found["runs"] += 1
            found["whose reward rises"] += rises(reward)
            honest = m.over_optimised(curve(reward), curve(other, EVERY)) is not None
            fell = other[-1] < other[0]
            found["over-optimised, said of another run's scores"] += honest and not fell
            found["over-optimised, said where those ended below their start"] += honest and fell
            found["over-optimised, said of falling scores"] += (
                m.over_optimised(curve(reward), curve(other[::-1], EVERY)) is not None
            )
            for errors in (2.0, 3.0, m.RISE):
                mixed = draw.sample(reward, len(reward))
                found[f"a rise of {errors:g} standard errors in random order"] += rises(mixed, errors)
            found["a fall, said"] += m.reward_falls(curve(reward)) is not None
            found["a fall in random order, said"] += m.reward_falls(curve(draw.sample(reward, len(reward)))) is not None
            back = m.reward_falls(curve(reward + reward[::-1])) is not None
            found["a fall back to the start after a rise, said"] += back and rises(reward)
    return dict(found)


def on_runs(folder: Path) -> dict[str, list[str]]:
    """Run -> the monitors that speak at its end."""
    out = {}
    for path in sorted(folder.glob("*/run.sqlite")):
        with Reader(path) as reader:
            out[path.parent.name] = sorted({f.name for phase in reader.phases() for f in findings(reader, phase)})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path)
    parser.add_argument("--runs", type=Path)
    args = parser.parse_args()
    if args.curves:
        print(json.dumps(on_curves(args.curves), indent=1))
    if args.runs:
        print(json.dumps(on_runs(args.runs), indent=1))


if __name__ == "__main__":
    main()
