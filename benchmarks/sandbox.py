"""Programs per second in a sandbox, each with its answer checked: fresh (bubblewrap), warm (forked), and a bare interpreter beside them.

    python -m benchmarks.sandbox                # two workers, 200 programs of each kind, three rounds in turn
    python -m benchmarks.sandbox --workers 4 --write   # the median round goes to benchmarks/results/sandbox.json

The bare interpreter (`python -s -S`, no isolation at all) is measured in the same rounds: on a shared machine the ratio to it says
more than the rate. Started in a cgroup of its own (systemd-run --scope), it also tells the processor time of a program, all its
processes together: two idle cores do at most 2 / that many programs per second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.grade import grade
from posttrain.sandbox.languages import python
from posttrain.sandbox.row_tests import read_tests
from posttrain.sandbox.types import Limits, Program
from posttrain.sandbox.warm import Warm

BARS = {"fresh": 100, "warm": 300}  # programs a second
RESULTS = Path(__file__).parent / "results" / "sandbox.json"


def bare(i: int) -> None:
    """A new interpreter, not isolated."""
    done = subprocess.run([*python().command, "-c", f"print({i} * {i})"], capture_output=True, env={}, text=True)
    assert done.stdout == f"{i * i}\n"


def isolated(box: Bubblewrap | Warm) -> Callable[[int], None]:
    """One program in the sandbox; its answer must be its own."""

    def one(i: int) -> None:
        done = box.run(Program("python", f"print({i} * {i})"))
        assert done.stdout == f"{i * i}\n", done

    return one


def graded(box: Warm) -> Callable[[int], None]:
    """One program against three asserts."""
    tests = read_tests({"tests": [f"assert f({k}) == {k * k}" for k in (2, 3, 4)]})

    def one(i: int) -> None:
        found = grade(box, Program("python", f"def f(x): return x * x  # {i}"), tests, Limits())
        assert found.passed == 3, found

    return one


def used() -> float:
    """Seconds of processor that the cgroup of this process has used; NaN where it has none of its own."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, place = line.split(":", 2)
        if place != "/" and "cpuacct" in names.split(","):
            return int(Path(f"/sys/fs/cgroup/{names}{place}/cpuacct.usage").read_text()) / 1e9
        if place != "/" and not names and (file := Path(f"/sys/fs/cgroup{place}/cpu.stat")).is_file():
            return int(file.read_text().split()[1]) / 1e6
    return float("nan")


def rate(one: Callable[[int], None], n: int, workers: int) -> tuple[float, float]:
    """Programs per second, and milliseconds of processor for each."""
    with ThreadPoolExecutor(workers) as pool:
        began, before = time.perf_counter(), used()
        list(pool.map(one, range(n)))
        return n / (time.perf_counter() - began), (used() - before) / n * 1e3


def main() -> None:
    """Measure the kinds in turn, and print the median of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULTS.name}")
    asked = parser.parse_args()
    warm = Warm()
    kinds = {
        "bare interpreter": bare,
        "fresh": isolated(Bubblewrap()),
        "warm": isolated(warm),
        "warm, graded": graded(warm),
    }
    for one in kinds.values():
        one(1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(asked.rounds):
        for name, one in kinds.items():
            found[name].append(rate(one, asked.programs, asked.workers))
    rates = {name: round(statistics.median(r for r, _ in some), 1) for name, some in found.items()}
    costs = {name: round(statistics.median(c for _, c in some), 2) for name, some in found.items()}
    for name, value in rates.items():
        rounds = ", ".join(f"{r:.0f}" for r, _ in found[name])
        beside = f"{value / rates['bare interpreter']:.2f} of bare, {costs[name]:.2f} ms of processor each"
        print(f"{name:18} {value:7.1f} programs/s   {beside}   rounds: {rounds}")
    load = os.getloadavg()[0]
    print(f"{asked.workers} workers, {os.cpu_count()} cores, load of the machine {load:.1f}")
    if asked.write:
        facts = {
            "hardware": f"{os.cpu_count()} CPU cores",
            "versions": f"Python {platform.python_version()}, Linux {platform.release()}",
        }
        facts |= {
            "date": time.strftime("%Y-%m-%d"),
            "command": f"python -m benchmarks.sandbox --workers {asked.workers} --programs {asked.programs}",
        }
        RESULTS.write_text(json.dumps([row(name, rates, costs, load) | facts for name in kinds], indent=1) + "\n")


def row(name: str, rates: dict[str, float], costs: dict[str, float], load: float) -> dict[str, Any]:
    """As in the other files of results."""
    value, bar = rates[name], BARS.get(name)
    return {
        "name": f"programs in a sandbox, {name}", "value": value, "unit": "programs/s", "peer": "bare interpreter",
        "peer_value": rates["bare interpreter"], "ratio": round(value / rates["bare interpreter"], 3),
        "bar": None if bar is None else f"{bar} programs/s on two idle cores", "met": None if bar is None else value >= bar,
        "processor_ms": costs[name] if math.isfinite(costs[name]) else None, "note": f"load of the machine {load:.1f}",
    }  # fmt: skip


if __name__ == "__main__":
    main()
