"""Over-optimisation of a proxy reward: the true reward against the distance from the start (after arXiv:2210.10760)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from posttrain.core.errors import UserError
from posttrain.core.registry import evaluation


@dataclass(frozen=True)
class Point:
    """A point of training: KL from the reference (nats), proxy reward, gold reward."""

    kl: float
    proxy: float
    gold: float


@evaluation(paper="arXiv:2210.10760")
def overoptimisation(points: Sequence[Point]) -> dict[str, float]:
    """Over-optimisation: by how much the gold reward fell from its best while the proxy went on rising.

    lost = max gold - last gold;  bought = what the proxy gained since that best point;  kl_at_best: where to stop
    """
    if not points:
        raise UserError("over-optimisation is read from a curve: give at least one point")
    best = max(range(len(points)), key=lambda i: points[i].gold)
    last = points[-1]
    return {
        "gold_first": points[0].gold,
        "gold_best": points[best].gold,
        "gold_last": last.gold,
        "kl_at_best": points[best].kl,
        "lost": points[best].gold - last.gold,
        "bought": last.proxy - points[best].proxy,
    }


def fit(points: Sequence[Point], kind: str = "rl") -> tuple[float, float]:
    """(alpha, beta) of the law of arXiv:2210.10760 by least squares; d = sqrt(KL), gold counted from the first point.

    rl:  R(d) = d (alpha - beta log d);  best-of-n:  R(d) = d (alpha - beta d)
    """
    if kind not in ("rl", "best-of-n"):
        raise UserError(f"kind is {kind!r}; expected 'rl' or 'best-of-n'")
    used = [(math.sqrt(p.kl), p.gold - points[0].gold) for p in points if p.kl > 0]
    if len(used) < 2:
        raise UserError(f"a fit of two numbers needs two points with KL > 0, got {len(used)}")
    d_N = torch.tensor([d for d, _ in used], dtype=torch.float64)
    gold_N = torch.tensor([g for _, g in used], dtype=torch.float64)
    bend_N = d_N.log() if kind == "rl" else d_N
    solved = torch.linalg.lstsq(torch.stack([d_N, -d_N * bend_N], -1), gold_N.unsqueeze(-1)).solution
    return float(solved[0]), float(solved[1])
