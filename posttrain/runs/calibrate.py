"""How fast this device is: half a second of matrix products, copies and small operations, the shortest of several runs each."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from posttrain.runs.estimate import Machine

Clock = Callable[[], float]


def calibrate(device: str, free: float, seconds: float = 0.2, clock: Clock = time.perf_counter) -> Machine:
    """FLOP/s of a matrix product, bytes/s of a copy (read and written), seconds to launch an operation."""
    gpu = device.startswith("cuda")
    size, dtype = (8192, torch.bfloat16) if gpu else (512, torch.float32)
    if gpu:
        size = min(size, int((free / 64) ** 0.5))
    a = torch.ones(size, size, device=device, dtype=dtype)
    block = torch.ones(min(1 << 28, int(free / 32)) if gpu else 1 << 24, device=device)
    into, small = torch.empty_like(block), torch.ones(16, 16, device=device)
    flops = 2 * size**3 / shortest(lambda: a @ a, device, seconds, clock)
    traffic = 2 * block.numel() * 4 / shortest(lambda: into.copy_(block), device, seconds, clock)
    if gpu:
        return Machine(flops, traffic, free, True)
    start = shortest(lambda: [small.add(1.0) for _ in range(100)], device, seconds / 4, clock) / 100
    return Machine(flops, traffic, free, False, start, start)


def shortest(work: Callable[[], object], device: str, seconds: float, clock: Clock = time.perf_counter) -> float:
    """The shortest time of the runs that fit into `seconds`, at least three; the first, which warms up, does not count."""
    work()
    found: list[float] = []
    end = clock() + seconds
    while len(found) < 3 or clock() < end:
        synchronize(device)
        before = clock()
        work()
        synchronize(device)
        found.append(clock() - before)
    return min(found)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
