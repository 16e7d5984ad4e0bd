"""What the two arms of a check spent differently, as an attempt recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

COUNTED = (
    "prompts",
    "samples",
    "tokens",
    "written",
    "updates",
)  # of BUDGETS: what learning took; calls of a judge are not
APART = 0.2  # of the larger


def apart(made: Mapping[str, Any], check: Mapping[str, Any]) -> dict[str, list[float]]:
    """Budget -> what the better arm spent and the worse, in the mean over seeds, where they differ by more than a fifth of the larger.

    Nothing where one of them was not trained: that is what such a check is about. No prompts beside answers, rows or updates is a
    count that was not kept.
    """
    arms = [made.get("spent", {}).get(arm, {}) for arm in (check["better"], check["worse"])]
    of = {what: [fmean(arm[what]) if arm.get(what) else 0.0 for arm in arms] for what in COUNTED}
    if not all(of["updates"]):
        return {}
    found = {what: pair for what, pair in of.items() if min(pair) < (1 - APART) * max(pair)}
    return {what: pair for what, pair in found.items() if what != "prompts" or all(pair)}
