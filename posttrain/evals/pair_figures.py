"""The figures of a model on preference pairs: accuracy, margin and calibration, the same by a column of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from posttrain.core.protocols import Policy
from posttrain.core.types import Prompt
from posttrain.evals.figures import in_order, value_of
from posttrain.evals.intervals import estimate
from posttrain.evals.ranking import worth
from posttrain.evals.reward_model import expected_calibration_error, reliability

_AT_ONCE = 64  # pairs that are scored together
Values = Callable[[Sequence[Prompt], Sequence[str]], list[float]]  # scores of answers


def margins_of(values: Values, pairs: Sequence[Prompt]) -> list[float]:
    """s(chosen) - s(rejected) of each pair."""
    out: list[float] = []
    for start in range(0, len(pairs), _AT_ONCE):
        some = pairs[start : start + _AT_ONCE]
        asked = [p for p in some for _ in range(2)]
        found = values(asked, [p.info[k] for p in some for k in ("chosen", "rejected")])
        out += [a - b for a, b in zip(found[::2], found[1::2], strict=True)]
    return out


def log_probability(policy: Policy) -> Values:
    """A policy's own score of an answer: the sum of its tokens' log-probabilities."""

    @torch.no_grad()
    def values(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        found: list[float] = worth(policy, [policy.written(p, t) for p, t in zip(prompts, texts, strict=True)]).tolist()
        return found

    return values


def pair_figures(pairs: Sequence[Prompt], margins: Sequence[float], scored: bool, by: str = "") -> dict[str, Any]:
    """Accuracy (equal scores count half) and mean margin with 95% intervals; for the scores of a reward model how far its
    confidence sigmoid(|margin|) is from the share that is right. A score that is not finite is left out and counted."""
    kept = [(p, m) for p, m in zip(pairs, margins, strict=True) if math.isfinite(m)]
    out = {"pairs": len(pairs), "failed": len(pairs) - len(kept)} | summary([m for _, m in kept])
    margin_P = torch.tensor([m for _, m in kept], dtype=torch.float64)
    if scored:
        out["calibration_error"] = expected_calibration_error(margin_P)
        out["calibration"] = [asdict(b) for b in reliability(margin_P)]
    if not by:
        return out
    shelves: dict[str, list[float]] = {}
    for p, m in kept:
        shelves.setdefault(value_of(p, by), []).append(m)
    rows = [{"value": v, "pairs": len(shelves[v]), **summary(shelves[v])} for v in sorted(shelves, key=in_order)]
    return out | {"by": by, "rows": rows}


def summary(margins: Sequence[float]) -> dict[str, Any]:
    right = estimate([[0.5 + 0.5 * ((m > 0) - (m < 0))] for m in margins], share=True)
    ahead = estimate([[m] for m in margins], share=False)
    return {
        "accuracy": right.mean, "interval": [right.low, right.high], "interval_by": right.how,
        "margin": ahead.mean, "margin_interval": [ahead.low, ahead.high],
    }  # fmt: skip


def answers_of(prompt: Prompt, margin: float, by: str = "") -> dict[str, Any]:
    """A pair as a row of --save."""
    told = {k: prompt.info[k] for k in ("chosen", "rejected")}
    return ({by: prompt.info.get(by)} if by else {}) | {
        "id": prompt.id,
        "prompt": list(prompt.content),
        **told,
        "margin": margin if math.isfinite(margin) else None,
    }
