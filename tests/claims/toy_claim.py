"""A claim that processes of their own can import: arms tell which process they ran in."""

from __future__ import annotations

import os

import torch

from claims.machinery.claim import Check, Claim, claim


def arm(seed: int) -> dict[str, float]:
    return {"process": float(os.getpid()), "threads": float(torch.get_num_threads()), "x": seed + 0.5}


def broken(seed: int) -> dict[str, float]:
    raise KeyError("no such arm")


BROKEN = claim(
    Claim("a-broken-toy", "", "", "", "", {"one": arm, "bad": broken}, (Check("x", "x", "one", 0.0),), (0, 1, 2)),
    __file__,
)
TOY = claim(
    Claim("a-toy", "A toy", "", "", "", {"one": arm, "two, too": arm}, (Check("x", "x", "one", 0.0),), (0, 1, 2)),
    __file__,
)
