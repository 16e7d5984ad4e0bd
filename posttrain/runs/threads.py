"""How many threads torch uses on a CPU: measured at a run's first start, kept in its folder, used again when it resumes.

Threads that wait for one another can be far slower than one: on two busy cores, or under a container's quota, sampling with two threads
was measured at a sixth of the speed of one and less. Sums depend on the number of threads in their last bits, so a resumed
run takes the number it began with.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from posttrain.core import machine
from posttrain.core.errors import UserError
from posttrain.core.json_file import read_object
from posttrain.core.ranks import by_lead, ranks
from posttrain.core.types import Group

FILE = "machine.json"
_FASTER = 1.3  # one thread must be so much faster to be chosen: on an idle machine the choice is always the same
_BESIDE_GPU = (
    4  # what is left to the host is small: 16 threads made steps 15% slower than 4 did on an H200 with 16 cores
)
_BUSY, _STEPS = 4.0, 3  # a step so many times slower than usual, so many times in a row, is told


def settle(folder: Path, asked: int = 0, device: str = "") -> int:
    """Set the number of threads of this run, and write it down at its first start; returns it. device: as the settings name it."""
    threads = by_lead(lambda: _settled(folder, asked, device))
    torch.set_num_threads(threads)
    return threads


def _settled(folder: Path, asked: int, device: str) -> int:
    from posttrain.runs.checkpoint import write_atomic

    path = folder / FILE
    known = read_object(path) or {}
    kept = known.get("threads", 0)
    if not isinstance(kept, int) or kept < 0:
        raise UserError(
            f"{path} says {kept!r:.40} threads, expected a number; put it right, or start over with --fresh"
        )
    threads = asked or kept or choose(device)
    if known.get("torch", torch.__version__) != torch.__version__:
        _say(
            f"this run began with torch {known['torch']} and goes on with {torch.__version__}: the last bits may differ"
        )
    if threads > machine.cores():
        _say(f"this run began with {threads} threads, and {machine.cores()} cores may be used now: it will be slow")
    if not known:
        write_atomic(path, json.dumps({"threads": threads, "torch": torch.__version__}) + "\n")
    return threads


def choose(device: str = "cpu") -> int:
    """The user's number where there is one (OMP_NUM_THREADS, or torch set to one thread); where the model is on a GPU a few; else the
    faster of all cores and one."""
    now, have = torch.get_num_threads(), machine.cores()
    if os.environ.get("OMP_NUM_THREADS") or now == 1 or have == 1:
        return min(now, have) if not os.environ.get("OMP_NUM_THREADS") else now
    many = max(1, min(now, have) // ranks().world)  # processes of one machine share its cores
    if device.startswith("cuda") or (not device and torch.cuda.is_available()):
        return min(many, _BESIDE_GPU)
    slow, fast = probe(many), probe(1)
    torch.set_num_threads(now)
    return 1 if slow > _FASTER * fast else many


def probe(threads: int) -> float:
    """Seconds of a little work like that of sampling: small products and what lies between them. Under 0.2 s where nothing waits."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    x, w, v = (torch.randn(*s, generator=generator) for s in ((128, 128), (128, 512), (512, 128)))

    def once() -> float:
        began, y = time.perf_counter(), x
        for _ in range(12):
            y = torch.layer_norm(x + torch.softmax(torch.relu(y @ w) @ v, -1), (128,))
        return time.perf_counter() - began

    once()
    return statistics.median(once() for _ in range(5))


class Busy:
    """Warns when steps become much slower for their tokens than they were: something else needs the machine."""

    def __init__(self) -> None:
        self.last = time.perf_counter()
        self.usual: list[float] = []
        self.slow = self.told = 0

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        now = time.perf_counter()
        pace, self.last = (now - self.last) / max(metrics.get("tokens", 1.0), 1.0), now
        usual = statistics.median(self.usual) if len(self.usual) >= 5 else 0.0
        self.slow = self.slow + 1 if usual and pace > _BUSY * usual else 0
        if not self.slow:
            self.usual = [*self.usual[-19:], pace]
        if self.slow != _STEPS or self.told >= 3:
            return ""
        self.told += 1
        line = (
            f"steps take {pace / usual:.0f} times as long for their tokens as before: the machine is busy. This run uses "
            f"{torch.get_num_threads()} threads; posttrain doctor says what suits now, and --threads N is for a new run"
        )
        _say(f"step {step + 1}: {line}")
        return line


def _say(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)
