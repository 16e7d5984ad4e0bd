"""What this machine has: free memory, and cores that may really be used."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> float | None:
    """Free memory in bytes: of the system, or of the container where that is less; None where it cannot be read."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return None
    lines = dict(line.split(":") for line in info.read_text().splitlines() if ":" in line)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = (_GROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return float(free)


def cores() -> int:
    """Cores that this process may use: those it is allowed on, or the container's quota where that is less."""
    have = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _GROUP / "cpu.max"
    if quota.exists():
        limit, _, period = quota.read_text().strip().partition(" ")
        if limit.isdigit() and period.isdigit():
            have = min(have, max(1, int(limit) // int(period)))
    return have
